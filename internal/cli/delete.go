package cli

import (
	"context"
	"crypto/rand"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

func newDeleteCommand(a *app) *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | KIND/NAME... | -f FILE|DIR|-",
		Short: "Delete resources, all of them or none",
		Long: `Delete resources by name, or all that the documents name, in one atomic batch.
If one of them does not exist, nothing is deleted and the exit code is 1. A zone that
is connected is deleted only with --force.

With --rollout, they are deleted in the zones of one stage after the other; see
'meridian rollout'.

With --in-batches, any number of them is deleted in several batches: tests of meshes
and policies first, meshes after what is in them, access rules last. This is no
atomic change. What is not stored is left out, so that repeating the command
continues where it failed.`,
		Example: `  meridian delete traffic-permission allow-all
  meridian delete Timeout/web Retry/web
  meridian delete -f policies/ --dry-run
  meridian delete -f export/ --in-batches`,

		ValidArgsFunction: completeKinds(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.delete(cmd.Context(), args, &o)
		},
	}
	o.files = bindSources(cmd)
	o.mesh = bindMesh(cmd)
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	bindDryRun(cmd, &o.dryRun, "server: do everything but delete")
	bindIfVersion(cmd, &o.ifVersion, "delete only if this version is stored: VERSION of the one resource, or KIND/NAME=VERSION; VERSION@REVISION also names the revision that wrote it; repeatable")
	bindForce(cmd, &o.force)
	bindSkipTests(cmd, &o.skipTests)
	bindYes(cmd, &o.yes)
	bindRollout(cmd, &o.rollout)
	cmd.Flags().BoolVar(&o.inBatches, "in-batches", false, "delete any number of resources in several batches, which are not one atomic change")
	return cmd
}

func (a *app) delete(ctx context.Context, args []string, o *applyOptions) error {
	if o.dryRun != "" && o.dryRun != "server" {
		return exit.Usagef("--dry-run %q: only the server can tell what a deletion would do: write server", o.dryRun)
	}
	if err := o.checkDeleteInBatches(); err != nil {
		return err
	}
	o.files.large = o.inBatches
	keys, err := a.keysToDelete(args, o)
	if err != nil {
		return err
	}
	conditions, err := ifVersions(o.ifVersion, keys)
	if err != nil {
		return err
	}
	if zones := zonesAmong(keys); len(zones) > 0 && !o.force {
		if err := a.checkDisconnected(ctx, zones); err != nil {
			return err
		}
	}
	if o.inBatches {
		return a.deleteInBatches(ctx, o, keys)
	}
	staged, err := o.rollout.options(a.Now())
	if err != nil {
		return err
	}
	request := &meridianv1.DeleteRequest{DryRun: o.dryRun == "server", IfVersions: conditions, Force: o.force, SkipTests: o.skipTests, Rollout: staged}
	for _, k := range keys {
		request.Keys = append(request.Keys, messageKey(k))
	}
	if !request.DryRun {
		request.RequestId = rand.Text()
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	caused, err := a.askBeforeLoss(ctx, c, &proposal{deleted: keys, force: o.force, conditions: conditions}, o.yes, o.files.stdin() || request.GetDryRun())
	if err != nil {
		return err
	}
	response, err := client.Ask(ctx, c, (*client.Client).DeleteBatch, request)
	if err != nil {
		return explainInterrupt(explainTooLarge(err, "`meridian delete --in-batches` deletes it"), request.GetDryRun())
	}
	for _, warning := range response.GetWarnings() {
		a.Warn(warning)
	}
	if request.DryRun {
		a.Message("Dry run: nothing was deleted.")
	} else {
		a.tellRollout(staged, response.GetResults())
	}
	a.warnOfFindings(caused)
	return a.printResults(o.output.Value, response.GetResults(), response.GetRevision(), caused)
}

func zonesAmong(keys []resource.Key) []string {
	var names []string
	for _, k := range keys {
		if k.Kind == resource.KindZone {
			names = append(names, k.Name)
		}
	}
	return names
}

func (a *app) keysToDelete(args []string, o *applyOptions) ([]resource.Key, error) {
	switch {
	case len(args) > 0 && o.files.given():
		return nil, exit.Usagef("name resources, or give documents with -f, not both")
	case len(args) == 0 && !o.files.given():
		return nil, exit.Usagef("missing KIND and NAME, or -f")
	case len(args) > 0:
		return namedKeys(args, o.mesh)
	}
	documents, err := a.load(o.files, o.mesh)
	if err != nil {
		return nil, err
	}
	return keysOf(resourcesOf(documents)), nil
}

// namedKeys are the keys of resources named on the command line.
func namedKeys(args []string, mesh *meshFlag) ([]resource.Key, error) {
	if err := mesh.check(); err != nil {
		return nil, err
	}
	names, err := parseNames(args)
	if err != nil {
		return nil, err
	}
	keys := make([]resource.Key, len(names))
	for i, n := range names {
		if n.name == "" {
			return nil, exit.Usagef("missing NAME: which %s", args[0])
		}
		if keys[i], err = keyOf(n.kind, mesh.name, n.name); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func messageKey(k resource.Key) *meridianv1.ResourceKey {
	return &meridianv1.ResourceKey{Kind: string(k.Kind), Mesh: string(k.Mesh), Name: k.Name}
}
