package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

// applyOptions are the flags of apply, and of delete where they fit.
type applyOptions struct {
	files     *sources
	mesh      *meshFlag
	output    *print.FormatFlag
	dryRun    string
	ifVersion []string
	wait      string
	force     bool
	keepTimes bool
	// skipTests writes what breaks the tests of a mesh.
	skipTests bool
	// connectedOnly leaves out zones that are not connected.
	connectedOnly bool
	// yes makes a change that takes access away without a question.
	yes bool
	// rollout has the change reach the zones by stages.
	rollout rolloutOptions
	// inBatches writes a large input as several batches.
	inBatches bool
}

func newApplyCommand(a *app) *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|- | PLAN",
		Short: "Create or update resources, all of them or none",
		Long: `Create or update resources: one atomic batch from files, directories or standard
input, in universal or Kubernetes form, YAML or JSON.

Prints what became of each resource, then the revision at which the batch was
written. Warnings and notes of one cause are one line; -o json has those of each
resource.

PLAN is a file of 'meridian plan --out': its change is made only if what is stored is
what it was, and the change still does the same (exit code 3 otherwise).

What takes access away is shown first, and on a terminal asked about; --yes answers.

With --rollout, the batch is not written yet: it begins a rollout, by which the zones
of one stage after the other have the change, and which writes the batch in the end.
Until then no other write changes these resources. See 'meridian rollout'.

With --in-batches, an input of any size is written as several batches: meshes before
what is in them, access rules and tests of meshes last. This is no atomic change.
Where one fails, the command says what is written, and repeating it continues.`,
		Example: `  meridian apply -f policies/
  meridian apply -f policies/ --rollout zones=canary,then=25%,then=all --interval 10m
  meridian apply -f - --dry-run=server < policy.yaml
  meridian apply -f policy.yaml --wait=zones --timeout 1m
  meridian apply -f export/ --in-batches
  meridian apply change.plan`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return a.apply(cmd.Context(), &o)
			case len(args) > 1 || o.files.given():
				return exit.Usagef("documents are given with -f; the only argument is a plan of `meridian plan --out`")
			case len(o.ifVersion) > 0 || o.keepTimes || o.force || o.dryRun == "client" || o.mesh.explicit():
				return exit.Usagef("a plan has its own conditions: leave out --if-version, --keep-times, --force, --mesh and --dry-run=client")
			case o.inBatches:
				return exit.Usagef("a plan is of one atomic change: give the documents with -f for --in-batches")
			case o.rollout.given():
				return exit.Usagef("a plan is of a change at once: give the documents with -f for --rollout")
			}
			if err := o.check(); err != nil {
				return err
			}
			return a.applyPlan(cmd.Context(), args[0], &o)
		},
	}
	o.files = bindSources(cmd)
	o.mesh = bindMesh(cmd)
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	bindDryRun(cmd, &o.dryRun, "client: validate documents only; server: do everything but write")
	bindIfVersion(cmd, &o.ifVersion, "apply only if this version is stored: VERSION of the one resource, or KIND/NAME=VERSION; VERSION@REVISION also names the revision that wrote it; 0: it must not exist; repeatable")
	bindForce(cmd, &o.force)
	bindSkipTests(cmd, &o.skipTests)
	bindYes(cmd, &o.yes)
	bindRollout(cmd, &o.rollout)
	cmd.Flags().Lookup("force").Usage += "; ignore the versions in documents"
	cmd.Flags().BoolVar(&o.keepTimes, "keep-times", false, "keep the times in documents, which decide ties (takes the right to write every AccessRole)")
	cmd.Flags().StringVar(&o.wait, "wait", "", "zones: return when every enabled zone has applied the revision; enforced: and the proxies that it touches have accepted it; exit code 6 and the names when some have not within --timeout")
	cmd.Flags().BoolVar(&o.inBatches, "in-batches", false, "write a large input as several batches, which are not one atomic change")
	cmd.Flags().BoolVar(&o.connectedOnly, "connected-only", false, "with --wait: do not wait for zones that are offline, and name them")
	return cmd
}

