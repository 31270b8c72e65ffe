package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// applyOptions are the flags of apply, and of delete where they fit.
type applyOptions struct {
	files     []string
	mesh      *meshFlag
	output    *formatFlag
	dryRun    string
	ifVersion *uint64
	wait      string
	force     bool
}

func newApplyCommand(a *app) *cobra.Command {
	var (
		o         applyOptions
		ifVersion uint64
	)
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or update resources, all of them or none",
		Long: `Create or update resources: one atomic batch from files, directories or standard
input, in universal or Kubernetes form, YAML or JSON.

Prints what became of each resource, then the revision at which the batch was
written.`,
		Example: `  meridian apply -f policies/
  meridian apply -f - --dry-run=server < policy.yaml
  meridian apply -f policy.yaml --wait=zones --timeout 1m`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("if-version") {
				o.ifVersion = &ifVersion
			}
			return a.apply(cmd.Context(), &o)
		},
	}
	bindFiles(cmd, &o.files)
	o.mesh = bindMesh(cmd)
	o.output = bindFormat(cmd.Flags(), formatTable, formatJSON, formatYAML, formatName)
	cmd.Flags().StringVar(&o.dryRun, "dry-run", "", "client: check the documents only; server: decide everything, write nothing")
	cmd.Flags().Uint64Var(&ifVersion, "if-version", 0, "apply the one resource only if its stored version is this one; 0: it must not exist")
	bindForce(cmd, &o.force)
	cmd.Flags().StringVar(&o.wait, "wait", "", "zones: return when every connected zone has applied the revision")
	return cmd
}

// bindForce defines --force.
func bindForce(cmd *cobra.Command, force *bool) {
	cmd.Flags().BoolVar(force, "force", false, "as a member of mesh-system:admin: let rights grow beyond your own, or the last admin go")
}

func (o *applyOptions) check(documents int) error {
	switch {
	case o.dryRun != "" && o.dryRun != "client" && o.dryRun != "server":
		return usagef("--dry-run %q: write client or server", o.dryRun)
	case o.wait != "" && o.wait != "zones":
		return usagef("--wait %q: the only thing to wait for is zones", o.wait)
	case o.ifVersion != nil && documents != 1:
		return usagef("--if-version is about one resource; the input holds %d", documents)
	}
	return nil
}

func (a *app) apply(ctx context.Context, o *applyOptions) error {
	if err := o.check(1); err != nil {
		return err
	}
	documents, err := a.load(o.files, o.mesh)
	if err != nil {
		return err
	}
	if err := checkConditions(documents); err != nil {
		return err
	}
	if err := o.check(len(documents)); err != nil {
		return err
	}
	if o.dryRun == "client" {
		a.warnAbout(documents)
		a.message("Dry run: the documents are valid; nothing was sent to a control plane.")
		return a.printChecked(o.output.value, documents)
	}
	request := &meridianv1.ApplyRequest{DryRun: o.dryRun == "server", IfVersion: o.ifVersion, Force: o.force}
	if !request.DryRun {
		request.RequestId = rand.Text()
	}
	for _, d := range documents {
		request.Resources = append(request.Resources, encodeMessage(d.Resource))
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	return a.sendApply(ctx, c, request, o)
}

func (a *app) sendApply(ctx context.Context, c *client, request *meridianv1.ApplyRequest, o *applyOptions) error {
	var response *meridianv1.ApplyResponse
	send := func(ctx context.Context) (err error) {
		response, err = c.Apply(ctx, request)
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, c.timeout) // of the write and the wait together
	defer cancel()
	if err := c.call(bounded, send); err != nil {
		return err
	}
	revision := response.GetRevision()
	for _, warning := range response.GetWarnings() {
		a.warn(warning)
	}
	for _, note := range response.GetNotes() {
		a.message("Note: %s", note)
	}
	if request.GetDryRun() {
		a.message("Dry run: nothing was written.")
	}
	if err := a.printResults(o.output.value, response.GetResults(), revision); err != nil {
		return err
	}
	if o.wait == "" || request.GetDryRun() {
		return nil
	}
	// The write is acknowledged and printed; what follows only waits. The same
	// request id makes the server answer for the batch that is already written.
	request.WaitForZones = true
	return a.explainWait(ctx, c, c.call(bounded, send), revision)
}

// explainWait says which zones a wait ended without.
func (a *app) explainWait(ctx context.Context, c *client, err error, revision uint64) error {
	var f *failure
	var answered *rpcerr.Error
	switch {
	case errors.As(err, &f) && f.code == exitTimeout:
	case errors.As(err, &answered) && answered.Code == rpcerr.Timeout:
	default:
		return err
	}
	out := failf(exitTimeout, "revision %d is written, but not every connected zone has applied it within %s", revision, c.timeout)
	zones, err := c.zones(ctx)
	if err != nil {
		return out.with("`meridian zones` shows how far they are.")
	}
	for _, z := range zones.GetZones() {
		if len(z.GetInstances()) > 0 && z.GetRevision() < revision {
			line := fmt.Sprintf("  zone %s is %s at revision %d", z.GetName(), z.GetState(), z.GetRevision())
			if z.GetLastError() != "" {
				line += ": " + z.GetLastError()
			}
			out.details = append(out.details, line)
		}
	}
	return out
}

// resultView is what became of one resource, as JSON.
type resultView struct {
	Type    string `json:"type"`
	Mesh    string `json:"mesh,omitempty"`
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Version uint64 `json:"version"`
}

func (a *app) printResults(f format, results []*meridianv1.Result, revision uint64) error {
	switch f {
	case formatJSON, formatYAML:
		views := make([]resultView, len(results))
		for i, r := range results {
			views[i] = resultView{r.GetKind(), r.GetMesh(), r.GetName(), outcomeWord(r.GetOutcome()), r.GetVersion()}
		}
		return a.writeValue(f, struct {
			Results  []resultView `json:"results"`
			Revision uint64       `json:"revision"`
		}{views, revision})
	}
	var b strings.Builder
	for _, r := range results {
		b.WriteString(r.GetKind() + "/" + r.GetName())
		if f != formatName {
			b.WriteString(" " + outcomeWord(r.GetOutcome()))
		}
		b.WriteByte('\n')
	}
	if f != formatName {
		fmt.Fprintf(&b, "revision %d\n", revision)
	}
	return a.write([]byte(b.String()))
}

// printChecked prints documents that were checked and not sent.
func (a *app) printChecked(f format, documents []resource.Document) error {
	resources := resourcesOf(documents)
	if f != formatTable {
		return a.printResources(f, resources, nil)
	}
	var b strings.Builder
	for _, r := range resources {
		fmt.Fprintf(&b, "%s/%s valid\n", r.Key().Kind, r.Key().Name)
	}
	return a.write([]byte(b.String()))
}

// outcomeWord is how an outcome is printed.
func outcomeWord(o meridianv1.Outcome) string {
	switch o {
	case meridianv1.Outcome_OUTCOME_CREATED:
		return "created"
	case meridianv1.Outcome_OUTCOME_UPDATED:
		return "updated"
	case meridianv1.Outcome_OUTCOME_UNCHANGED:
		return "unchanged"
	case meridianv1.Outcome_OUTCOME_DELETED:
		return "deleted"
	default:
		return "unknown"
	}
}
