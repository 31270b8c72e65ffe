package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	req, err := batch.ReceiveApply(stream)
	if err != nil {
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	response, err := s.ApplyBatch(stream.Context(), req)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// ApplyBatch is Apply for a batch that has been received.
func (s *Service) ApplyBatch(ctx context.Context, req *meridianv1.ApplyRequest) (*meridianv1.ApplyResponse, error) {
	if err := checkRequest(req.GetRequestId(), req.GetDryRun(), len(req.GetResources())); err != nil {
		return nil, err
	}
	if err := checkSize("holds", int64(proto.Size(req))); err != nil {
		return nil, err
	}
	result, said, err := s.apply(ctx, req)
	if err != nil {
		return nil, err
	}
	return &meridianv1.ApplyResponse{
		Results: encodeResults(result.Results), Revision: uint64(result.Revision), Warnings: said.warnings, Notes: said.notes,
	}, nil
}

func (s *Service) apply(ctx context.Context, req *meridianv1.ApplyRequest) (result store.Result, said remarks, err error) {
	attempt, err := authn.ScopedRequestID(ctx, req.GetRequestId(), &meridianv1.ApplyRequest{Resources: req.GetResources()})
	if err != nil {
		return result, said, err
	}
	err = s.decide(ctx, attempt, req.GetDryRun(), &result, func(view store.Reader) error {
		result, said, err = s.applyOn(ctx, view, attempt, req)
		return err
	})
	return result, said, err
}

func (s *Service) applyOn(ctx context.Context, view store.Reader, attempt string, req *meridianv1.ApplyRequest) (store.Result, remarks, error) {
	resources, said, err := s.admit(view, req.GetResources())
	if err != nil {
		return store.Result{}, remarks{}, err
	}
	txn := store.Txn{RequestID: attempt, Time: s.cfg.Now()}
	for _, r := range resources {
		txn.Ops = append(txn.Ops, store.Op{Key: r.Key(), Resource: r, KeepTimes: req.GetKeepTimes()})
	}
	conditions, err := conditionsOf(req.GetIfVersions(), txn.Ops)
	if err != nil {
		return store.Result{}, remarks{}, err
	}
	if req.GetKeepTimes() {
		if err := checkTimes(resources, txn.Time); err != nil {
			return store.Result{}, remarks{}, err
		}
	}
	said.join(s.advise(ctx, txn, resources))
	result, more, err := s.commit(ctx, txn, conditions, writeOptions{dryRun: req.GetDryRun(), force: req.GetForce()})
	said.warnings = append(said.warnings, more...)
	return result, said, err
}

// remarks are what the author of a batch that is accepted should know.
type remarks struct{ warnings, notes []string }

func (r *remarks) add(key resource.Key, p resource.Problem) {
	text := key.String() + ": " + p.String()
	if p.Severity == resource.Info {
		r.notes = append(r.notes, text)
		return
	}
	r.warnings = append(r.warnings, text)
}

func (r *remarks) join(other remarks) {
	r.warnings = append(r.warnings, other.warnings...)
	r.notes = append(r.notes, other.notes...)
}

// Delete removes a batch atomically.
func (s *Service) Delete(stream grpc.ClientStreamingServer[meridianv1.DeleteRequest, meridianv1.DeleteResponse]) error {
	req, err := batch.ReceiveDelete(stream)
	if err != nil {
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	response, err := s.DeleteBatch(stream.Context(), req)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// DeleteBatch is Delete for a batch that has been received.
func (s *Service) DeleteBatch(ctx context.Context, req *meridianv1.DeleteRequest) (*meridianv1.DeleteResponse, error) {
	if err := checkRequest(req.GetRequestId(), req.GetDryRun(), len(req.GetKeys())); err != nil {
		return nil, err
	}
	if err := checkSize("holds", int64(proto.Size(req))); err != nil {
		return nil, err
	}
	attempt, err := authn.ScopedRequestID(ctx, req.GetRequestId(), &meridianv1.DeleteRequest{Keys: req.GetKeys()})
	if err != nil {
		return nil, err
	}
	var result store.Result
	err = s.decide(ctx, attempt, req.GetDryRun(), &result, func(view store.Reader) (err error) {
		result, err = s.deleteOn(ctx, view, attempt, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &meridianv1.DeleteResponse{Results: encodeResults(result.Results), Revision: uint64(result.Revision)}, nil
}

func (s *Service) deleteOn(ctx context.Context, view store.Reader, attempt string, req *meridianv1.DeleteRequest) (store.Result, error) {
	txn := store.Txn{RequestID: attempt, Time: s.cfg.Now()}
	seen := map[resource.Key]bool{}
	size := 0
	for _, k := range req.GetKeys() {
		key, err := s.writableKey(k)
		if err != nil {
			return store.Result{}, err
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		r, ok := view.Get(key)
		if !ok {
			if err := s.cfg.Access.ReadKey(ctx, key); err != nil {
				return store.Result{}, err // as if there were one
			}
			return store.Result{}, notFound(readableBy(ctx, s.cfg.Access, view), key)
		}
		size += r.Size()
		txn.Ops = append(txn.Ops, store.Op{Key: key})
	}
	// A watch shows all that a batch removes in one message. One resource can
	// always be removed, whatever an earlier release let it be.
	if len(seen) > 1 {
		if err := checkSize("removes", int64(size)); err != nil {
			return store.Result{}, err
		}
	}
	conditions, err := conditionsOf(req.GetIfVersions(), txn.Ops)
	if err != nil {
		return store.Result{}, err
	}
	result, _, err := s.commit(ctx, txn, conditions, writeOptions{dryRun: req.GetDryRun(), force: req.GetForce()})
	return result, err
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
		out[i] = commit.Condition{Precondition: store.Precondition{Key: key, Version: c.GetVersion()}, OrMissing: c.GetOrMissing()}
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

// admit decodes and checks a whole batch, and reports every problem in it.
func (s *Service) admit(view store.Reader, messages []*meridianv1.Resource) ([]*resource.Resource, remarks, error) {
	var (
		batch      []*resource.Resource
		said       remarks
		violations []rpcerr.Violation
	)
	first := map[resource.Key]int{}
	for i, m := range messages {
		r, problems, err := s.admitOne(view, m)
		if err != nil {
			violations = append(violations, violationsOf(i, m, err)...)
			continue
		}
		for _, p := range problems {
			said.add(r.Key(), p)
		}
		if j, ok := first[r.Key()]; ok {
			violations = append(violations, rpcerr.Violation{
				Field:       fmt.Sprintf("resources[%d]", i),
				Description: fmt.Sprintf("%s stands twice in the batch, at %d and %d", describeKey(r.Key()), j, i),
			})
			continue
		}
		first[r.Key()] = i
		batch = append(batch, r)
	}
	if len(violations) > 0 {
		return nil, remarks{}, rpcerr.New(rpcerr.Invalid, "INVALID_RESOURCES", "%s", violations[0].Description).WithViolations(violations...)
	}
	return batch, said, nil
}

func (s *Service) admitOne(view store.Reader, m *meridianv1.Resource) (*resource.Resource, []resource.Problem, error) {
	d, ok := resource.Lookup(m.GetKind())
	if !ok {
		return nil, nil, unknownKind(m.GetKind())
	}
	if err := s.cfg.Owns(d); err != nil {
		return nil, nil, err
	}
	r, problems, err := Decode(m)
	if err != nil {
		return nil, nil, err
	}
	if s.cfg.Check != nil {
		if wrong := s.cfg.Check(r.Spec()); len(wrong) > 0 {
			return nil, nil, &resource.DocumentError{Key: r.Key(), Problems: wrong}
		}
	}
	if s.cfg.Prepare != nil {
		if r, err = s.cfg.Prepare(view, r); err != nil {
			return nil, nil, err
		}
	}
	return r, problems, nil
}

func violationsOf(i int, m *meridianv1.Resource, err error) []rpcerr.Violation {
	field := fmt.Sprintf("resources[%d]", i)
	name := describeKey(resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()})
	var document *resource.DocumentError
	if !errors.As(err, &document) {
		return []rpcerr.Violation{{Field: field, Description: name + ": " + err.Error()}}
	}
	var out []rpcerr.Violation
	for _, p := range document.Problems {
		if p.Severity != resource.Error {
			continue
		}
		at := field
		if p.Path != resource.Root {
			at += ".spec." + string(p.Path)
		}
		out = append(out, rpcerr.Violation{Field: at, Description: name + ": " + p.String()})
	}
	return out
}

func (s *Service) writableKey(k *meridianv1.ResourceKey) (resource.Key, error) {
	key, err := lookupKey(k)
	if err != nil {
		return key, err
	}
	d, _ := resource.Describe(key.Kind)
	if err := s.cfg.Owns(d); err != nil {
		return key, rpcerr.New(rpcerr.Invalid, "NOT_OWNED_HERE", "%s: %v", describeKey(key), err)
	}
	return key, nil
}

// advise returns what the author of a batch should know, judged by what there
// will be once it is written.
func (s *Service) advise(ctx context.Context, txn store.Txn, batch []*resource.Resource) remarks {
	var said remarks
	if !s.readsAround(ctx, batch) {
		return said // advice names what is there, and would be wrong from a part of it
	}
	result, after := s.cfg.Preview(txn)
	if result.Err != nil {
		return said // it is about to be refused
	}
	for _, a := range policy.Lint(after, batch, s.cfg.Surveyors...) {
		said.add(a.Key, a.Problem)
	}
	return said
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
