package cli

import (
	"context"
	"crypto/rand"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/past"
	"meridian/internal/plan"
	"meridian/internal/resource"
)

// rollbackOptions are the flags of rollback.
type rollbackOptions struct {
	to            atFlag
	kinds         []string
	mesh          *meshFlag
	dryRun, force bool
	// skipTests goes back although tests of a mesh fail then.
	skipTests bool
	// yes goes back without a question.
	yes    bool
	output *print.FormatFlag
}

func newRollbackCommand(a *app) *cobra.Command {
	var o rollbackOptions
	cmd := &cobra.Command{
		Use:   "rollback --to R [KIND NAME...]",
		Short: "Write what makes the state that of an earlier revision",
		Long: `Write, as one batch, what makes the resources what they were at an earlier
revision: those that were changed since are written as they were, those that were
deleted are created again, and those that were created are deleted. R is a
revision, or a duration such as 2h for how long ago. --kind, -m and names select
which resources.

It takes the rights that writing and deleting these resources takes, and is
refused when anything else was written meanwhile or what was stored then is not
valid any more. The written resources get the time of the rollback, which counts
where times decide between policies.

Never rolled back: secrets, keys, records and revocations of tokens, zones. Roles
and bindings are where --kind or KIND names them. ` + "`meridian diff --from R`" + ` shows
what has changed since, and
'meridian plan rollback' what a rollback would do. What takes access away is shown
first, and on a terminal asked about; --yes answers.`,
		Example: `  meridian rollback --to 2h --dry-run
  meridian rollback --to 1841 -m shop
  meridian rollback --to 1841 Timeout web-timeouts
  meridian rollback --to 1841 --kind TrafficPermission,Timeout`,
		ValidArgsFunction: completeKinds(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.rollback(cmd.Context(), args, &o)
		},
	}
	bindRollback(cmd, &o)
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "do everything but write")
	bindSkipTests(cmd, &o.skipTests)
	bindYes(cmd, &o.yes)
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	return cmd
}

// bindRollback defines what says which state is gone back to, and what of it.
func bindRollback(cmd *cobra.Command, o *rollbackOptions) {
	cmd.Flags().Var(&o.to, "to", "the state to go back to: a revision, or how long ago (required)")
	cmd.Flags().StringSliceVar(&o.kinds, "kind", nil, "only these kinds")
	o.mesh = bindMesh(cmd)
	bindForce(cmd, &o.force)
}

// request is what the flags and arguments ask for.
func (o *rollbackOptions) request(args []string) (*meridianv1.RollbackRequest, error) {
	if !o.to.given() {
		return nil, exit.Usagef("--to is required: the revision to go back to, or how long ago it was")
	}
	if err := o.mesh.check(); err != nil {
		return nil, err
	}
	request := &meridianv1.RollbackRequest{To: o.to.point, DryRun: o.dryRun, Force: o.force, SkipTests: o.skipTests}
	for _, name := range o.kinds {
		kind, err := lookupKind(name)
		if err != nil {
			return nil, err
		}
		request.Kinds = append(request.Kinds, string(kind.Kind))
	}
	if o.mesh.explicit() {
		request.Mesh = o.mesh.name
	}
	if len(args) > 0 {
		if len(o.kinds) > 0 {
			return nil, exit.Usagef("name resources, or kinds with --kind, not both")
		}
		keys, err := namedKeys(args, o.mesh)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if key.Kind != keys[0].Kind {
				return nil, exit.Usagef("the resources of one rollback by name are of one kind; select kinds with --kind")
			}
			request.Mesh = string(key.Mesh)
			request.Names = append(request.Names, key.Name)
		}
		request.Kinds = []string{string(keys[0].Kind)}
	}
	if !o.dryRun {
		request.RequestId = rand.Text()
	}
	return request, nil
}

// plannedRollback is what a rollback would do. A rollback to a point in time is one to the
// revision of then from here on: what was planned is what is made.
func plannedRollback(ctx context.Context, c *client.Client, change *proposal) (*plan.Plan, error) {
	planOnly := proto.CloneOf(change.rollback)
	planOnly.DryRun, planOnly.Plan, planOnly.RequestId = true, true, ""
	planOnly.IfVersions = change.conditions
	response, err := client.Ask(ctx, c, (*client.Client).Rollback, planOnly)
	if err != nil {
		return nil, err
	}
	p, err := decodePlan(response.GetPlan(), response.GetWarnings())
	if err == nil && response.GetToRevision() > 0 {
		change.rollback.To = past.PointOf(resource.Revision(response.GetToRevision()))
	}
	return p, err
}

func (a *app) rollback(ctx context.Context, args []string, o *rollbackOptions) error {
	request, err := o.request(args)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	caused, err := a.askBeforeLoss(ctx, c, &proposal{rollback: request, force: o.force}, o.yes, o.dryRun)
	if err != nil {
		return err
	}
	return a.sendRollback(ctx, c, request, o.output.Value, caused)
}

// sendRollback makes a rollback. caused is what an analysis finds because of it.
func (a *app) sendRollback(ctx context.Context, c *client.Client, request *meridianv1.RollbackRequest, f print.Format, caused []findingView) error {
	response, err := client.Ask(ctx, c, (*client.Client).Rollback, request)
	if err != nil {
		return explainInterrupt(err, request.GetDryRun())
	}
	for _, warning := range response.GetWarnings() {
		a.Warn(warning)
	}
	for _, note := range response.GetNotes() {
		a.Message("Note: %s", note)
	}
	switch {
	case len(response.GetResults()) == 0:
		a.Message("Nothing differs from revision %d.", response.GetToRevision())
	case request.GetDryRun():
		a.Message("Dry run: nothing was written. This would go back to revision %d.", response.GetToRevision())
	case response.GetToRevision() != 0:
		a.Message("Back to revision %d.", response.GetToRevision())
	}
	a.warnOfFindings(caused)
	return a.printResults(f, response.GetResults(), response.GetRevision(), append(viewFindings(response.GetFindings()), caused...))
}
