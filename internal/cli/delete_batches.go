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

// checkDeleteInBatches refuses what is about one batch.
func (o *applyOptions) checkDeleteInBatches() error {
	switch {
	case !o.inBatches:
		return nil
	case len(o.ifVersion) > 0:
		return exit.Usagef("--if-version is a condition on one atomic batch, and --in-batches deletes several: leave one of them out")
	case o.rollout.flags.Changed("rollout"):
		return exit.Usagef("a rollout is one change, and --in-batches makes several: leave --rollout or --in-batches out")
	case o.dryRun != "":
		return exit.Usagef("--dry-run decides one batch, and those of --in-batches build on each other: leave one of them out")
	}
	return nil
}

// deleteRanks order the kinds so that nothing is deleted before what refers to it: the
// order of ranks from its end. Tests of meshes are first, since they are of everything.
// Access rules and signing keys are last, and in batches without other kinds: the caller
// has the same rights until everything else is deleted.
var deleteRanks = map[resource.Kind]int{
	resource.KindMeshTest: -rankOfOthers - 1, resource.KindMesh: 1,
	resource.KindAccessRoleBinding: rankOfAccess, resource.KindAccessRole: rankOfAccess + 1, resource.KindSigningKey: rankOfAccess + 2,
}

// rankOfAccess is where the kinds begin that decide on rights.
const rankOfAccess = 2

func deleteRankOf(kind resource.Kind) int {
	if rank, ok := deleteRanks[kind]; ok {
		return rank
	}
	return -rankOf(kind)
}

// deletion is one resource to delete.
type deletion struct{ key resource.Key }

// Key implements keyed.
func (d deletion) Key() resource.Key { return d.key }

// deletionsOf divides keys into batches of at most so many, in the order in which they can
// be deleted, and otherwise in their own.
func deletionsOf(keys []resource.Key, most int) [][]deletion {
	ordered := make([]deletion, len(keys))
	for i, key := range keys {
		ordered[i] = deletion{key}
	}
	slices.SortStableFunc(ordered, func(a, b deletion) int { return cmp.Compare(deleteRankOf(a.key.Kind), deleteRankOf(b.key.Kind)) })
	access := slices.IndexFunc(ordered, func(d deletion) bool { return deleteRankOf(d.key.Kind) >= rankOfAccess })
	if access < 0 {
		access = len(ordered)
	}
	size := func(d deletion) int { return proto.Size(messageKey(d.key)) }
	return slices.Concat(cutParts(ordered[:access], most, size), cutParts(ordered[access:], most, size))
}

// deletedView is a batch that was deleted, as JSON.
type deletedView struct {
	Revision uint64 `json:"revision"`
	Deleted  int    `json:"deleted"`
}

// deletions is a delete in several batches under way.
type deletions struct {
	batches[deletion]
	options *applyOptions
}

// deleteInBatches deletes resources in several batches, one after the other.
func (a *app) deleteInBatches(ctx context.Context, o *applyOptions, keys []resource.Key) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	p := &deletions{options: o, batches: batches[deletion]{
		app: a, client: c, output: o.output.Value, said: map[string]bool{}, missing: new(int),
		view: func(_ []deletion, answer *partAnswer) any {
			return deletedView{Revision: answer.revision, Deleted: len(answer.results)}
		},
		words: batchWords{
			changed: "deleted", heading: "Deleted", warning: " What that takes away is not looked at beforehand.",
			again: "what is deleted already is left out then.",
		},
	}}
	p.send = p.deletePart
	keys = distinct(keys)
	if err := p.checkMeshes(ctx, keys); err != nil {
		return err
	}
	stored, err := p.stored(ctx, keys)
	if err != nil {
		return err
	}
	if *p.missing = len(keys) - len(stored); *p.missing > 0 {
		a.Message("Note: %d of %s are not stored and left out.", *p.missing, print.Plural(len(keys), "resource"))
	}
	p.all, p.total = deletionsOf(stored, a.partResources), len(stored)
	if p.total == 0 {
		return p.print(true)
	}
	if err := p.announce(ctx, o.yes, o.files.stdin()); err != nil {
		return err
	}
	return p.run(ctx)
}

// distinct returns the keys without repetitions.
func distinct(keys []resource.Key) []resource.Key {
	seen := make(map[resource.Key]bool, len(keys))
	return slices.DeleteFunc(slices.Clone(keys), func(k resource.Key) bool {
		twice := seen[k]
		seen[k] = true
		return twice
	})
}

