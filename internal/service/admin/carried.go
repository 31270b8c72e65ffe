package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"meridian/internal/authn"
	"meridian/internal/commit"
	"meridian/internal/expectation"
	"meridian/internal/plan"
	"meridian/internal/resource"
	"meridian/internal/rollout"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/turns"
)

const (
	// ReasonTestsFail is the reason of writes after which tests fail that a mesh carries.
	ReasonTestsFail = "TESTS_FAIL"
	// ReasonTestsTooLong is the reason of writes to a mesh whose tests were given up.
	ReasonTestsTooLong = "TESTS_TOO_LONG"
)

// maxBrokenTests is how many broken cases a refusal and a plan have.
const maxBrokenTests = 20

// testRunner makes what runs the tests, when they are first needed.
var testRunner = sync.OnceValues(expectation.NewCarried)

// testedKinds are the kinds of a mesh's resources that decide about its tests.
var testedKinds = sync.OnceValue(func() []resource.Kind {
	var kinds []resource.Kind
	for _, d := range resource.Kinds() {
		if expectation.TestedBy(d) {
			kinds = append(kinds, d.Kind)
		}
	}
	return kinds
})

// meshTestKey is the key of the tests that a mesh carries.
func meshTestKey(mesh resource.MeshName) resource.Key {
	return resource.Key{Kind: resource.KindMeshTest, Mesh: mesh, Name: string(mesh)}
}

// withTests returns the operations of a batch and, for each mesh that it deletes, the
// deletion of the tests that the mesh carries.
func withTests(now *store.View, ops []store.Op) []store.Op {
	var with []store.Op
	for i := range ops {
		if ops[i].Key.Kind != resource.KindMesh || ops[i].Resource != nil {
			continue
		}
		tests := meshTestKey(resource.MeshName(ops[i].Key.Name))
		_, carries := now.Get(tests)
		if carries && !slices.ContainsFunc(ops, func(op store.Op) bool { return op.Key == tests }) {
			with = append(with, store.Delete(tests))
		}
	}
	if with == nil {
		return ops
	}
	return slices.Concat(ops, with)
}

// guardTests makes it a condition of a batch that the meshes which it touches still carry
// the tests that they carry now, and, where there are any, that what these depend on is as
// it is now: two writes, each of which leaves the tests whole, cannot break them together.
// It returns the meshes whose tests are to be run.
func guardTests(now *store.View, batch *commit.Batch) (tested []resource.MeshName) {
	for _, mesh := range testedMeshes(batch.Ops) {
		key := meshTestKey(mesh)
		stored, carries := now.Get(key)
		batch.Preconditions = expecting(batch.Preconditions, key, stored)
		i := slices.IndexFunc(batch.Ops, func(op store.Op) bool { return op.Key == key })
		if i >= 0 {
			carries = batch.Ops[i].Resource != nil
		}
		if !carries {
			continue
		}
		tested = append(tested, mesh)
		meshKey := resource.Key{Kind: resource.KindMesh, Name: string(mesh)}
		found, _ := now.Get(meshKey)
		batch.Preconditions = expecting(batch.Preconditions, meshKey, found)
		batch.Parts = append(batch.Parts, store.Part{Mesh: mesh, Kinds: testedKinds(), Digest: now.PartDigest(mesh, testedKinds())})
	}
	return tested
}

// testedMeshes are the meshes whose tests a batch can break, in order.
func testedMeshes(ops []store.Op) []resource.MeshName {
	seen := map[resource.MeshName]bool{}
	for i := range ops {
		switch d, known := resource.Describe(ops[i].Key.Kind); {
		case ops[i].Key.Kind == resource.KindMesh:
			seen[resource.MeshName(ops[i].Key.Name)] = true
		case ops[i].Key.Kind == resource.KindMeshTest, known && expectation.TestedBy(d):
			seen[ops[i].Key.Mesh] = true
		}
	}
	meshes := make([]resource.MeshName, 0, len(seen))
	for mesh := range seen {
		meshes = append(meshes, mesh)
	}
	slices.SortFunc(meshes, cmp.Compare[resource.MeshName])
	return meshes
}

// expecting adds the precondition that a key still has what was found, nil for nothing,
// unless there is one on the key.
func expecting(all []store.Precondition, key resource.Key, found *resource.Resource) []store.Precondition {
	if slices.ContainsFunc(all, func(p store.Precondition) bool { return p.Key == key }) {
		return all
	}
	p := store.Precondition{Key: key}
	if found != nil {
		m := found.Meta()
		p.Version, p.Revision = m.Version, m.Revision
	}
	return append(slices.Clip(all), p)
}

