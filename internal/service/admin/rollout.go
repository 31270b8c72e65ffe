package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/commit"
	"meridian/internal/resource"
	"meridian/internal/rollout"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// reasonRolloutExists is why a rollout is not begun under a name.
const reasonRolloutExists = "ROLLOUT_EXISTS"

// RolloutConfig is what a server knows that has changes reach the zones by stages.
type RolloutConfig struct {
	// Enabled names the zones that may connect, in order.
	Enabled func() []resource.ZoneName
	// Conditions compiles the conditions that halt rollouts.
	Conditions *rollout.Conditions
	// Observe says what is known of the zones with regard to stored rollouts, in their
	// order. It asks the zones as the conditions need it.
	Observe func(ctx context.Context, rollouts []*resource.Resource) []rollout.Observation
}

// checkRollout refuses options of a rollout that this server cannot begin.
func (s *Service) checkRollout(o *meridianv1.RolloutOptions) error {
	if o == nil {
		return nil
	}
	if s.cfg.Rollouts == nil {
		return rpcerr.New(rpcerr.Invalid, "NO_ROLLOUTS_HERE", "a change reaches the zones by stages from the global: apply it there")
	}
	if err := s.cfg.Rollouts.Conditions.Check(o.GetHaltOn()); err != nil {
		return rpcerr.New(rpcerr.Invalid, "INVALID_ROLLOUT", "rollout %s: the condition that halts it: %w", o.GetName(), err)
	}
	if o.GetInterval().AsDuration() < 0 {
		return rpcerr.New(rpcerr.Invalid, "INVALID_ROLLOUT", "rollout %s: the interval cannot be negative", o.GetName())
	}
	if err := rollout.CheckStages(decodeStages(o.GetStages())); err != nil {
		return rpcerr.New(rpcerr.Invalid, "INVALID_ROLLOUT", "rollout %s: %w", o.GetName(), err)
	}
	return nil
}

// notByCommand refuses a Rollout that is written as other resources are.
func notByCommand(kind resource.Kind) error {
	if kind != resource.KindRollout {
		return nil
	}
	return rpcerr.New(rpcerr.Invalid, "ROLLOUT_BY_COMMAND",
		"a Rollout is begun by `meridian apply --rollout`, and ended by `meridian rollout promote` or `meridian rollout abort`; the control plane removes those that have ended")
}

func decodeStages(in []*meridianv1.RolloutStage) []resource.RolloutStage {
	var out []resource.RolloutStage
	for _, stage := range in {
		s := resource.RolloutStage{Zones: stage.GetZones(), All: stage.GetAll()}
		if percent := stage.GetPercent(); percent != 0 {
			s.Percent = &percent
		}
		out = append(out, s)
	}
	return out
}

func encodeStages(in []resource.RolloutStage) []*meridianv1.RolloutStage {
	out := make([]*meridianv1.RolloutStage, len(in))
	for i, stage := range in {
		out[i] = &meridianv1.RolloutStage{Zones: stage.Zones, All: stage.All}
		if stage.Percent != nil {
			out[i].Percent = *stage.Percent
		}
	}
	return out
}