// checkMeshes finds what is in meshes that are to be deleted and is not to be deleted
// itself, before anything is. What the caller may not list is left to the batch that the
// mesh is in.
func (p *deletions) checkMeshes(ctx context.Context, keys []resource.Key) error {
	var meshes []string
	doomed := make(map[resource.Key]bool, len(keys))
	for _, key := range keys {
		doomed[key] = true
		if key.Kind == resource.KindMesh {
			meshes = append(meshes, key.Name)
		}
	}
	var kept []string
	for _, mesh := range meshes {
		inside, err := p.client.Keys(ctx, &meridianv1.ListRequest{Mesh: mesh})
		if err != nil && rpcerr.CodeOf(err) != rpcerr.Denied {
			return err
		}
		inside = slices.DeleteFunc(inside, func(k resource.Key) bool { return doomed[k] })
		if len(inside) > 0 {
			kept = append(kept, fmt.Sprintf("  mesh %q has %s more, such as %s", mesh, print.Plural(len(inside), "resource"), inside[0]))
		}
	}
	if len(kept) == 0 {
		return nil
	}
	f := exit.Failf(exit.Conflict, "%s not to be empty; nothing was deleted", isOrAre(len(kept), "mesh"))
	f.Details = append(kept[:min(len(kept), maxProblemsListed):min(len(kept), maxProblemsListed)],
		"Delete what is in a mesh together with it, or leave the mesh out.")
	return f
}

// listedFrom is from how many keys of a kind in a mesh on they are looked up in a list of
// all of that kind and mesh, and not one by one.
const listedFrom = 64

// stored returns the keys that are stored, in order. Those that the caller may not read are
// among them: what becomes of them is decided with their batch.
func (p *deletions) stored(ctx context.Context, keys []resource.Key) ([]resource.Key, error) {
	groups := map[resource.Key][]resource.Key{}
	for _, key := range keys {
		of := resource.Key{Kind: key.Kind, Mesh: key.Mesh}
		groups[of] = append(groups[of], key)
	}
	missing := map[resource.Key]bool{}
	for _, of := range slices.SortedFunc(maps.Keys(groups), resource.Key.Compare) {
		gone, err := p.missingOf(ctx, of, groups[of])
		if err != nil {
			return nil, err
		}
		for _, key := range gone {
			missing[key] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k resource.Key) bool { return missing[k] }), nil
}

// missingOf returns those of the keys of one kind and mesh that are not stored.
func (p *deletions) missingOf(ctx context.Context, of resource.Key, keys []resource.Key) (gone []resource.Key, err error) {
	if len(keys) >= listedFrom {
		found, err := p.client.Keys(ctx, &meridianv1.ListRequest{Kinds: []string{string(of.Kind)}, Mesh: string(of.Mesh)})
		if rpcerr.CodeOf(err) == rpcerr.Denied {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		there := make(map[resource.Key]bool, len(found))
		for _, key := range found {
			there[key] = true
		}
		return slices.DeleteFunc(slices.Clone(keys), func(k resource.Key) bool { return there[k] }), nil
	}
	for _, key := range keys {
		_, err := client.Ask(ctx, p.client, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(key)})
		switch code := rpcerr.CodeOf(err); {
		case code == rpcerr.NotFound:
			gone = append(gone, key)
		case err != nil && code != rpcerr.Denied:
			return nil, err
		}
	}
	return gone, nil
}

// deletePart deletes one batch. What another writer has deleted meanwhile is left out.
func (p *deletions) deletePart(ctx context.Context, part []deletion) (*partAnswer, error) {
	keys := make([]resource.Key, len(part))
	for i, d := range part {
		keys[i] = d.key
	}
	answer, err := p.sendKeys(ctx, keys)
	if rpcerr.CodeOf(err) != rpcerr.NotFound {
		return answer, err
	}
	stored, failed := p.stored(ctx, keys)
	if failed != nil || len(stored) == len(keys) {
		return nil, err
	}
	*p.missing += len(keys) - len(stored)
	if len(stored) == 0 {
		return &partAnswer{revision: p.revision}, nil
	}
	return p.sendKeys(ctx, stored)
}

func (p *deletions) sendKeys(ctx context.Context, keys []resource.Key) (*partAnswer, error) {
	request := &meridianv1.DeleteRequest{RequestId: rand.Text(), Force: p.options.force, SkipTests: p.options.skipTests}
	for _, key := range keys {
		request.Keys = append(request.Keys, messageKey(key))
	}
	response, err := client.Ask(ctx, p.client, (*client.Client).DeleteBatch, request)
	return &partAnswer{results: response.GetResults(), revision: response.GetRevision(), warnings: response.GetWarnings()}, err
}