// bindDryRun defines --dry-run, which by itself is --dry-run=server.
func bindDryRun(cmd *cobra.Command, value *string, usage string) {
	cmd.Flags().StringVar(value, "dry-run", "", usage+" (default alone: server)")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "server"
}

// bindYes defines --yes.
func bindYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask about what takes access away")
}

// bindForce defines --force.
func bindForce(cmd *cobra.Command, force *bool) {
	cmd.Flags().BoolVar(force, "force", false, "skip the privilege-escalation, last-admin, foreign-trust and CA rotation checks (members of mesh-system:admin)")
}

// bindSkipTests defines --skip-tests.
func bindSkipTests(cmd *cobra.Command, skip *bool) {
	cmd.Flags().BoolVar(skip, "skip-tests", false, "write although tests that the mesh carries fail then (takes the right to delete its MeshTest; the audit log says which)")
}

func (o *applyOptions) check() error {
	switch {
	case o.dryRun != "" && o.dryRun != "client" && o.dryRun != "server":
		return exit.Usagef("--dry-run %q: write client or server", o.dryRun)
	case o.wait != "" && o.wait != "zones" && o.wait != "enforced":
		return exit.Usagef("--wait %q: write zones or enforced", o.wait)
	case o.rollout.flags.Changed("rollout") && (o.wait != "" || o.keepTimes || o.dryRun == "client"):
		return exit.Usagef("--rollout goes without --wait, --keep-times and --dry-run=client; `meridian rollout status` shows how far it is")
	case o.connectedOnly && o.wait == "":
		return exit.Usagef("--connected-only is about --wait=zones and --wait=enforced: give both")
	}
	return o.checkInBatches()
}

func (a *app) apply(ctx context.Context, o *applyOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	o.files.large = o.inBatches
	documents, err := a.load(o.files, o.mesh)
	if err != nil {
		return err
	}
	if err := checkConditions(documents); err != nil {
		return err
	}
	resources := resourcesOf(documents)
	conditions, err := ifVersions(o.ifVersion, keysOf(resources))
	if err != nil {
		return err
	}
	if o.dryRun == "client" {
		a.advise(remarksOf(documents))
		a.Message("Dry run: the documents are valid; nothing was sent to a control plane.")
		return a.printChecked(o.output.Value, documents)
	}
	if o.inBatches {
		return a.applyInBatches(ctx, o, resources)
	}
	if !o.force {
		conditions = documentVersions(resources, conditions)
	}
	staged, err := o.rollout.options(a.Now())
	if err != nil {
		return err
	}
	request := &meridianv1.ApplyRequest{DryRun: o.dryRun == "server", IfVersions: conditions, Force: o.force, KeepTimes: o.keepTimes, SkipTests: o.skipTests, Rollout: staged}
	if !request.DryRun {
		request.RequestId = rand.Text()
	}
	for _, r := range resources {
		message := client.Encode(r)
		if o.keepTimes {
			client.EncodeTimes(message, r)
		}
		request.Resources = append(request.Resources, message)
	}
	a.noteTimes(resources, o.keepTimes)
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	caused, err := a.askBeforeLoss(ctx, c, &proposal{written: resources, force: o.force, conditions: conditions}, o.yes, o.files.stdin() || request.GetDryRun())
	if err != nil {
		return err
	}
	return a.sendApply(ctx, c, request, o, caused)
}

