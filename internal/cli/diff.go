package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/past"
	"meridian/internal/plan"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

func newDiffCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff -f FILE|DIR|- | --from R [--to R]",
		Short: "Compare documents, or an earlier state, with what is stored",
		Long: `Print a unified diff from the stored resources to the documents, in canonical
YAML without times, versions and revisions. The exit code is 1 when they differ.
JSON and YAML have the fields that differ, by JSON pointer.

With --from, the diff is from one state of the control plane to another: R is a
revision, or a duration such as 2h for how long ago. Without --to it is to what is
stored now. Secrets, signing keys, records of tokens and revocations are left out.`,
		Example: "  meridian diff -f policies/\n  meridian diff --from 2h\n  meridian diff --from 1841 --to 1902 -m shop -o json",
		Args:    exactly(),
	}
	from := bindSources(cmd)
	mesh := bindMesh(cmd)
	var between diffStates
	between.bind(cmd)
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if between.given() {
			if from.given() {
				return exit.Usagef("--from and --to compare states of the control plane: leave -f out")
			}
			return a.diffStates(cmd.Context(), &between, mesh, output.Value)
		}
		documents, err := a.load(from, mesh)
		if err != nil {
			return err
		}
		return a.diff(cmd.Context(), resourcesOf(documents), output.Value)
	}
	return cmd
}

// difference is one between two contents of a resource, either of which may be nil.
type difference struct {
	key           resource.Key
	before, after *resource.Resource
}

// diff compares documents with what is stored.
func (a *app) diff(ctx context.Context, resources []*resource.Resource, f print.Format) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	var all []difference
	for _, r := range resources {
		d := difference{key: r.Key(), after: r}
		response, err := client.Ask(ctx, c, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(r.Key())})
		switch {
		case err == nil:
			d.before = client.Decode(response.GetResource())
		case rpcerr.CodeOf(err) != rpcerr.NotFound:
			return err
		}
		all = append(all, d)
	}
	return a.printDifferences(f, all, nil)
}

// diffStates prints what differs between two states.
func (a *app) diffStates(ctx context.Context, d *diffStates, mesh *meshFlag, f print.Format) error {
	if err := errors.Join(d.check(), mesh.check()); err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	read := func(at *meridianv1.PointInTime) (map[resource.Key]*resource.Resource, uint64, error) {
		request := &meridianv1.ListRequest{Kinds: kindNames(comparedKinds(ctx, c)), At: at}
		if mesh.explicit() {
			request.Mesh = mesh.name
		}
		found, revision, err := c.ResourcesOfKnown(ctx, request)
		out := make(map[resource.Key]*resource.Resource, len(found))
		for _, r := range found {
			out[r.Key()] = r
		}
		return out, revision, err
	}
	before, from, err := read(d.from.point)
	if err != nil {
		return err
	}
	after, to, err := read(d.to.point)
	if err != nil {
		return err
	}
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	var all []difference
	for _, key := range slices.SortedFunc(maps.Keys(keys), resource.Key.Compare) {
		all = append(all, difference{key, before[key], after[key]})
	}
	return a.printDifferences(f, all, &[2]uint64{from, to})
}

// comparedKinds are the kinds whose states are compared: those that the control plane has,
// without secrets and without what it writes itself about keys and tokens.
func comparedKinds(ctx context.Context, c *client.Client) []*resource.Descriptor {
	role := ""
	if info, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{}); err == nil {
		role = info.GetRole()
	}
	return slices.DeleteFunc(notSensitive(), func(d *resource.Descriptor) bool {
		switch d.Kind {
		case resource.KindSigningKey, resource.KindIssuedToken, resource.KindTokenRevocation:
			return true
		}
		return role != "" && !writtenOn(role, d)
	})
}

// differenceView is what differs of a resource, as JSON.
type differenceView struct {
	Kind    resource.Kind     `json:"kind"`
	Mesh    resource.MeshName `json:"mesh,omitempty"`
	Name    string            `json:"name"`
	Outcome string            `json:"outcome"`
	Fields  []past.Difference `json:"fields"`
}

// printDifferences prints those that are some. revisions are those of the states that are
// compared; nil for documents.
func (a *app) printDifferences(f print.Format, all []difference, revisions *[2]uint64) error {
	document := struct {
		From  uint64           `json:"from,omitempty"`
		To    uint64           `json:"to,omitempty"`
		Items []differenceView `json:"items"`
	}{Items: []differenceView{}}
	from, to := "stored", "new"
	if revisions != nil {
		document.From, document.To = revisions[0], revisions[1]
		from, to = fmt.Sprint(document.From), fmt.Sprint(document.To)
	}
	var text strings.Builder
	for i := range all {
		d := &all[i]
		if f.Structured() {
			v, err := d.view()
			if err != nil {
				return err
			}
			if len(v.Fields) > 0 || v.Outcome != plan.Updated {
				document.Items = append(document.Items, v)
			}
			continue
		}
		unified, err := d.unified(from+"/"+d.key.String(), to+"/"+d.key.String())
		if err != nil {
			return err
		}
		text.WriteString(unified)
	}
	var err error
	switch {
	case f.Structured():
		err = a.WriteValue(f, &document)
	case text.Len() > 0:
		err = a.Output([]byte(text.String()))
	}
	if err == nil && len(document.Items)+text.Len() > 0 {
		return exit.ErrNo
	}
	return err
}

func (d *difference) view() (differenceView, error) {
	v := differenceView{Kind: d.key.Kind, Mesh: d.key.Mesh, Name: d.key.Name, Outcome: plan.Updated}
	switch {
	case d.before == nil:
		v.Outcome = plan.Created
	case d.after == nil:
		v.Outcome = plan.Deleted
	}
	var err error
	v.Fields, err = past.Compare(cleanOrNil(d.before), cleanOrNil(d.after))
	return v, err
}

func cleanOrNil(r *resource.Resource) *resource.Resource {
	if r == nil {
		return nil
	}
	return clean(r)
}

// unified is the diff of the two contents; empty where they are equal.
func (d *difference) unified(from, to string) (string, error) {
	texts := [2]string{}
	for i, r := range []*resource.Resource{d.before, d.after} {
		if r == nil {
			continue
		}
		text, err := canonicalText(r)
		if err != nil {
			return "", err
		}
		texts[i] = text
	}
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(texts[0]), B: difflib.SplitLines(texts[1]), Context: 3, FromFile: from, ToFile: to,
	})
}

// canonicalText is a resource as YAML, without what a server assigns.
func canonicalText(r *resource.Resource) (string, error) {
	var b bytes.Buffer
	err := resource.Encode(&b, resource.FormatYAML, clean(r))
	return strings.TrimPrefix(b.String(), "---\n"), err
}

// clean is a resource without what a server assigns to it, and without its owner.
func clean(r *resource.Resource) *resource.Resource {
	m := r.Meta()
	labels := make(map[string]string, len(m.Labels))
	for name, value := range m.Labels {
		if name != ownerLabel {
			labels[name] = value
		}
	}
	return resource.New(resource.Meta{Key: m.Key, Labels: labels}, nil, r.Canonical())
}

// ownerLabel names what wrote a resource.
const ownerLabel = "meridian.io/owner"