// begin turns a batch that the caller may make into one that begins a rollout of it. A
// batch that changes nothing becomes an empty one.
//
// What is stored of each resource is what the batch was decided on: the rollout replaces
// these versions, and is begun only if they are stored then.
func (s *Service) begin(ctx context.Context, d *deciding, batch commit.Batch) (commit.Batch, error) {
	view := s.cfg.View()
	key := rollout.Key(d.rollout.GetName())
	if _, exists := view.Get(key); exists {
		return batch, rpcerr.New(rpcerr.Conflict, reasonRolloutExists, "rollout %s exists already: choose another name with --rollout-name", key.Name)
	}
	if result, _ := s.cfg.Preview(batch.Txn)(); result.Err != nil {
		return batch, commit.Explain(result.Err)
	}
	decided := make(map[resource.Key]uint64, len(batch.Preconditions))
	for _, p := range batch.Preconditions {
		decided[p.Key] = p.Version
	}
	var changes []resource.RolloutChange
	for _, op := range batch.Ops {
		if !resource.InRollouts(op.Key.Kind) {
			return batch, rpcerr.New(rpcerr.Invalid, "NOT_IN_ROLLOUTS", "%s cannot reach the zones by stages: apply it without --rollout", describeKey(op.Key))
		}
		change := resource.RolloutChange{Replaces: decided[op.Key]}
		if op.Resource == nil {
			change.Delete = &resource.RolloutKey{Type: op.Key.Kind, Mesh: op.Key.Mesh, Name: op.Key.Name}
		} else {
			if stored, ok := view.Get(op.Key); ok && equalContent(stored, op.Resource) {
				continue
			}
			change.Put = resource.NewRolloutDocument(op.Resource)
		}
		changes = append(changes, change)
	}
	if len(changes) == 0 {
		batch.Ops, batch.Preconditions = nil, nil
		return batch, nil
	}
	r, err := rollout.New(rollout.Begin{
		Name: key.Name, Stages: decodeStages(d.rollout.GetStages()), Interval: d.rollout.GetInterval().AsDuration(), Manual: d.rollout.GetManual(),
		HaltOn: d.rollout.GetHaltOn(), Author: authn.PrincipalFrom(ctx).Name, Changes: changes,
	}, s.cfg.Rollouts.Enabled(), s.cfg.Now())
	if err != nil {
		var document *resource.DocumentError
		if errors.As(err, &document) && slices.ContainsFunc(document.Problems, func(p resource.Problem) bool { return p.Path == resource.Root }) {
			return batch, rpcerr.New(rpcerr.Invalid, "ROLLOUT_TOO_LARGE", "rollout %s: %w: all of the change is stored in the Rollout; split the batch into several rollouts", key.Name, err)
		}
		return batch, rpcerr.New(rpcerr.Invalid, "INVALID_ROLLOUT", "rollout %s: %w", key.Name, err)
	}
	batch.Ops = []store.Op{store.Put(r)}
	permit, err := s.cfg.Access.Write(ctx, batch.Ops, false)
	if err != nil {
		return batch, err
	}
	if permit.AccessRevision != *batch.AccessRevision {
		return batch, rpcerr.New(rpcerr.Unavailable, commit.ReasonContention, "the access rules changed while the rollout was decided; retry it")
	}
	batch.Preconditions = append(slices.Clone(batch.Preconditions), permit.Preconditions...)
	return batch, nil
}

// skipInRollout has the tests of meshes not stop the rollout that a batch stores.
func skipInRollout(batch *commit.Batch, meshes []resource.MeshName) error {
	for i, op := range batch.Ops {
		if op.Key.Kind != resource.KindRollout {
			continue
		}
		r, err := rollout.SkipTests(op.Resource, meshes)
		if err != nil {
			return rpcerr.New(rpcerr.Invalid, "INVALID_ROLLOUT", "rollout %s: %w", op.Key.Name, err)
		}
		batch.Ops[i] = store.Put(r)
	}
	return nil
}

// unchanged is the result of a batch that begins no rollout, since it changes nothing.
func (s *Service) unchanged(ops []store.Op) store.Result {
	view := s.cfg.View()
	result := store.Result{Revision: view.Revision()}
	for _, op := range ops {
		r := store.OpResult{Key: op.Key, Outcome: store.Unchanged}
		if stored, ok := view.Get(op.Key); ok {
			r.Version = stored.Meta().Version
		}
		result.Results = append(result.Results, r)
	}
	return result
}

// Rollouts is the service about changes that reach the zones by stages. It implements
// meridianv1.RolloutServiceServer and is safe for concurrent use.
type Rollouts struct {
	meridianv1.UnimplementedRolloutServiceServer
	*Service
}