// sendApply writes a batch. caused is what an analysis finds because of it.
func (a *app) sendApply(ctx context.Context, c *client.Client, request *meridianv1.ApplyRequest, o *applyOptions, caused []findingView) error {
	var response *meridianv1.ApplyResponse
	send := func(ctx context.Context) (err error) {
		response, err = batch.Apply(ctx, c, request)
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, c.Left()) // of the write and the wait together
	defer cancel()
	if err := c.Call(bounded, send); err != nil {
		return explainInterrupt(explainTooLarge(err, "`meridian apply --in-batches` writes it"), request.GetDryRun())
	}
	revision := response.GetRevision()
	for _, warning := range response.GetWarnings() {
		a.Warn(warning)
	}
	for _, note := range response.GetNotes() {
		a.Message("Note: %s", note)
	}
	a.warnOfFindings(caused)
	findings := append(viewFindings(response.GetFindings()), caused...)
	switch {
	case request.GetDryRun():
		a.Message("Dry run: nothing was written.")
	case request.GetRollout() != nil:
		a.tellRollout(request.GetRollout(), response.GetResults())
	default:
		found, missing := fleetFindings(bounded, c, a.fleetBudget, revision, response.GetResults())
		a.warnOfFleet(found, missing, response.GetResults())
		for _, advice := range found {
			findings = append(findings, viewFinding(advice))
		}
	}
	if err := a.printResults(o.output.Value, response.GetResults(), revision, findings); err != nil {
		return err
	}
	if o.wait == "" || request.GetDryRun() {
		return nil
	}
	return a.waitForZones(bounded, c, &meridianv1.WaitForZonesRequest{Revision: revision, ConnectedOnly: o.connectedOnly, Enforced: o.wait == "enforced"})
}

// noteTimes says that the times of documents are not kept, since ties between
// equally specific policies are decided by them (§1.1).
func (a *app) noteTimes(resources []*resource.Resource, kept bool) {
	timed := 0
	for _, r := range resources {
		if m := r.Meta(); !m.CreationTime.IsZero() || !m.ModificationTime.IsZero() {
			timed++
		}
	}
	if timed > 0 && !kept {
		a.Message("Note: the times of %s are not kept: the control plane sets its own, which may decide ties between policies otherwise; --keep-times keeps them.", print.Plural(timed, "document"))
	}
}

// explainInterrupt says what a write that was interrupted has done.
func explainInterrupt(err error, dryRun bool) error {
	if dryRun || !errors.Is(err, context.Canceled) {
		return err
	}
	return exit.Failf(exit.Interrupted, "interrupted: whether the batch was written is not known").
		With("Either all of it was written, or nothing: repeat the command, or check with `meridian get`.")
}

// resultView is what became of one resource, as JSON.
type resultView struct {
	Type    string `json:"type"`
	Mesh    string `json:"mesh,omitempty"`
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Version uint64 `json:"version"`
}

// printResults prints what became of a batch, and as JSON also what there is to know
// of each resource: findings are nil for a deletion.
func (a *app) printResults(f print.Format, results []*meridianv1.Result, revision uint64, findings []findingView) error {
	switch {
	case f.Structured():
		return a.WriteValue(f, struct {
			Results  []resultView  `json:"results"`
			Revision uint64        `json:"revision"`
			Findings []findingView `json:"findings,omitempty"`
		}{viewResults(results), revision, findings})
	}
	text := resultLines(f, results)
	if f != print.FormatName {
		text += fmt.Sprintf("revision %d\n", revision)
	}
	return a.Output([]byte(text))
}

// printChecked prints documents that were checked and not sent.
func (a *app) printChecked(f print.Format, documents []resource.Document) error {
	resources := resourcesOf(documents)
	if f != print.FormatTable {
		return a.Resources(f, resources, nil)
	}
	var b strings.Builder
	for _, r := range resources {
		meta := r.Meta()
		fmt.Fprintf(&b, "%s/%s valid\n", meta.Kind, meta.Shown())
	}
	return a.Output([]byte(b.String()))
}

// shownName is the name in a result as people are shown it.
func shownName(r *meridianv1.Result) string { return cmp.Or(r.GetShown(), r.GetName()) }

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
