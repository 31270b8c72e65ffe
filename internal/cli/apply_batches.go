package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// checkInBatches refuses what is about one batch.
func (o *applyOptions) checkInBatches() error {
	switch {
	case !o.inBatches:
		return nil
	case len(o.ifVersion) > 0:
		return exit.Usagef("--if-version is a condition on one atomic batch, and --in-batches writes several: leave one of them out")
	case o.rollout.flags.Changed("rollout"):
		return exit.Usagef("a rollout is one change, and --in-batches writes several: leave --rollout or --in-batches out")
	case o.dryRun == "server":
		return exit.Usagef("--dry-run=server decides one batch, and those of --in-batches build on each other: use --dry-run=client, which checks every document")
	}
	return nil
}

// ranks order the kinds that others refer to: a batch contains nothing that a later one
// has to be stored for. Access rules are last but one, so that the caller's rights are
// the same until everything else is written, as for one batch; tests of meshes are last,
// so that they are run on everything.
var ranks = map[resource.Kind]int{
	resource.KindMesh: 0, resource.KindNamespace: 1, resource.KindZone: 1, resource.KindSigningKey: 1,
	resource.KindGlobalSecret: 1, resource.KindSecret: 1, resource.KindDataplane: 2,
	resource.KindGateway: 2, resource.KindMeshGateway: 2,
	resource.KindHTTPRoute: 3, resource.KindGRPCRoute: 3, resource.KindMeshGatewayRoute: 3,
	resource.KindAccessRole: 5, resource.KindAccessRoleBinding: 6, resource.KindMeshTest: 7,
}

// rankOfOthers is the rank of every other kind.
const rankOfOthers = 4

func rankOf(kind resource.Kind) int {
	if rank, ok := ranks[kind]; ok {
		return rank
	}
	return rankOfOthers
}

// inParts divides resources into batches, in the order in which they can be written, and
// otherwise in their own. A batch has at most so many.
func inParts(resources []*resource.Resource, most int) [][]*resource.Resource {
	ordered := slices.Clone(resources)
	slices.SortStableFunc(ordered, func(a, b *resource.Resource) int {
		return cmp.Compare(rankOf(a.Key().Kind), rankOf(b.Key().Kind))
	})
	return cutParts(ordered, most, func(r *resource.Resource) int { return proto.Size(client.Encode(r)) })
}

// partView is a batch that was written, as JSON.
type partView struct {
	Revision  uint64 `json:"revision"`
	Resources int    `json:"resources"`
	Created   int    `json:"created"`
	Updated   int    `json:"updated"`
	Unchanged int    `json:"unchanged"`
}

func viewPart(part []*resource.Resource, answer *partAnswer) any {
	view := partView{Revision: answer.revision, Resources: len(part)}
	for _, r := range answer.results {
		switch r.GetOutcome() {
		case meridianv1.Outcome_OUTCOME_CREATED:
			view.Created++
		case meridianv1.Outcome_OUTCOME_UPDATED:
			view.Updated++
		default:
			view.Unchanged++
		}
	}
	return view
}

// parts is an apply in several batches under way.
type parts struct {
	batches[*resource.Resource]
	options *applyOptions
}

// applyInBatches writes resources as several batches, one after the other.
func (a *app) applyInBatches(ctx context.Context, o *applyOptions, resources []*resource.Resource) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	p := &parts{options: o, batches: batches[*resource.Resource]{
		app: a, client: c, output: o.output.Value, view: viewPart, said: map[string]bool{},
		all: inParts(resources, a.partResources), total: len(resources),
		words: batchWords{
			changed: "written", heading: "Written", warning: " What it takes away is not looked at beforehand.",
			again: "what is written already is unchanged then, and not written again.",
		},
	}}
	p.send = p.writeOne
	a.noteTimes(resources, o.keepTimes)
	if err := p.checkMeshes(ctx); err != nil {
		return err
	}
	if err := p.announce(ctx, o.yes, o.files.stdin()); err != nil {
		return err
	}
	if err := p.run(ctx); err != nil || o.wait == "" {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return a.waitForZones(bounded, c, &meridianv1.WaitForZonesRequest{Revision: p.revision, ConnectedOnly: o.connectedOnly, Enforced: o.wait == "enforced"})
}