// ListRollouts returns the rollouts that the caller may read, by name.
func (s *Rollouts) ListRollouts(ctx context.Context, req *meridianv1.ListRolloutsRequest) (*meridianv1.ListRolloutsResponse, error) {
	if err := s.cfg.Access.CouldRead(ctx, resource.KindRollout, ""); err != nil {
		return nil, err
	}
	view, err := s.read(ctx, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	var found []*resource.Resource
	for r := range view.List(resource.KindRollout, "") {
		if (req.GetName() == "" || r.Key().Name == req.GetName()) && s.cfg.Access.Read(ctx, r) == nil {
			found = append(found, r)
		}
	}
	if key := rollout.Key(req.GetName()); key.Name != "" && len(found) == 0 {
		if err := s.cfg.Access.ReadKey(ctx, key); err != nil {
			return nil, err
		}
		return nil, notFound(readableBy(ctx, s.cfg.Access, view), key)
	}
	response := &meridianv1.ListRolloutsResponse{Revision: uint64(view.Revision())}
	observed := s.cfg.Rollouts.Observe(ctx, found)
	for i, r := range found {
		if note := observed[i].Unknown; note != "" && len(response.Notes) == 0 {
			if s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone}) != nil {
				note = "some servers could not be asked for their zones"
			}
			response.Notes = append(response.Notes, note)
		}
		response.Rollouts = append(response.Rollouts, s.show(ctx, r, observed[i]))
	}
	return response, nil
}

// show is a rollout as its reader may see it.
func (s *Rollouts) show(ctx context.Context, r *resource.Resource, o rollout.Observation) *meridianv1.Rollout {
	m := r.Meta()
	out := &meridianv1.Rollout{
		Options:      &meridianv1.RolloutOptions{Name: m.Name},
		CreationTime: encodeTime(m.CreationTime), Version: m.Version, Revision: uint64(m.Revision),
	}
	spec, ok := rollout.SpecOf(r)
	if !ok {
		return out
	}
	out.Options.Stages, out.Options.Manual, out.Options.HaltOn = encodeStages(spec.Stages), spec.Manual, spec.HaltOn
	if spec.Interval.Value() > 0 {
		out.Options.Interval = durationpb.New(spec.Interval.Value())
	}
	out.Phase, out.Stage, out.Reason, out.Author = string(spec.Status.Phase), spec.Status.Stage, spec.Status.Reason, spec.Status.Author
	for _, mesh := range spec.Status.SkippedTests {
		if s.cfg.Access.ReadKey(ctx, meshTestKey(mesh)) == nil {
			out.SkippedTests = append(out.SkippedTests, string(mesh))
		}
	}
	out.Since, out.Settled = encodeTime(spec.Status.Began()), encodeTime(spec.Status.SettledSince())
	for i := range spec.Changes {
		c := &spec.Changes[i]
		key := c.Key()
		if s.cfg.Access.ReadKey(ctx, key) != nil {
			out.HiddenChanges++
			continue
		}
		out.Changes = append(out.Changes, &meridianv1.RolloutChange{
			Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name, Deleted: c.Delete != nil, Replaces: c.Replaces,
		})
	}
	zonesAll := s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone}) == nil
	if !zonesAll || !s.readsChanged(ctx, spec) {
		out.Reason = "" // it may name zones, and what is in the meshes
	}
	if !zonesAll {
		out.Options.HaltOn = s.hideZones(ctx, out.Options.Stages, out.Options.HaltOn)
	}
	if spec.Status.Phase.Finished() {
		return out
	}
	halts := func(zone *rollout.Zone) rollout.Verdict {
		return s.cfg.Rollouts.Conditions.Halts(ctx, spec.HaltOn, zone)
	}
	if step, err := rollout.Decide(r, o, halts); err == nil && zonesAll {
		out.Waiting = step.Waiting
	}
	for i := range o.Zones {
		z := &o.Zones[i]
		if s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone, Name: string(z.Name)}) != nil {
			continue
		}
		shown := &meridianv1.RolloutZone{Name: string(z.Name), State: "unchanged", Connection: z.Health.State}
		if spec.Status.Shows(z.Name) {
			if shown.State, shown.Detail = "pending", z.Refuses; z.Applied && z.Refuses == "" {
				shown.State = "changed"
			}
		}
		out.Zones = append(out.Zones, shown)
	}
	return out
}

// readsChanged reports whether the caller reads everything that the tests of the meshes
// which a rollout changes can name.
func (s *Rollouts) readsChanged(ctx context.Context, spec *resource.Rollout) bool {
	for i := range spec.Changes {
		key := spec.Changes[i].Key()
		mesh := key.Mesh
		if key.Kind == resource.KindMesh {
			mesh = resource.MeshName(key.Name)
		}
		if mesh != "" && !s.readsTests(ctx, mesh) {
			return false
		}
	}
	return true
}