// brokenTests are the cases of a mesh's tests that a batch breaks.
type brokenTests struct {
	mesh resource.MeshName
	// of is how many cases the mesh has.
	of    int
	cases []expectation.Result
	// gaveUp is why the tests were not run to their end; nil if they were.
	gaveUp error
	// stored says that the mesh carries tests already.
	stored bool
}

// runTests runs the tests of meshes on what there is once a batch is written, and refuses
// one that breaks any: a case that fails then, and does not fail now. A case that fails
// now does not keep a batch from being written.
func (s *Service) runTests(ctx context.Context, now *store.View, batch store.Txn, meshes []resource.MeshName, d *deciding, said *remarks) error {
	var all []brokenTests
	err := s.cfg.Turns.Work(ctx, max(d.size, turns.Small+1), func() (err error) {
		all, err = s.brokenBy(ctx, now, batch, meshes)
		return err
	})
	d.broken, d.skipped = nil, nil
	authn.SetExceptions(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	switch {
	case d.skipTests:
		for i := range all {
			d.skipped = append(d.skipped, all[i].mesh)
		}
		return s.skipTests(ctx, all, said)
	case d.plan:
		for i := range all {
			d.broken = append(d.broken, all[i].planned(s.readsTests(ctx, all[i].mesh)))
		}
		return nil
	}
	return s.refuseTests(ctx, all)
}

// brokenBy returns the tests of meshes that a batch breaks.
func (s *Service) brokenBy(ctx context.Context, now *store.View, batch store.Txn, meshes []resource.MeshName) (all []brokenTests, err error) {
	result, after := s.cfg.Preview(store.Txn{Time: batch.Time, Ops: batch.Ops})()
	if result.Err != nil {
		return nil, nil // what Propose refuses is refused there
	}
	ctx, cancel := expectation.WithTestTime(ctx) // for all meshes together
	defer cancel()
	for _, mesh := range meshes {
		if !changes(result.Results, mesh) {
			continue
		}
		broken, err := breaks(ctx, now, after, mesh)
		if err != nil {
			return nil, err
		}
		if len(broken.cases) > 0 || broken.gaveUp != nil {
			all = append(all, broken)
		}
	}
	return all, nil
}

// RolloutTests is what the tests that meshes carry say of the whole change of a rollout,
// and what that depends on.
type RolloutTests struct {
	// Preconditions and Parts belong to the transaction that was decided by the tests.
	Preconditions []store.Precondition
	Parts         []store.Part
	broken        []brokenTests
}

// Fails says which cases fail; empty where none does.
func (t *RolloutTests) Fails() string {
	var text []string
	for i := range t.broken {
		b := &t.broken[i]
		text = append(text, strings.Join(append([]string{b.headline()}, b.lines()...), "; "))
	}
	return strings.Join(text, "; ")
}

// meshes are those whose tests fail.
func (t *RolloutTests) meshes() []resource.MeshName {
	var meshes []resource.MeshName
	for i := range t.broken {
		meshes = append(meshes, t.broken[i].mesh)
	}
	return meshes
}

// TestRollout runs the tests that meshes carry, but for those that are skipped, on what
// there is once a stored rollout is completed on the newest state that this server has.
// The error is that of ctx, or that the tests cannot be run.
func (s *Service) TestRollout(ctx context.Context, r *resource.Resource) (t RolloutTests, err error) {
	whole, err := rollout.Whole(r, s.cfg.Now())
	if err != nil {
		return t, err
	}
	spec, _ := rollout.SpecOf(r)
	now := s.written().View()
	batch := commit.Batch{Txn: whole}
	meshes := slices.DeleteFunc(guardTests(now, &batch), func(mesh resource.MeshName) bool {
		return slices.Contains(spec.Status.SkippedTests, mesh)
	})
	t.Preconditions, t.Parts = batch.Preconditions[len(whole.Preconditions):], batch.Parts
	if len(meshes) == 0 {
		return t, nil
	}
	err = s.cfg.Turns.Work(ctx, int64(max(r.Size(), turns.Small+1)), func() (err error) {
		t.broken, err = s.brokenBy(ctx, now, whole, meshes)
		return err
	})
	return t, err
}

// changes reports whether a batch changes anything that the tests of a mesh depend on, or
// these.
func changes(results []store.OpResult, mesh resource.MeshName) bool {
	return slices.ContainsFunc(results, func(r store.OpResult) bool {
		if r.Outcome == store.Unchanged || r.Outcome == store.Missing {
			return false
		}
		return r.Key.Mesh == mesh || r.Key == resource.Key{Kind: resource.KindMesh, Name: string(mesh)}
	})
}

// breaks runs the tests of a mesh. The error is that of ctx, or of the engine.
func breaks(ctx context.Context, now *store.View, after store.Reader, mesh resource.MeshName) (brokenTests, error) {
	runner, err := testRunner()
	if err != nil {
		return brokenTests{}, err
	}
	tests, _ := after.Get(meshTestKey(mesh))
	stored, carried := now.Get(meshTestKey(mesh))
	broken := brokenTests{mesh: mesh, stored: carried}
	report, err := runner.Run(ctx, after, tests)
	if err == nil && report.Failed > 0 && carried && bytes.Equal(tests.Canonical(), stored.Canonical()) {
		var before *expectation.Report
		if before, err = runner.Run(ctx, now, stored); err == nil {
			report.Forgive(before)
		}
	}
	switch {
	case errors.Is(err, expectation.ErrTestTime):
		broken.gaveUp = err
		return broken, nil
	case err != nil:
		return broken, err
	}
	broken.of = len(report.Cases)
	for i := range report.Cases {
		if !report.Cases[i].OK {
			broken.cases = append(broken.cases, report.Cases[i])
		}
	}
	return broken, nil
}

// readsTests reports whether the caller reads everything that the report of a mesh's tests
// can name.
func (s *Service) readsTests(ctx context.Context, mesh resource.MeshName) bool {
	return s.cfg.Access.ReadsMesh(ctx, mesh) && s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindMesh, Name: string(mesh)}) == nil
}