// checkMeshes finds meshes that are neither in the input nor stored, before anything is
// written. A mesh that the caller may not read is left to the batch that needs it.
func (p *parts) checkMeshes(ctx context.Context) error {
	first := map[resource.MeshName]resource.Key{}
	given := map[resource.MeshName]bool{}
	for _, part := range p.all {
		for _, r := range part {
			key := r.Key()
			if key.Kind == resource.KindMesh {
				given[resource.MeshName(key.Name)] = true
			}
			if _, seen := first[key.Mesh]; !seen && key.Mesh != "" {
				first[key.Mesh] = key
			}
		}
	}
	var missing []string
	for _, mesh := range slices.Sorted(maps.Keys(first)) {
		if given[mesh] {
			continue
		}
		_, err := client.Ask(ctx, p.client, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(resource.Key{Kind: resource.KindMesh, Name: string(mesh)})})
		switch code := rpcerr.CodeOf(err); {
		case code == rpcerr.NotFound:
			missing = append(missing, fmt.Sprintf("  mesh %q, which %s is in", mesh, first[mesh]))
		case err != nil && code != rpcerr.Denied:
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	f := exit.Failf(exit.Usage, "%s neither in the input nor stored; nothing was written", isOrAre(len(missing), "mesh"))
	f.Details = append(missing[:min(len(missing), maxProblemsListed):min(len(missing), maxProblemsListed)],
		"To create one, add {type: Mesh, name: NAME} to the input.")
	return f
}

func isOrAre(n int, what string) string {
	if n == 1 {
		return print.Plural(n, what) + " is"
	}
	return print.Plural(n, what) + " are"
}

// writeOne writes a batch. Where documents carry versions that are not the stored ones
// any more because an earlier run has written these documents, that is no conflict.
func (p *parts) writeOne(ctx context.Context, part []*resource.Resource) (*partAnswer, error) {
	var conditions []*meridianv1.VersionCondition
	if !p.options.force {
		conditions = documentVersions(part, nil)
	}
	response, err := p.sendPart(ctx, part, conditions)
	if len(conditions) == 0 || !rpcerr.HasReason(err, "VERSION_CONFLICT") {
		return response, err
	}
	written, failed := p.writtenBefore(ctx, part)
	if failed != nil || len(written) == 0 {
		return nil, err
	}
	for _, c := range conditions {
		k := c.GetKey()
		if stored := written[resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}]; stored != nil {
			c.Version, c.Revision, c.OrMissing = stored.GetVersion(), stored.GetRevision(), false
		}
	}
	return p.sendPart(ctx, part, conditions)
}

func (p *parts) sendPart(ctx context.Context, part []*resource.Resource, conditions []*meridianv1.VersionCondition) (*partAnswer, error) {
	o := p.options
	request := &meridianv1.ApplyRequest{RequestId: rand.Text(), IfVersions: conditions, Force: o.force, KeepTimes: o.keepTimes, SkipTests: o.skipTests}
	for _, r := range part {
		message := client.Encode(r)
		if o.keepTimes {
			client.EncodeTimes(message, r)
		}
		request.Resources = append(request.Resources, message)
	}
	response, err := client.Ask(ctx, p.client, (*client.Client).ApplyBatch, request)
	return &partAnswer{
		results: response.GetResults(), revision: response.GetRevision(), findings: response.GetFindings(),
		warnings: response.GetWarnings(), notes: response.GetNotes(),
	}, err
}

// writtenBefore are the resources of a batch with a version that are stored as their
// documents have them.
func (p *parts) writtenBefore(ctx context.Context, part []*resource.Resource) (map[resource.Key]*meridianv1.Resource, error) {
	found := map[resource.Key]*meridianv1.Resource{}
	for _, r := range part {
		if r.Meta().Version == 0 {
			continue
		}
		response, err := client.Ask(ctx, p.client, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(r.Key())})
		if rpcerr.CodeOf(err) == rpcerr.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		stored := response.GetResource()
		if string(stored.GetSpec()) == string(r.Canonical()) && maps.Equal(stored.GetLabels(), r.Meta().Labels) {
			found[r.Key()] = stored
		}
	}
	return found, nil
}
