package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// planOptions are the flags of plan and of its subcommands.
type planOptions struct {
	files  *sources
	mesh   *meshFlag
	output *print.FormatFlag
	// state is what the documents are compared with, in place of a control plane.
	state  []string
	zone   string
	out    *string
	force  bool
	strict *bool
}

func newPlanCommand(a *app) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan -f FILE|DIR|-",
		Short: "Show what a change would do before it is made",
		Long: `Show what applying documents would do: which connections would be allowed or denied
otherwise, in which zones and on whose word, which values would be in effect, on
which routes, and what users and groups could do or do no longer. Nothing is
written. Zones that are away, behind or older are named: what the change does
there is not certain.

With --from-files the documents are compared with other documents, without a
server. With --out the plan is kept in a file, which 'meridian apply FILE' makes
only if it still does the same.

The exit code is 1 when something would change.`,
		Example: `  meridian plan -f policies/
  meridian plan -f policies/ --out change.plan
  meridian plan -f new/ --from-files deployed/ -o json`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			documents, err := a.load(o.files, o.mesh)
			if err != nil {
				return err
			}
			if err := checkConditions(documents); err != nil {
				return err
			}
			return a.plan(cmd, &o, &proposal{written: resourcesOf(documents)})
		},
	}
	o.files = bindSources(cmd)
	o.mesh = bindMesh(cmd)
	bindPlan(cmd, &o)
	cmd.AddCommand(newPlanDeleteCommand(a), newPlanRollbackCommand(a))
	return cmd
}

func newPlanDeleteCommand(a *app) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | KIND/NAME... | -f FILE|DIR|-",
		Short: "Show what a deletion would do",
		Long: `Show what deleting resources would do, as 'meridian plan' does of writing them. The
exit code is 1 when something would change, or one of them does not exist.`,
		Example: `  meridian plan delete traffic-permission allow-all
  meridian plan delete Timeout/web Retry/web --from-files policies/`,
		ValidArgsFunction: completeKinds(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := a.keysToDelete(args, &applyOptions{files: o.files, mesh: o.mesh})
			if err != nil {
				return err
			}
			return a.plan(cmd, &o, &proposal{deleted: keys})
		},
	}
	o.files = bindSources(cmd)
	o.mesh = bindMesh(cmd)
	bindPlan(cmd, &o)
	return cmd
}

func newPlanRollbackCommand(a *app) *cobra.Command {
	var o rollbackOptions
	cmd := &cobra.Command{
		Use:   "rollback --to R [KIND NAME...]",
		Short: "Show what a rollback would do",
		Long: `Show what 'meridian rollback' would do, as 'meridian plan' does of writing documents.
With --out the plan is kept in a file, which 'meridian apply FILE' makes only if it
still does the same. The exit code is 1 when something would change.`,
		Example: `  meridian plan rollback --to 2h
  meridian plan rollback --to 2h --out back.plan
  meridian plan rollback --to 1841 Timeout web-timeouts`,
		ValidArgsFunction: completeKinds(nil),
	}
	bindRollback(cmd, &o)
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	strict := bindStrictPlan(cmd)
	out := bindPlanOut(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := o.request(args)
		if err != nil {
			return err
		}
		change := &proposal{rollback: request, force: o.force}
		p, err := a.planLive(cmd.Context(), change)
		if err != nil {
			return err
		}
		if *out != "" {
			if err := a.keepPlan(*out, change, p); err != nil {
				return err
			}
		}
		return a.showPlan(o.output.Value, p, *strict)
	}
	return cmd
}

func bindStrictPlan(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("strict", false, "exit with 6 when some zones are not in the plan")
}

// bindPlanOut defines --out.
func bindPlanOut(cmd *cobra.Command) *string {
	return cmd.Flags().String("out", "", "keep the plan in this file, for 'meridian apply FILE'")
}

