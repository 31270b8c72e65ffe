package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

func newDiffCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff -f FILE|DIR|- | --from R [--to R]",
		Short: "Compare documents, or an earlier state, with what is stored",
		Long: `Print a unified diff from the stored resources to the documents, in canonical
YAML without times, versions and revisions. The exit code is 1 when they differ.

With --from, the diff is from one state of the control plane to another: R is a
revision, or a duration such as 2h for how long ago. Without --to it is to what is
stored now. Secrets are left out.`,
		Example: "  meridian diff -f policies/\n  meridian diff --from 2h\n  meridian diff --from 1841 --to 1902 -m shop",
		Args:    exactly(),
	}
	from := bindSources(cmd)
	mesh := bindMesh(cmd)
	var between diffStates
	between.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if between.given() {
			if from.given() {
				return exit.Usagef("--from and --to compare states of the control plane: leave -f out")
			}
			return a.diffStates(cmd.Context(), &between, mesh)
		}
		documents, err := a.load(from, mesh)
		if err != nil {
			return err
		}
		return a.diff(cmd.Context(), resourcesOf(documents))
	}
	return cmd
}

func (a *app) diff(ctx context.Context, resources []*resource.Resource) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	var out strings.Builder
	for _, r := range resources {
		before := ""
		response, err := client.Ask(ctx, c, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(r.Key())})
		switch {
		case err == nil:
			if before, err = canonicalText(client.Decode(response.GetResource())); err != nil {
				return err
			}
		case rpcerr.CodeOf(err) != rpcerr.NotFound:
			return err
		}
		after, err := canonicalText(r)
		if err != nil {
			return err
		}
		text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
			A: difflib.SplitLines(before), B: difflib.SplitLines(after), Context: 3,
			FromFile: "stored/" + r.Key().String(), ToFile: "new/" + r.Key().String(),
		})
		if err != nil {
			return err
		}
		out.WriteString(text)
	}
	if out.Len() == 0 {
		return nil
	}
	return errors.Join(a.Output([]byte(out.String())), exit.ErrNo)
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