// hideZones replaces the zones in stages that the caller may not read, and a condition,
// which may name any. Patterns name zones, too.
func (s *Rollouts) hideZones(ctx context.Context, stages []*meridianv1.RolloutStage, condition string) string {
	for _, stage := range stages {
		stage.Zones = slices.Clone(stage.Zones)
		for i, zone := range stage.Zones {
			if s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone, Name: zone}) != nil {
				stage.Zones[i] = hiddenZone
			}
		}
	}
	if condition == "" {
		return ""
	}
	return hiddenCondition
}

// hiddenCondition stands for a condition that a caller may not read.
const hiddenCondition = "a condition that you may not read"

// PromoteRollout begins the next stage of a rollout, or completes it.
func (s *Rollouts) PromoteRollout(ctx context.Context, req *meridianv1.PromoteRolloutRequest) (*meridianv1.PromoteRolloutResponse, error) {
	var said remarks
	r, revision, err := s.change(ctx, req, &meridianv1.PromoteRolloutRequest{Name: req.GetName(), Stage: req.GetStage()}, &said, func(r *resource.Resource, now time.Time, by string) (*resource.Resource, error) {
		if spec, ok := rollout.SpecOf(r); ok && req.GetStage() != 0 && req.GetStage() != spec.Status.Stage {
			return nil, rpcerr.New(rpcerr.Conflict, "ROLLOUT_STAGE", "rollout %s is in stage %d, not in stage %d", r.Key().Name, spec.Status.Stage, req.GetStage())
		}
		return rollout.Promote(r, s.cfg.Rollouts.Enabled(), now, by)
	})
	if err != nil {
		return nil, err
	}
	warnings, _ := said.lines()
	return &meridianv1.PromoteRolloutResponse{Rollout: r, Revision: revision, Warnings: warnings}, nil
}

// AbortRollout ends a rollout: every zone has what it had before.
func (s *Rollouts) AbortRollout(ctx context.Context, req *meridianv1.AbortRolloutRequest) (*meridianv1.AbortRolloutResponse, error) {
	scope := &meridianv1.AbortRolloutRequest{Name: req.GetName(), RequestId: "abort"} // no request to promote has these bytes
	r, revision, err := s.change(ctx, req, scope, &remarks{}, rollout.Abort)
	if err != nil {
		return nil, err
	}
	return &meridianv1.AbortRolloutResponse{Rollout: r, Revision: revision}, nil
}

// rolloutRequest is a request to change a rollout.
type rolloutRequest interface {
	proto.Message
	GetName() string
	GetRequestId() string
}

// begunBy is the rule, for the audit log, by which a change of a rollout is made.
type begunBy struct{ name, author string }

// String says whose change a rollout makes.
func (b begunBy) String() string {
	return fmt.Sprintf("rollout %s, begun by %s", b.name, cmp.Or(b.author, "an unknown user"))
}

// BegunBy has the audit log say whose change a rollout makes.
func BegunBy(ctx context.Context, r *resource.Resource) {
	if spec, ok := rollout.SpecOf(r); ok {
		authn.AddReason(ctx, begunBy{r.Key().Name, spec.Status.Author})
	}
}