func bindPlan(cmd *cobra.Command, o *planOptions) {
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.Flags().StringArrayVar(&o.state, "from-files", nil, "compare with the documents of this file or directory, without a server; repeatable")
	cmd.Flags().StringVar(&o.zone, "zone", "", "with --from-files: zone of dataplanes that name none (default \""+defaultZone+"\")")
	o.out = bindPlanOut(cmd)
	o.strict = bindStrictPlan(cmd)
	bindForce(cmd, &o.force)
}

// proposal is a change that is planned: what is written, what is deleted, or a rollback.
type proposal struct {
	written  []*resource.Resource
	deleted  []resource.Key
	rollback *meridianv1.RollbackRequest
	force    bool
	// conditions are those on what is stored.
	conditions []*meridianv1.VersionCondition
}

func (a *app) plan(cmd *cobra.Command, o *planOptions, change *proposal) error {
	change.force = o.force
	switch {
	case len(o.state) == 0 && o.zone != "":
		return exit.Usagef("--zone is about --from-files: give both")
	case len(o.state) > 0 && *o.out != "":
		return exit.Usagef("--out keeps a plan of a control plane: leave out --from-files")
	}
	if err := checkZone(o.zone); err != nil {
		return err
	}
	var p *plan.Plan
	var err error
	if len(o.state) > 0 {
		p, err = a.planFiles(cmd, o, change)
	} else {
		p, err = a.planLive(cmd.Context(), change)
	}
	if err != nil {
		return err
	}
	if *o.out != "" {
		if err := a.keepPlan(*o.out, change, p); err != nil {
			return err
		}
	}
	return a.showPlan(o.output.Value, p, *o.strict)
}

// showPlan prints a plan. Its error is the exit code.
func (a *app) showPlan(f print.Format, p *plan.Plan, strict bool) error {
	if err := a.printPlan(f, p); err != nil {
		return err
	}
	switch {
	case strict && len(p.Incomplete) > 0:
		return exit.Failf(exit.Timeout, "the plan is not complete: %s", p.Incomplete[0])
	case p.Nothing():
		return nil
	}
	return exit.ErrNo
}

func (a *app) printPlan(f print.Format, p *plan.Plan) error {
	if f.Structured() {
		return a.WriteValue(f, p.Document())
	}
	return p.Render(a.Stdout)
}

// planLive asks the control plane what a change would do.
func (a *app) planLive(ctx context.Context, change *proposal) (*plan.Plan, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return planned(ctx, c, change)
}

func planned(ctx context.Context, c *client.Client, change *proposal) (*plan.Plan, error) {
	var encoded []byte
	var warnings []string
	switch {
	case change.rollback != nil:
		return plannedRollback(ctx, c, change)
	case len(change.deleted) > 0:
		response, err := client.Ask(ctx, c, (*client.Client).DeleteBatch, change.deletion(true))
		if err != nil {
			return nil, err
		}
		encoded = response.GetPlan()
	default:
		response, err := client.Ask(ctx, c, (*client.Client).ApplyBatch, change.write(true))
		if err != nil {
			return nil, err
		}
		encoded, warnings = response.GetPlan(), response.GetWarnings()
	}
	return decodePlan(encoded, warnings)
}

var errNoPlan = exit.Failf(exit.Unavailable, "the control plane does not plan: it is of an older release")

// decodePlan reads the plan of a response, with what the change is warned of.
func decodePlan(encoded []byte, warnings []string) (*plan.Plan, error) {
	if len(encoded) == 0 {
		return nil, errNoPlan
	}
	p := plan.New()
	if err := answer.Unmarshal(encoded, p); err != nil {
		return nil, err
	}
	p.Warnings = append(slices.Clone(warnings), p.Warnings...)
	return p, nil
}

// write is the request of a proposal to write.
func (p *proposal) write(planOnly bool) *meridianv1.ApplyRequest {
	r := &meridianv1.ApplyRequest{DryRun: planOnly, Plan: planOnly, Force: p.force, IfVersions: p.conditions}
	if !p.force {
		r.IfVersions = documentVersions(p.written, r.IfVersions)
	}
	for _, w := range p.written {
		r.Resources = append(r.Resources, client.Encode(w))
	}
	return r
}

