package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/batch"
	"meridian/internal/commit"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// Apply creates or updates a batch atomically.
func (s *Service) Apply(stream grpc.ClientStreamingServer[meridianv1.ApplyRequest, meridianv1.ApplyResponse]) error {
	ctx := stream.Context()
	req, err := batch.ReceiveApply(stream, func(m *meridianv1.ApplyRequest) error {
		keys := make([]resource.Key, len(m.GetResources()))
		for i, r := range m.GetResources() {
			keys[i] = resource.Key{Kind: resource.Kind(r.GetKind()), Mesh: resource.MeshName(r.GetMesh()), Name: r.GetName()}
		}
		if err := s.early(ctx, false, keys); err != nil {
			return err
		}
		return checkFields(m)
	})
	switch {
	case req == nil:
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	case err != nil:
		if applied, ok := s.applied(ctx, req.GetRequestId(), req.GetDryRun() || req.GetPlan(), scopeOfApply(req)); ok {
			return stream.SendAndClose(applyResponse(applied, nil))
		}
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	response, err := s.ApplyBatch(ctx, req)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// checkFields refuses a message of a batch with fields that this release does not
// know. One of them may be a condition on the write, such as that of an earlier
// release: without it, the write of another client would be lost.
func checkFields(m proto.Message) error {
	if len(m.ProtoReflect().GetUnknown()) == 0 {
		return nil
	}
	return rpcerr.New(rpcerr.Invalid, "UNKNOWN_FIELDS",
		"the request has fields that this server does not know: the client is newer or older; use the same release")
}

// early refuses a caller whom no rule lets write what a message names, on the
// newest state: nothing else is received or decoded of the batch (§6.4 decides the
// others).
func (s *Service) early(ctx context.Context, deletion bool, keys []resource.Key) error {
	if s.cfg.Access.Early(ctx, deletion, keys...) == nil {
		return nil
	}
	if _, err := s.read(ctx, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE); err != nil {
		return err
	}
	return s.cfg.Access.Early(ctx, deletion, keys...)
}

// applied returns what became of a request that was applied before.
func (s *Service) applied(ctx context.Context, id string, dryRun bool, scope proto.Message) (store.Result, bool) {
	if dryRun {
		return store.Result{}, false
	}
	attempt, err := authn.ScopedRequestID(ctx, id, scope)
	if err != nil {
		return store.Result{}, false
	}
	return s.cfg.Applied(attempt)
}

// scopeOfApply is what a request id of a batch is unique for.
func scopeOfApply(req *meridianv1.ApplyRequest) proto.Message {
	return &meridianv1.ApplyRequest{Resources: req.GetResources(), Rollout: req.GetRollout()}
}

// ApplyBatch is Apply for a batch that has been received, and that no early look at
// its identities has refused.
func (s *Service) ApplyBatch(ctx context.Context, req *meridianv1.ApplyRequest) (response *meridianv1.ApplyResponse, err error) {
	if err := checkRequest(req.GetRequestId(), req.GetDryRun() || req.GetPlan(), len(req.GetResources())); err != nil {
		return nil, err
	}
	if err := s.checkRollout(req.GetRollout()); err != nil {
		return nil, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	if req.GetRollout() != nil && req.GetKeepTimes() {
		return nil, rpcerr.WithEffect(rpcerr.New(rpcerr.Invalid, "INVALID_ROLLOUT", "the times of documents cannot be kept by a rollout: apply without --keep-times"), rpcerr.EffectNone)
	}
	size := int64(proto.Size(req))
	if err := checkSize("holds", size); err != nil {
		return nil, err
	}
	err = s.cfg.Turns.Hold(ctx, size, func() error {
		result, said, planned, err := s.apply(ctx, req, size)
		if err == nil {
			response = applyResponse(result, said)
			response.Plan = planned
			showNames(response.GetResults(), namesIn(req.GetResources()))
		}
		return err
	})
	return response, rpcerr.WithEffect(err, rpcerr.EffectNone)
}

func applyResponse(result store.Result, said remarks) *meridianv1.ApplyResponse {
	warnings, notes := said.lines()
	return &meridianv1.ApplyResponse{
		Results: encodeResults(result.Results), Revision: uint64(result.Revision),
		Warnings: warnings, Notes: notes, Findings: said.encode(),
	}
}

func (s *Service) apply(ctx context.Context, req *meridianv1.ApplyRequest, size int64) (result store.Result, said remarks, planned []byte, err error) {
	d := &deciding{size: size, dryRun: req.GetDryRun() || req.GetPlan(), force: req.GetForce(), plan: req.GetPlan(), skipTests: req.GetSkipTests(), rollout: req.GetRollout()}
	var (
		batch   []*resource.Resource
		advised remarks
		again   bool
	)
	err = s.cfg.Turns.Work(ctx, size, func() (err error) {
		if d.attempt, err = authn.ScopedRequestID(ctx, req.GetRequestId(), scopeOfApply(req)); err != nil {
			return err
		}
		if result, again = s.appliedAs(d); again {
			return nil
		}
		batch, advised, err = s.decode(ctx, req.GetResources())
		return err
	})
	if err != nil || again {
		return result, said, nil, err
	}
	err = s.decide(ctx, d, &result, func(view store.Reader) error {
		said = slices.Clone(advised)
		result, err = s.applyOn(ctx, view, d, req, batch, &said)
		return err
	})
	return result, said, d.planned, err
}

func (s *Service) applyOn(ctx context.Context, view store.Reader, d *deciding, req *meridianv1.ApplyRequest, batch []*resource.Resource, said *remarks) (store.Result, error) {
	txn := store.Txn{RequestID: d.attempt, Time: s.cfg.Now()}
	var conditions []commit.Condition
	err := s.cfg.Turns.Work(ctx, d.size, func() error {
		prepared, err := s.prepare(ctx, view, batch)
		if err != nil {
			return err
		}
		for _, r := range prepared {
			if m := r.Meta(); req.GetKeepTimes() && m.ModificationTime.IsZero() && !m.CreationTime.IsZero() {
				m.ModificationTime = m.CreationTime // §1.1: as in eval, never modified since
				r = r.WithMeta(m)
			}
			txn.Ops = append(txn.Ops, store.Op{Key: r.Key(), Resource: r, KeepTimes: req.GetKeepTimes()})
		}
		if conditions, err = conditionsOf(req.GetIfVersions(), txn.Ops); err != nil {
			return err
		}
		if req.GetKeepTimes() {
			return checkTimes(prepared, txn.Time)
		}
		return nil
	})
	if err != nil {
		return store.Result{}, err
	}
	return s.commit(ctx, txn, conditions, d, said)
}

// Delete removes a batch atomically.
func (s *Service) Delete(stream grpc.ClientStreamingServer[meridianv1.DeleteRequest, meridianv1.DeleteResponse]) error {
	ctx := stream.Context()
	req, err := batch.ReceiveDelete(stream, func(m *meridianv1.DeleteRequest) error {
		keys := make([]resource.Key, len(m.GetKeys()))
		for i, k := range m.GetKeys() {
			keys[i] = resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
		}
		if err := s.early(ctx, true, keys); err != nil {
			return err
		}
		return checkFields(m)
	})
	switch {
	case req == nil:
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	case err != nil:
		if applied, ok := s.applied(ctx, req.GetRequestId(), req.GetDryRun() || req.GetPlan(), scopeOfDelete(req)); ok {
			return stream.SendAndClose(deleteResponse(applied, nil))
		}
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	response, err := s.DeleteBatch(ctx, req)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

func scopeOfDelete(req *meridianv1.DeleteRequest) proto.Message {
	return &meridianv1.DeleteRequest{Keys: req.GetKeys(), Rollout: req.GetRollout()}
}

func deleteResponse(result store.Result, said remarks) *meridianv1.DeleteResponse {
	warnings, _ := said.lines()
	return &meridianv1.DeleteResponse{Results: encodeResults(result.Results), Revision: uint64(result.Revision), Warnings: warnings}
}

// DeleteBatch is Delete for a batch that has been received, and that no early look
// at its identities has refused.
func (s *Service) DeleteBatch(ctx context.Context, req *meridianv1.DeleteRequest) (response *meridianv1.DeleteResponse, err error) {
	if err := checkRequest(req.GetRequestId(), req.GetDryRun() || req.GetPlan(), len(req.GetKeys())); err != nil {
		return nil, err
	}
	if err := s.checkRollout(req.GetRollout()); err != nil {
		return nil, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	size := int64(proto.Size(req))
	if err := checkSize("holds", size); err != nil {
		return nil, err
	}
	err = s.cfg.Turns.Hold(ctx, size, func() error {
		shown := map[resource.Key]string{}
		var said remarks
		result, planned, err := s.remove(ctx, req, size, shown, &said)
		if err == nil {
			response = deleteResponse(result, said)
			response.Plan = planned
			showNames(response.GetResults(), shown)
		}
		return err
	})
	return response, rpcerr.WithEffect(err, rpcerr.EffectNone)
}

func (s *Service) remove(ctx context.Context, req *meridianv1.DeleteRequest, size int64, shown map[resource.Key]string, said *remarks) (result store.Result, planned []byte, err error) {
	d := &deciding{size: size, dryRun: req.GetDryRun() || req.GetPlan(), force: req.GetForce(), plan: req.GetPlan(), skipTests: req.GetSkipTests(), rollout: req.GetRollout()}
	if d.attempt, err = authn.ScopedRequestID(ctx, req.GetRequestId(), scopeOfDelete(req)); err != nil {
		return result, nil, err
	}
	err = s.decide(ctx, d, &result, func(view store.Reader) error {
		*said = nil
		result, err = s.deleteOn(ctx, view, d, req, shown, said)
		return err
	})
	return result, d.planned, err
}

// deleteOn removes from a view, and notes in shown what is removed, as people are shown
// its name.
func (s *Service) deleteOn(ctx context.Context, view store.Reader, d *deciding, req *meridianv1.DeleteRequest, shown map[resource.Key]string, said *remarks) (store.Result, error) {
	txn := store.Txn{RequestID: d.attempt, Time: s.cfg.Now()}
	var conditions []commit.Condition
	err := s.cfg.Turns.Work(ctx, d.size, func() (err error) {
		removed := 0
		seen := make(map[resource.Key]bool, len(req.GetKeys()))
		for _, k := range req.GetKeys() {
			if err := ctx.Err(); err != nil {
				return err
			}
			key, err := s.writableKey(k)
			if err != nil {
				return err
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			r, ok := view.Get(key)
			if !ok {
				if s.cfg.Access.ReadKey(ctx, key) == nil {
					return notFound(readableBy(ctx, s.cfg.Access, view), key)
				}
				// It is refused with the others of the batch, as if there were one.
			} else {
				removed += r.Size()
				meta := r.Meta()
				shown[key] = meta.Shown()
			}
			txn.Ops = append(txn.Ops, store.Op{Key: key})
		}
		// A watch shows all that a batch removes in one message. One resource can
		// always be removed, whatever an earlier release let it be.
		if len(seen) > 1 {
			if err := checkSize("removes", int64(removed)); err != nil {
				return err
			}
		}
		conditions, err = conditionsOf(req.GetIfVersions(), txn.Ops)
		return err
	})
	if err != nil {
		return store.Result{}, err
	}
	return s.commit(ctx, txn, conditions, d, said)
}

// checkTimes refuses times to keep that no resource can have: §1.1 decides ties
// by them, and a time to come would win until then.
func checkTimes(resources []*resource.Resource, now time.Time) error {
	var violations []rpcerr.Violation
	for i, r := range resources {
		m := r.Meta()
		var wrong string
		switch {
		case m.CreationTime.After(now) || m.ModificationTime.After(now):
			wrong = "a time in the future cannot be kept; correct it, or apply without --keep-times"
		case !m.ModificationTime.IsZero() && m.ModificationTime.Before(m.CreationTime):
			wrong = "modificationTime is before creationTime; correct it, or apply without --keep-times"
		default:
			continue
		}
		violations = append(violations, rpcerr.Violation{Field: fmt.Sprintf("resources[%d]", i), Description: describeKey(r.Key()) + ": " + wrong})
	}
	if len(violations) == 0 {
		return nil
	}
	return rpcerr.New(rpcerr.Invalid, "INVALID_TIMES", "%s", violations[0].Description).WithViolations(violations...)
}

// conditionsOf checks the conditions of a request against its batch.
func conditionsOf(in []*meridianv1.VersionCondition, ops []store.Op) ([]commit.Condition, error) {
	if len(in) == 0 {
		return nil, nil
	}
	free := make(map[resource.Key]bool, len(ops))
	for _, op := range ops {
		free[op.Key] = true
	}
	out := make([]commit.Condition, len(in))
	for i, c := range in {
		key, err := lookupKey(c.GetKey())
		if err != nil {
			return nil, err
		}
		if !free[key] {
			return nil, rpcerr.New(rpcerr.Invalid, "CONDITION_WITHOUT_RESOURCE",
				"the version condition on %s: the batch does not have the resource, or has another condition on it", describeKey(key))
		}
		free[key] = false
		if c.GetVersion() == 0 && c.GetRevision() != 0 {
			return nil, rpcerr.New(rpcerr.Invalid, "CONDITION_WITHOUT_VERSION",
				"the version condition on %s: version 0, that it must not exist, has no revision", describeKey(key))
		}
		out[i] = commit.Condition{
			Precondition: store.Precondition{Key: key, Version: c.GetVersion(), Revision: resource.Revision(c.GetRevision())},
			OrMissing:    c.GetOrMissing(),
		}
	}
	return out, nil
}

func checkRequest(id string, dryRun bool, n int) error {
	switch {
	case n == 0:
		return rpcerr.New(rpcerr.Invalid, "EMPTY_BATCH", "the batch is empty")
	case id == "" && !dryRun:
		return rpcerr.New(rpcerr.Invalid, "REQUEST_ID_MISSING", "request_id is required, so that a retry takes effect once")
	case len(id) > 128:
		return rpcerr.New(rpcerr.Invalid, "REQUEST_ID_TOO_LONG", "request_id has %d characters; at most 128 are allowed", len(id))
	}
	return nil
}

// checkSize refuses a batch that holds, or removes, too many bytes of resources.
func checkSize(what string, size int64) error {
	if size > MaxBatchBytes {
		return rpcerr.New(rpcerr.Invalid, "BATCH_TOO_LARGE", "the batch %s %.1f MiB of resources; a batch has at most %d MiB: split it",
			what, math.Ceil(float64(size)*10/(1<<20))/10, MaxBatchBytes>>20)
	}
	return nil
}

// decode decodes and checks a whole batch by itself, and reports the problems in
// it. It ends with the caller.
func (s *Service) decode(ctx context.Context, messages []*meridianv1.Resource) ([]*resource.Resource, remarks, error) {
	var (
		said  remarks
		wrong problems
	)
	decoded := make([]*resource.Resource, 0, len(messages))
	first := make(map[resource.Key]int, len(messages))
	for i, m := range messages {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if wrong.full() {
			break
		}
		r, advice, err := s.decodeOne(m)
		if err != nil {
			wrong.add(i, keyOfMessage(m), err)
			continue
		}
		for _, p := range advice {
			said = append(said, policy.Advice{Key: r.Key(), Problem: p})
		}
		if j, ok := first[r.Key()]; ok {
			wrong.add(i, r.Key(), fmt.Errorf("it stands twice in the batch, at %d and %d", j, i))
			continue
		}
		first[r.Key()] = i
		decoded = append(decoded, r)
	}
	if err := wrong.err(); err != nil {
		return nil, nil, err
	}
	return decoded, said, nil
}

func (s *Service) decodeOne(m *meridianv1.Resource) (*resource.Resource, []resource.Problem, error) {
	d, ok := resource.Lookup(m.GetKind())
	if !ok {
		return nil, nil, unknownKind(m.GetKind())
	}
	if err := notByCommand(d.Kind); err != nil {
		return nil, nil, err
	}
	if err := s.cfg.Owns(d); err != nil {
		return nil, nil, err
	}
	r, advice, err := Decode(m)
	if err != nil {
		return nil, nil, err
	}
	if s.cfg.Check != nil {
		if wrong := s.cfg.Check(r.Spec()); len(wrong) > 0 {
			return nil, nil, &resource.DocumentError{Key: r.Key(), Problems: wrong}
		}
	}
	return r, advice, nil
}

// prepare completes the resources of a batch by what is stored, and reports what
// cannot be.
func (s *Service) prepare(ctx context.Context, view store.Reader, batch []*resource.Resource) ([]*resource.Resource, error) {
	if s.cfg.Prepare == nil {
		return batch, nil
	}
	var wrong problems
	out := make([]*resource.Resource, len(batch))
	for i, r := range batch {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var err error
		if out[i], err = s.cfg.Prepare(view, r); err != nil && !wrong.full() {
			wrong.add(i, r.Key(), err)
		}
	}
	return out, wrong.err()
}

func (s *Service) writableKey(k *meridianv1.ResourceKey) (resource.Key, error) {
	key, err := lookupKey(k)
	if err != nil {
		return key, err
	}
	if err := notByCommand(key.Kind); err != nil {
		return key, err
	}
	d, _ := resource.Describe(key.Kind)
	if err := s.cfg.Owns(d); err != nil {
		return key, rpcerr.New(rpcerr.Invalid, "NOT_OWNED_HERE", "%s: %v", describeKey(key), err)
	}
	return key, nil
}

// advise adds what the author of a batch should know, judged by what there will be
// once it is written.
func (s *Service) advise(ctx context.Context, txn store.Txn, said *remarks) error {
	if lint := s.lint(ctx, txn); lint != nil {
		return lint(said)
	}
	return nil
}

// lint looks at what there will be once a batch is written to the state of now, and
// returns what adds advice on the batch; nil where nothing can be said. The work, and the
// preview that it takes, is done by what is returned.
func (s *Service) lint(ctx context.Context, txn store.Txn) func(said *remarks) error {
	var batch []*resource.Resource
	for _, op := range txn.Ops {
		if op.Resource != nil {
			batch = append(batch, op.Resource)
		}
	}
	if len(batch) == 0 || !s.readsAround(ctx, batch) {
		return nil // advice names what is there, and would be wrong from a part of it
	}
	preview := s.cfg.Preview(txn)
	return func(said *remarks) error {
		result, after := preview()
		if err := ctx.Err(); err != nil || result.Err != nil {
			return err // what Propose refuses is refused there
		}
		advice, err := policy.Lint(ctx, after, batch, s.cfg.Surveyors...)
		*said = append(*said, advice...)
		return err
	}
}

// namesIn are the names in a batch, as people are shown them (§1.1).
func namesIn(batch []*meridianv1.Resource) map[resource.Key]string {
	shown := make(map[resource.Key]string, len(batch))
	for _, m := range batch {
		meta := resource.Meta{Key: resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()}, Labels: m.GetLabels()}
		shown[meta.Key] = meta.Shown()
	}
	return shown
}

// showNames puts them beside the stored ones, where they differ.
func showNames(results []*meridianv1.Result, shown map[resource.Key]string) {
	for _, r := range results {
		key := resource.Key{Kind: resource.Kind(r.GetKind()), Mesh: resource.MeshName(r.GetMesh()), Name: r.GetName()}
		if name := shown[key]; name != r.GetName() {
			r.Shown = name
		}
	}
}

func encodeResults(results []store.OpResult) []*meridianv1.Result {
	out := make([]*meridianv1.Result, len(results))
	for i, r := range results {
		out[i] = &meridianv1.Result{
			Kind: string(r.Key.Kind), Mesh: string(r.Key.Mesh), Name: r.Key.Name,
			Outcome: encodeOutcome(r.Outcome), Version: r.Version,
		}
	}
	return out
}

func encodeOutcome(o store.Outcome) meridianv1.Outcome {
	switch o {
	case store.Created:
		return meridianv1.Outcome_OUTCOME_CREATED
	case store.Updated:
		return meridianv1.Outcome_OUTCOME_UPDATED
	case store.Deleted:
		return meridianv1.Outcome_OUTCOME_DELETED
	default:
		return meridianv1.Outcome_OUTCOME_UNCHANGED
	}
}