// change stores the next state of a rollout, decided on the newest state.
func (s *Rollouts) change(ctx context.Context, req rolloutRequest, scope proto.Message, said *remarks, to func(r *resource.Resource, now time.Time, by string) (*resource.Resource, error)) (*meridianv1.Rollout, uint64, error) {
	fail := func(err error) (*meridianv1.Rollout, uint64, error) {
		return nil, 0, rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	if err := checkFields(req); err != nil {
		return fail(err)
	}
	if err := checkRequest(req.GetRequestId(), false, 1); err != nil {
		return fail(err)
	}
	// The histories of what the rollout writes name it by the id.
	attempt, err := authn.ScopedRequestID(ctx, fmt.Sprintf("rollout %s@%s", req.GetName(), req.GetRequestId()), scope)
	if err != nil {
		return fail(err)
	}
	key := rollout.Key(req.GetName())
	if result, ok := s.cfg.Applied(attempt); ok {
		return s.changed(ctx, key, result)
	}
	promotion, _ := req.(*meridianv1.PromoteRolloutRequest)
	var result store.Result
	err = s.cfg.Turns.Hold(ctx, resource.MaxSpecBytes, func() (err error) {
		result, err = commit.WriteNewest(ctx, s.cfg.Writer, func() (commit.Batch, error) {
			return s.next(ctx, key, attempt, promotion.GetSkipTests(), said, to)
		})
		return err
	})
	if err != nil {
		if applied, ok := s.cfg.Applied(attempt); ok {
			return s.changed(ctx, key, applied)
		}
		return nil, 0, err
	}
	return s.changed(ctx, key, result)
}

// changed is the answer to a request that has changed a rollout.
func (s *Rollouts) changed(ctx context.Context, key resource.Key, result store.Result) (*meridianv1.Rollout, uint64, error) {
	r, ok := s.cfg.View().Get(key)
	if !ok {
		return &meridianv1.Rollout{Options: &meridianv1.RolloutOptions{Name: key.Name}}, uint64(result.Revision), nil
	}
	return s.show(ctx, r, rollout.Observation{Now: s.cfg.Now()}), uint64(result.Revision), nil
}

// next decides on the next state of a rollout.
func (s *Rollouts) next(ctx context.Context, key resource.Key, attempt string, skipTests bool, said *remarks, to func(r *resource.Resource, now time.Time, by string) (*resource.Resource, error)) (commit.Batch, error) {
	view := s.cfg.View()
	r, ok := view.Get(key)
	if !ok {
		if err := s.cfg.Access.ReadKey(ctx, key); err != nil {
			return commit.Batch{}, err // as if there were one
		}
		return commit.Batch{}, notFound(readableBy(ctx, s.cfg.Access, view), key)
	}
	// Whether the caller may is decided before anything is said about the rollout.
	permit, err := s.cfg.Access.Write(ctx, []store.Op{store.Put(r)}, false)
	if err != nil {
		return commit.Batch{}, err
	}
	now := s.cfg.Now()
	next, err := to(r, now, authn.PrincipalFrom(ctx).Name)
	switch {
	case rpcerr.CodeOf(err) == rpcerr.Conflict:
		return commit.Batch{}, err
	case err != nil:
		phase := "cannot be read"
		if spec, ok := rollout.SpecOf(r); ok {
			phase = string(spec.Status.Phase)
		}
		return commit.Batch{}, rpcerr.New(rpcerr.Conflict, "ROLLOUT_FINISHED", "rollout %s (%s): %w", key.Name, phase, err)
	}
	BegunBy(ctx, r)
	*said = nil
	var tests RolloutTests
	if rollout.GivesMore(r, next) {
		if tests, next, err = s.tested(ctx, r, next, skipTests, said); err != nil {
			return commit.Batch{}, err
		}
	}
	txn := rollout.Txn(r, next, now)
	batch := commit.Batch{Txn: txn}
	batch.RequestID, batch.AccessRevision = attempt, &permit.AccessRevision
	// A resource that is not what the rollout replaces is told, and not decided on again.
	batch.Preconditions, batch.Parts = slices.Concat(permit.Preconditions, tests.Preconditions), tests.Parts
	for _, p := range txn.Preconditions[1:] {
		batch.Conditions = append(batch.Conditions, commit.Condition{Precondition: p})
	}
	return batch, nil
}

// tested runs the tests that meshes carry on the whole change of a rollout, before more
// zones have it, and returns the next state: with the tests that fail skipped, if the
// caller may and wants to, else it is refused.
func (s *Rollouts) tested(ctx context.Context, r, next *resource.Resource, skip bool, said *remarks) (RolloutTests, *resource.Resource, error) {
	authn.SetExceptions(ctx)
	tests, err := s.TestRollout(ctx, r)
	switch {
	case err != nil:
		return tests, nil, err
	case len(tests.broken) == 0:
		return tests, next, nil
	case !skip:
		return tests, nil, s.refuseTests(ctx, tests.broken)
	}
	if err := s.skipTests(ctx, tests.broken, said); err != nil {
		return tests, nil, err
	}
	next, err = rollout.SkipTests(next, tests.meshes())
	return tests, next, err
}