// deletion is the request of a proposal to delete.
func (p *proposal) deletion(planOnly bool) *meridianv1.DeleteRequest {
	r := &meridianv1.DeleteRequest{DryRun: planOnly, Plan: planOnly, Force: p.force, IfVersions: p.conditions}
	for _, key := range p.deleted {
		r.Keys = append(r.Keys, messageKey(key))
	}
	return r
}

// planFiles says what a change of documents would do.
func (a *app) planFiles(cmd *cobra.Command, o *planOptions, change *proposal) (*plan.Plan, error) {
	documents, err := a.loadDocuments(&sources{files: o.state, recursive: true, cmd: cmd}, resource.DecodeOptions{Mesh: resource.MeshName(o.mesh.name)})
	if err != nil {
		return nil, err
	}
	state := map[resource.Key]*resource.Resource{}
	for _, r := range resourcesOf(documents) {
		state[r.Key()] = r
	}
	matcher, zone, err := matcherOf(resourcesOf(documents), o.zone)
	if err != nil {
		return nil, err
	}
	var before policy.View
	err = matcher.Read(func(r *policy.Reading) error {
		before = r.View()
		return nil
	})
	if err != nil {
		return nil, err
	}
	changes, err := change.on(state)
	if err != nil {
		return nil, err
	}
	later := make([]*resource.Resource, 0, len(state))
	for _, r := range state {
		later = append(later, r)
	}
	after, err := policy.Offline(later, zone, o.zone != "")
	if err != nil {
		return nil, &exit.Failure{Code: exit.Usage, Err: err}
	}
	p := plan.New()
	differences := plan.Between(before, after)
	if err := p.Dataplanes(cmd.Context(), matcher, differences, zone, nil); err != nil {
		return nil, err
	}
	if err := p.RoutesOf(cmd.Context(), matcher, differences); err != nil {
		return nil, err
	}
	p.RightsOf(before, differences)
	p.EmptiedBy(before, differences)
	if err := p.Surveyed(cmd.Context(), before, differences); err != nil {
		return nil, err
	}
	p.Changes = append(p.Changes, changes...)
	advice, err := policy.Lint(cmd.Context(), after, differences.Written, engines.Surveyors()...)
	if err != nil {
		return nil, err
	}
	groups := policy.Groups(advice)
	for i := range groups {
		if groups[i].Severity == resource.Warning {
			p.Warnings = append(p.Warnings, groups[i].String())
		}
	}
	p.Finish()
	return p, nil
}

// on makes the change to resources by their keys: what is written is newer than all that
// there is, as it is where a server writes it.
func (p *proposal) on(state map[resource.Key]*resource.Resource) ([]plan.Change, error) {
	var newest time.Time
	for _, r := range state {
		m := r.Meta()
		for _, at := range []time.Time{m.CreationTime, m.ModificationTime} {
			if at.After(newest) {
				newest = at
			}
		}
	}
	newest = newest.Add(1)
	var changes []plan.Change
	note := func(key resource.Key, outcome string) {
		changes = append(changes, plan.Change{Kind: key.Kind, Mesh: key.Mesh, Name: key.Name, Outcome: outcome})
	}
	for _, key := range p.deleted {
		if _, ok := state[key]; !ok {
			return nil, exit.Failf(exit.No, "%s is not in the documents of --from-files", key)
		}
		delete(state, key)
		note(key, plan.Deleted)
	}
	for _, r := range p.written {
		old, stored := state[r.Key()]
		switch {
		case stored && plan.Same(old, r):
			note(r.Key(), plan.Unchanged)
			continue
		case stored:
			note(r.Key(), plan.Updated)
		default:
			note(r.Key(), plan.Created)
		}
		m := r.Meta()
		m.CreationTime, m.ModificationTime = newest, newest
		if stored {
			m.CreationTime = old.Meta().CreationTime
		}
		state[r.Key()] = r.WithMeta(m)
	}
	return changes, nil
}

