package admin

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/commit"
	"meridian/internal/past"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// neverRolledBack are the kinds that say who is trusted: what was revoked, deleted or
// disabled since does not come back (§6.8, §7.7). Nor does a rollout that has continued or
// is over.
var neverRolledBack = []resource.Kind{
	resource.KindGlobalSecret, resource.KindSecret, resource.KindSigningKey,
	resource.KindTokenRevocation, resource.KindIssuedToken, resource.KindZone, resource.KindRollout,
}

// accessKinds are rolled back only where they are named.
var accessKinds = []resource.Kind{resource.KindAccessRole, resource.KindAccessRoleBinding}

// Rollback writes, as one batch, what makes the state that of an earlier point in time.
func (s *Service) Rollback(ctx context.Context, req *meridianv1.RollbackRequest) (response *meridianv1.RollbackResponse, err error) {
	if err := checkFields(req); err != nil {
		return nil, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	if err := checkRequest(req.GetRequestId(), req.GetDryRun() || req.GetPlan(), 1); err != nil {
		return nil, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	b := rollback{Service: s, req: req}
	if err := b.choose(); err != nil {
		return nil, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	if err := past.Await(ctx, s.written(), req.GetTo()); err != nil {
		return nil, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	// What is read to decide is not larger than what may be written.
	err = s.cfg.Turns.Hold(ctx, MaxBatchBytes, func() error { return b.run(ctx) })
	if err != nil {
		return nil, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	warnings, notes := b.said.lines()
	response = &meridianv1.RollbackResponse{
		Results: encodeResults(b.result.Results), Revision: uint64(b.result.Revision), ToRevision: uint64(b.to),
		Warnings: warnings, Notes: notes, Findings: b.said.encode(), Plan: b.planned,
	}
	showNames(response.GetResults(), b.shown)
	return response, nil
}

// rollback is one that is being decided.
type rollback struct {
	*Service
	req   *meridianv1.RollbackRequest
	kinds []*resource.Descriptor
	names map[string]bool

	said   remarks
	result store.Result
	// to is the revision that is gone back to; 0 where the request was applied before.
	to    resource.Revision
	shown map[resource.Key]string
	// planned is what it would do, where that was asked for.
	planned []byte
}

// written is the store of what is written here.
func (s *Service) written() *store.Store {
	stores := s.cfg.Stores()
	return stores[len(stores)-1]
}

// choose reads which resources are meant.
func (b *rollback) choose() error {
	named, err := descriptors(b.req.GetKinds())
	if err != nil {
		return rpcerr.New(rpcerr.Invalid, "UNKNOWN_KIND", "%w", err)
	}
	for _, d := range named {
		switch err := b.cfg.Owns(d); {
		case slices.Contains(neverRolledBack, d.Kind):
			if len(b.req.GetKinds()) > 0 {
				return rpcerr.New(rpcerr.Invalid, "NOT_ROLLED_BACK",
					"%s: what says who is trusted is never rolled back: secrets, keys, records and revocations of tokens, zones; nor is a rollout", d.Kind)
			}
			continue
		case err != nil:
			if len(b.req.GetKinds()) > 0 {
				return rpcerr.New(rpcerr.Invalid, "NOT_OWNED_HERE", "%w", err)
			}
			continue
		case slices.Contains(accessKinds, d.Kind) && len(b.req.GetKinds()) == 0:
			continue
		}
		b.kinds = append(b.kinds, d)
	}
	slices.SortFunc(b.kinds, func(x, y *resource.Descriptor) int { return cmp.Compare(x.Kind, y.Kind) })
	b.kinds = slices.Compact(b.kinds)
	if len(b.req.GetNames()) > 0 {
		b.names = map[string]bool{}
		for _, name := range b.req.GetNames() {
			b.names[name] = true
		}
	}
	return nil
}

// takes reports whether a resource is meant.
func (b *rollback) takes(key resource.Key) bool {
	if mesh := b.req.GetMesh(); mesh != "" && string(key.Mesh) != mesh && (key.Kind != resource.KindMesh || key.Name != mesh) {
		return false
	}
	return b.names == nil || b.names[key.Name]
}

// scopeOfRollback is what a request id of a rollback is unique for.
func scopeOfRollback(req *meridianv1.RollbackRequest) proto.Message {
	return &meridianv1.RollbackRequest{To: req.GetTo(), Kinds: req.GetKinds(), Mesh: req.GetMesh(), Names: req.GetNames()}
}

// run decides and writes. A state that changes meanwhile is decided on again.
func (b *rollback) run(ctx context.Context) (err error) {
	d := &deciding{size: MaxBatchBytes, dryRun: b.req.GetDryRun() || b.req.GetPlan(), force: b.req.GetForce(), plan: b.req.GetPlan(), skipTests: b.req.GetSkipTests()}
	if d.attempt, err = authn.ScopedRequestID(ctx, b.req.GetRequestId(), scopeOfRollback(b.req)); err != nil {
		return err
	}
	return b.decide(ctx, d, &b.result, func(store.Reader) error {
		for range commit.MaxDecisions {
			if err := commit.Newest(ctx, b.cfg.Writer); err != nil {
				return err
			}
			err := b.attempt(ctx, d)
			if !rpcerr.HasReason(err, commit.ReasonStateChanged) {
				return err
			}
		}
		return rpcerr.New(rpcerr.Unavailable, commit.ReasonContention,
			"the state changed %d times while the rollback was decided; retry it, or select less with --kind, --mesh or a name", commit.MaxDecisions)
	})
}

// attempt decides on the newest state and writes, unless that has changed by then.
func (b *rollback) attempt(ctx context.Context, d *deciding) error {
	own := b.written()
	now := own.View()
	state, err := past.At(own, b.req.GetTo(), b.cfg.Now())
	if err != nil {
		return err
	}
	b.to, b.said, b.shown = state.Revision(), nil, map[resource.Key]string{}
	var ops []store.Op
	err = b.cfg.Turns.Work(ctx, d.size, func() (err error) {
		ops, err = b.changes(ctx, now, state)
		return err
	})
	if err != nil {
		return err
	}
	conditions, err := b.conditions(ops)
	if err != nil {
		return err
	}
	if len(ops) == 0 {
		b.result = store.Result{Revision: now.Revision()}
		if d.plan {
			b.planned, err = b.plan(ctx, store.Txn{Time: b.cfg.Now()}, nil)
		}
		return err
	}
	changed := now.Changed()
	txn := store.Txn{RequestID: d.attempt, Time: b.cfg.Now(), Ops: ops, UnchangedSince: &changed}
	b.result, err = b.commit(ctx, txn, conditions, d, &b.said)
	b.planned = d.planned
	return err
}

// conditions are those of the request on what the rollback changes. Where there are any,
// they are about exactly that: another change has been made since they were written.
func (b *rollback) conditions(ops []store.Op) ([]commit.Condition, error) {
	given := b.req.GetIfVersions()
	if len(given) == 0 {
		return nil, nil
	}
	left := make(map[resource.Key]bool, len(given))
	for _, c := range given {
		key, err := lookupKey(c.GetKey())
		if err != nil {
			return nil, err
		}
		left[key] = true
	}
	for _, op := range ops {
		if !left[op.Key] {
			return nil, rpcerr.New(rpcerr.Conflict, commit.ReasonVersion,
				"%s differs from what it was at revision %d, and the rollback is not to change it", describeKey(op.Key), b.to)
		}
		delete(left, op.Key)
	}
	if len(left) > 0 {
		key := slices.MinFunc(slices.Collect(maps.Keys(left)), resource.Key.Compare)
		return nil, rpcerr.New(rpcerr.Conflict, commit.ReasonVersion,
			"%s is what it was at revision %d, and the rollback was to change it", describeKey(key), b.to)
	}
	return conditionsOf(given, ops)
}

// checkNamed fails for a resource or mesh that was named and is nowhere: a misspelled name
// differs from nothing.
func (b *rollback) checkNamed(ctx context.Context, then *store.Past, known map[string]bool) error {
	missing := func(key resource.Key) error {
		if err := b.cfg.Access.ReadKey(ctx, key); err != nil {
			return err // as if it were there
		}
		return rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s does not exist, and did not at revision %d", describeKey(key), then.Revision())
	}
	for _, name := range b.req.GetNames() {
		if len(b.kinds) == 0 || known[name] {
			continue
		}
		key := resource.Key{Kind: b.kinds[0].Kind, Mesh: resource.MeshName(b.req.GetMesh()), Name: name}
		if b.kinds[0].Scope != resource.MeshScoped {
			key.Mesh = ""
		}
		return missing(key)
	}
	mesh := resource.Key{Kind: resource.KindMesh, Name: b.req.GetMesh()}
	if mesh.Name == "" {
		return nil
	}
	_, is := b.cfg.View().Get(mesh)
	if _, was := then.Get(mesh); is || was || len(known) > 0 {
		return nil
	}
	return missing(mesh)
}

// changes returns what leads from a state to an earlier one, in key order. What the
// caller may not read stays as it is, and is not told of.
func (b *rollback) changes(ctx context.Context, now *store.View, then *store.Past) ([]store.Op, error) {
	var (
		wrong problems
		puts  []*resource.Resource
		out   = map[resource.Key]store.Op{}
		size  int
		known = map[string]bool{} // names of resources that are or were there
	)
	for _, d := range b.kinds {
		for r := range then.List(d.Kind, "") {
			stored, there := now.Get(r.Key())
			if b.takes(r.Key()) && b.maySeePast(ctx, r) == nil {
				known[r.Key().Name] = true
			}
			if !b.takes(r.Key()) || there && equalContent(stored, r) || b.maySeePast(ctx, r) != nil {
				continue
			}
			checked, advice, err := b.decodeOne(Encode(r))
			if err != nil {
				if !wrong.full() {
					wrong.add(len(puts), r.Key(), err)
				}
				continue
			}
			for _, p := range advice {
				b.said = append(b.said, policy.Advice{Key: r.Key(), Problem: p})
			}
			puts = append(puts, checked)
			if size += r.Size(); size > MaxBatchBytes {
				return nil, checkSize("writes and removes", int64(size))
			}
		}
		for r := range now.List(d.Kind, "") {
			if b.takes(r.Key()) && b.cfg.Access.Read(ctx, r) == nil {
				known[r.Key().Name] = true
			}
			if _, there := then.Get(r.Key()); there || !b.takes(r.Key()) || b.cfg.Access.Read(ctx, r) != nil {
				continue
			}
			out[r.Key()] = store.Delete(r.Key())
			meta := r.Meta()
			b.shown[r.Key()] = meta.Shown()
			size += r.Size()
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	if err := b.checkNamed(ctx, then, known); err != nil {
		return nil, err
	}
	if err := wrong.err(); err != nil {
		return nil, err
	}
	if err := checkSize("writes and removes", int64(size)); err != nil {
		return nil, err
	}
	prepared, err := b.prepare(ctx, b.cfg.View(), puts)
	if err != nil {
		return nil, err
	}
	for _, r := range prepared {
		meta := r.Meta()
		out[r.Key()], b.shown[r.Key()] = store.Put(r), meta.Shown()
	}
	ops := make([]store.Op, 0, len(out))
	for _, key := range slices.SortedFunc(maps.Keys(out), resource.Key.Compare) {
		ops = append(ops, out[key])
	}
	return ops, nil
}

// equalContent reports whether two resources have the same labels and spec.
func equalContent(a, b *resource.Resource) bool {
	return bytes.Equal(a.Canonical(), b.Canonical()) && maps.Equal(a.Meta().Labels, b.Meta().Labels)
}