// headline says in one line what is broken.
func (b *brokenTests) headline() string {
	if b.gaveUp != nil {
		return fmt.Sprintf("mesh %s: %s", b.mesh, b.gaveUp)
	}
	return fmt.Sprintf("the change breaks %d of the %d tests that mesh %s carries", len(b.cases), b.of, b.mesh)
}

// lines are the cases, as far as they are shown.
func (b *brokenTests) lines() []string {
	var lines []string
	for i := range b.cases[:min(len(b.cases), maxBrokenTests)] {
		lines = append(lines, fmt.Sprintf("%q: %s", b.cases[i].Name, b.cases[i].Message))
	}
	if more := len(b.cases) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}

// planned is what a plan says of them.
func (b *brokenTests) planned(shown bool) plan.BrokenTests {
	p := plan.BrokenTests{Mesh: b.mesh, Count: len(b.cases), Of: b.of}
	if b.gaveUp != nil {
		p.GaveUp = b.gaveUp.Error()
	}
	if shown {
		for i := range b.cases[:min(len(b.cases), maxBrokenTests)] {
			p.Cases = append(p.Cases, plan.BrokenTest{Name: b.cases[i].Name, Message: b.cases[i].Message})
		}
	}
	return p
}

// refuseTests is the refusal of a batch that breaks tests.
func (s *Service) refuseTests(ctx context.Context, all []brokenTests) error {
	var text strings.Builder
	var violations []rpcerr.Violation
	for i := range all {
		b := &all[i]
		if b.gaveUp != nil {
			return rpcerr.New(rpcerr.TooLarge, ReasonTestsTooLong, "%s; or, with the right to delete it, --skip-tests", b.headline())
		}
		lines := []string{"you may not read all of the mesh, so that they are not named"}
		if s.readsTests(ctx, b.mesh) {
			lines = b.lines()
		}
		fmt.Fprintf(&text, "%s:\n", b.headline())
		for _, line := range lines {
			fmt.Fprintf(&text, "  %s\n", line)
			violations = append(violations, rpcerr.Violation{Field: describeKey(meshTestKey(b.mesh)), Description: line})
		}
	}
	return rpcerr.New(rpcerr.Invalid, ReasonTestsFail,
		"%sWith the right to delete the MeshTest, --skip-tests writes it all the same.", &text).WithViolations(violations[:min(len(violations), maxViolations)]...)
}

// skipTests lets a batch be written that breaks tests, if the caller might as well delete
// them, and has the audit log say which.
func (s *Service) skipTests(ctx context.Context, all []brokenTests, said *remarks) error {
	var exceptions []string
	for i := range all {
		b := &all[i]
		if b.stored {
			if _, err := s.cfg.Access.Write(ctx, []store.Op{store.Delete(meshTestKey(b.mesh))}, false); err != nil {
				return rpcerr.New(rpcerr.Denied, "TESTS_NOT_SKIPPED", "to skip the tests of mesh %s takes the right to delete them: %w", b.mesh, err)
			}
		}
		names := make([]string, 0, maxBrokenTests)
		for j := range b.cases[:min(len(b.cases), maxBrokenTests)] {
			names = append(names, fmt.Sprintf("%q", b.cases[j].Name))
		}
		exceptions = append(exceptions, fmt.Sprintf("tests skipped: %s: %s", b.headline(), strings.Join(names, ", ")))
		said.warn("tests skipped: " + b.headline())
	}
	authn.SetExceptions(ctx, exceptions...)
	return nil
}