// confirmLoss prints what a change takes away: connections that would be denied, rights
// that would be lost, and meshes that would be left without policies. On a terminal it
// asks, unless that is answered by --yes.
func (a *app) confirmLoss(ctx context.Context, p *plan.Plan, yes, inputTaken bool) error {
	lost := p.Losses()
	for _, line := range lost {
		a.Message("Takes away: %s", line)
	}
	if p.Hidden {
		a.Message("Note: what this takes away from resources that you may not read is not known.")
	}
	for i, absent := range p.Incomplete {
		if i == maxAbsent {
			a.Message("Note: nor is it known in %d more zones.", len(p.Incomplete)-i)
			break
		}
		a.Message("Note: what this takes away there is not known: %s", absent)
	}
	if len(lost) == 0 || !a.asks(inputTaken) {
		return nil
	}
	return a.confirm(ctx, yes, inputTaken)
}

const (
	// lossBudget bounds how long is waited for what a change takes away.
	lossBudget = 3 * time.Second
	// maxAbsent bounds the zones that are named of which that is not known.
	maxAbsent = 5
)

// asks reports whether there is an operator to ask.
func (a *app) asks(inputTaken bool) bool { return !inputTaken && print.IsTerminal(a.stdin) }

// askBeforeLoss is confirmLoss of a change that is not planned yet. Where no plan can be
// had, it says so; it asks about what may be the largest change of all, one whose plan
// takes too long or is too large. Without a terminal, or where nothing is to be asked
// since the input is taken or the change is a dry run, it continues. It returns
// what an analysis would find once the change is made, and does not find now.
func (a *app) askBeforeLoss(ctx context.Context, c *client.Client, change *proposal, yes, inputTaken bool) ([]findingView, error) {
	if !change.concerns() {
		return nil, nil
	}
	budget, begun := min(a.lossBudget, c.Timeout/2), time.Now()
	bounded, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	p, err := planned(bounded, c, change)
	c.Spend(min(time.Since(begun), c.Timeout/2)) // with the change it takes what one request may
	code := rpcerr.CodeOf(err)
	switch {
	case err == nil:
		return p.Findings, a.confirmLoss(ctx, p, yes, inputTaken)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case bounded.Err() != nil, exit.Explain(err).Code == exit.Timeout: // one of the two clocks is first
		a.Message("Note: what this takes away is not known: there is no plan after %s; `meridian plan` waits longer", budget)
	case rpcerr.HasReason(err, "PLAN_TOO_LARGE"):
		a.Message("Note: what this takes away is not known: %v", err)
	case rpcerr.HasReason(err, "UNKNOWN_FIELDS"):
		a.Message("Note: what this takes away is not known: %v", errNoPlan)
		return nil, nil
	case exit.Explain(err).Code == exit.Unavailable && !errors.Is(err, errNoPlan) && rpcerr.RetryAfter(err) == 0:
		return nil, err // it was so for as long as the change may take
	case rpcerr.HasReason(err, authz.ReasonDenied):
		return nil, err // so is the change; asking again would be a second refusal in the audit log
	case slices.Contains([]rpcerr.Code{rpcerr.Denied, rpcerr.Unauthenticated, rpcerr.NotFound, rpcerr.Invalid, rpcerr.Conflict, rpcerr.OutOfRange}, code):
		return nil, nil // so is the change, by the same word
	default:
		a.Message("Note: what this takes away is not known: %v", err)
		return nil, nil
	}
	if !a.asks(inputTaken) {
		return nil, nil
	}
	return nil, a.confirm(ctx, yes, inputTaken)
}

// concerns reports whether a plan says anything of a change.
func (p *proposal) concerns() bool {
	return p.rollback != nil ||
		slices.ContainsFunc(p.deleted, func(key resource.Key) bool { return plan.Concerns(key.Kind) }) ||
		slices.ContainsFunc(p.written, func(r *resource.Resource) bool { return plan.Concerns(r.Key().Kind) })
}

// warnOfFindings prints what an analysis finds because of a change.
func (a *app) warnOfFindings(found []findingView) {
	warnings, notes := (&plan.Plan{Findings: found}).FindingLines()
	for _, warning := range warnings {
		a.Warn(warning)
	}
	for _, note := range notes {
		a.Message("Note: %s", note)
	}
}
