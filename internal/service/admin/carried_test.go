package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/plan"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// carriedSpec are tests of the mesh demo: web may call backend, and nothing times out
// later than after 30 s.
const carriedSpec = `{
	"dataplanes": [
		{"name": "web-1", "networking": {"address": "10.0.0.1", "inbound": [{"port": 8080, "tags": {"kuma.io/service": "web"}}],
			"outbound": [{"port": 9000, "tags": {"kuma.io/service": "backend"}}]}},
		{"name": "backend-1", "networking": {"address": "10.0.0.2", "inbound": [{"port": 8080, "tags": {"kuma.io/service": "backend"}}]}}],
	"cases": [
		{"name": "web may call backend", "connection": {"from": "web-1", "to": "backend-1"}, "expect": "allowed"},
		{"name": "answers come soon", "dataplane": "web-1", "kind": "Timeout", "to": "backend", "field": "connectTimeout", "expect": "<= 30s"},
		{"name": "no others", "invariant": "c.to.name != 'web-1' || !c.allowed", "over": "connections"}]}`

const securedMesh = `{"mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}}`

func allow(name, from, to string) *meridianv1.Resource {
	return message("TrafficPermission", "demo", name, fmt.Sprintf(
		`{"sources": [{"match": {"kuma.io/service": %q}}], "destinations": [{"match": {"kuma.io/service": %q}}]}`, from, to))
}

func lasting(name, value string) *meridianv1.Resource {
	return message("Timeout", "demo", name, `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "`+value+`"}}`)
}

func carriedTests(spec string) *meridianv1.Resource { return message("MeshTest", "demo", "demo", spec) }

func keyed(m *meridianv1.Resource) *meridianv1.ResourceKey {
	return &meridianv1.ResourceKey{Kind: m.GetKind(), Mesh: m.GetMesh(), Name: m.GetName()}
}

// newCarried is a service whose mesh demo carries tests that pass.
func newCarried(t *testing.T) *secured {
	t.Helper()
	s := newSecured(t)
	s.must("mesh", message("Mesh", "", "demo", securedMesh), allow("web", "web", "backend"), lasting("soon", "5s"), carriedTests(carriedSpec))
	return s
}

func (s *secured) write(who context.Context, id string, batch ...*meridianv1.Resource) (*meridianv1.ApplyResponse, error) {
	return s.Service.ApplyBatch(who, &meridianv1.ApplyRequest{RequestId: id, Resources: batch})
}

// A write after which a test of its mesh fails is refused, whichever way it is made, and
// the refusal says what was expected, what is, and why.
func TestWritesThatBreakTests(t *testing.T) {
	s := newCarried(t)
	before := s.View().DigestOf(nil)
	wider := strings.Replace(securedMesh, `"enabledBackend": "ca", `, "", 1)
	for name, tt := range map[string]struct {
		do   func() error
		want []string
	}{
		"a value": {func() error {
			_, err := s.write(root, "a", lasting("late", "45s"), message("Mesh", "", "other", "{}"))
			return err
		}, []string{"breaks 1 of the 3 tests that mesh demo carries", `"answers come soon": outbound backend:9000: expected connectTimeout of Timeout to be "<= 30s", but it is "45s", by late`, "--skip-tests"}},
		"a permission more": {func() error {
			_, err := s.write(root, "b", allow("back", "backend", "web"))
			return err
		}, []string{`"no others": does not hold for 1 of 2 connections: backend-1 → web-1:8080 is allowed`}},
		"a deletion": {func() error {
			_, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "c", Keys: []*meridianv1.ResourceKey{keyed(allow("web", "", ""))}})
			return err
		}, []string{`"web may call backend": expected allowed, but it is denied`}},
		"the mesh": {func() error {
			_, err := s.write(root, "d", message("Mesh", "", "demo", wider))
			return err
		}, []string{`"no others"`}},
		"a new test": {func() error {
			_, err := s.write(root, "e", carriedTests(strings.Replace(carriedSpec, "<= 30s", "<= 1s", 1)))
			return err
		}, []string{`to be "<= 1s", but it is "5s", by soon`}},
		"a dry run": {func() error {
			_, err := s.Service.ApplyBatch(root, &meridianv1.ApplyRequest{DryRun: true, Resources: []*meridianv1.Resource{lasting("late", "45s")}})
			return err
		}, []string{"breaks 1 of the 3"}},
	} {
		err := tt.do()
		e := requireCode(t, err, rpcerr.Invalid, tt.want...)
		require.Equal(t, ReasonTestsFail, e.Reason, name)
		require.NotEmpty(t, e.Violations, name)
		require.Equal(t, before, s.View().DigestOf(nil), name)
	}

	s.must("harmless", lasting("soon", "6s"), allow("other", "a", "b"))
	s.must("other mesh", message("Timeout", "default", "late", `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "45s"}}`))
	s.must("with its tests", lasting("soon", "45s"), carriedTests(strings.Replace(carriedSpec, "<= 30s", "<= 60s", 1)))
	_, err := s.write(root, "name", message("MeshTest", "demo", "other", carriedSpec))
	requireCode(t, err, rpcerr.Invalid, `a mesh carries one MeshTest, of its own name: write "demo"`)
}

// A rollback to a state in which a test fails is refused.
func TestRollbacksThatBreakTests(t *testing.T) {
	s := newSecured(t).keepHistory(store.DefaultRetention())
	s.must("mesh", message("Mesh", "", "demo", securedMesh), allow("web", "web", "backend"), lasting("soon", "45s"))
	to := s.View().Revision()
	s.must("sooner", lasting("soon", "5s"))
	s.must("tests", carriedTests(carriedSpec))
	only := func(r *meridianv1.RollbackRequest) { r.Kinds = []string{"Timeout"} }
	_, err := s.rollback(root, to, only)
	requireCode(t, err, rpcerr.Invalid, "breaks 1 of the 3 tests")
	_, err = s.rollback(root, to, func(r *meridianv1.RollbackRequest) { only(r); r.SkipTests, r.RequestId = true, "skips" })
	require.NoError(t, err)
	_, err = s.rollback(root, to, func(r *meridianv1.RollbackRequest) { r.RequestId = "all" })
	require.NoError(t, err, "that goes back to a mesh without tests")
	_, carries := s.View().Get(meshTestKey("demo"))
	require.False(t, carries)
}

// The tests of a mesh are deleted with it, and do not keep it.
func TestTestsGoWithTheirMesh(t *testing.T) {
	s := newCarried(t)
	keys := []*meridianv1.ResourceKey{{Kind: "Mesh", Name: "demo"}}
	_, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "full", Keys: keys})
	requireCode(t, err, rpcerr.Conflict, "still has 2 resources")
	all := append(keys, keyed(allow("web", "", "")), keyed(lasting("soon", "")))
	response, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "all", Keys: all})
	require.NoError(t, err)
	require.Len(t, response.GetResults(), 4)
	_, carries := s.View().Get(meshTestKey("demo"))
	require.False(t, carries)
}

// To skip tests takes the right to delete them, and the audit log has which failed.
func TestSkippingTests(t *testing.T) {
	s := newCarried(t)
	s.must("rights", message("AccessRole", "", "writes", `{"rules": [{"mesh": "demo", "types": ["Timeout"], "access": ["CREATE", "UPDATE", "DELETE"]}]}`),
		message("AccessRole", "", "skips", `{"rules": [{"mesh": "demo", "types": ["MeshTest"], "access": ["DELETE"]}]}`),
		message("AccessRoleBinding", "", "writes", `{"subjects": [{"type": "User", "name": "ann"}, {"type": "User", "name": "joe"}], "roles": ["writes"]}`),
		message("AccessRoleBinding", "", "skips", `{"subjects": [{"type": "User", "name": "joe"}], "roles": ["skips"]}`))
	skip := func(who context.Context, id string, m *meridianv1.Resource) (*meridianv1.ApplyResponse, error) {
		return s.Service.ApplyBatch(who, &meridianv1.ApplyRequest{RequestId: id, SkipTests: true, Resources: []*meridianv1.Resource{m}})
	}
	_, err := skip(user("ann"), "a", lasting("late", "45s"))
	e := requireCode(t, err, rpcerr.Denied, "to skip the tests of mesh demo takes the right to delete them")
	require.Equal(t, "TESTS_NOT_SKIPPED", e.Reason)
	_, err = skip(user("ann"), "b", lasting("late", "4s"))
	require.NoError(t, err, "where nothing fails, nothing is skipped")

	joe := authn.CollectReasons(user("joe"))
	_, err = s.write(joe, "c", lasting("late", "45s"))
	requireCode(t, err, rpcerr.Invalid, "breaks 1 of the 3")
	response, err := skip(joe, "d", lasting("late", "45s"))
	require.NoError(t, err)
	require.Contains(t, response.GetWarnings(), "tests skipped: the change breaks 1 of the 3 tests that mesh demo carries")
	require.Equal(t, `tests skipped: the change breaks 1 of the 3 tests that mesh demo carries: "answers come soon"`, authn.Reasons(joe)[0])

	// What fails already keeps no write from being made; what else would fail does.
	_, err = s.write(user("ann"), "e", lasting("late", "50s"))
	require.NoError(t, err)
	_, err = s.write(root, "f", allow("back", "backend", "web"))
	requireCode(t, err, rpcerr.Invalid, "breaks 1 of the 3", `"no others"`)
}

// A caller who may not read the mesh learns how many tests fail, and not what they say.
func TestTestsAreNotShownToAll(t *testing.T) {
	s := newGranted(t)
	s.must("mesh", message("Mesh", "", "demo", securedMesh), allow("web", "web", "backend"), lasting("soon", "5s"), carriedTests(carriedSpec),
		message("AccessRole", "", "writes", `{"rules": [{"mesh": "demo", "types": ["Timeout"], "access": ["CREATE"]}]}`),
		message("AccessRoleBinding", "", "writes", `{"subjects": [{"type": "User", "name": "eve"}], "roles": ["writes"]}`))
	_, err := s.write(user("eve"), "a", lasting("late", "45s"))
	e := requireCode(t, err, rpcerr.Invalid, "breaks 1 of the 3 tests", "you may not read all of the mesh")
	require.NotContains(t, fmt.Sprint(e.Message, e.Violations), "answers")
}

// Two writes that break a test together are not both made, whichever comes first: a change
// of what the tests depend on between the decision and the write leads to a new decision.
func TestTwoWritesDoNotBreakATestTogether(t *testing.T) {
	const both = `{
		"dataplanes": [{"name": "a", "networking": {"address": "10.0.0.1", "inbound": [{"port": 1, "tags": {"kuma.io/service": "a"}}]}},
			{"name": "b", "networking": {"address": "10.0.0.2", "inbound": [{"port": 1, "tags": {"kuma.io/service": "b"}}]}}],
		"cases": [{"name": "one way at most", "invariant": "d.name == 'b' || d.name == 'a'", "over": "dataplanes"},
			{"name": "a or b", "connection": {"from": "a", "to": "b"}, "expect": "allowed"}]}`
	noTests, open := store.Delete(meshTestKey("demo")), store.Put(built(t, "Mesh", "", "demo", "{}"))
	first, second := allow("first", "a", "b"), allow("second", "a", "b")
	for name, tt := range map[string]struct {
		// write is decided on what there is after first, and then, before it is made,
		// meanwhile is made.
		first            *store.Op
		write, meanwhile func(s *secured) error
	}{
		"two deletions": {
			nil,
			func(s *secured) error {
				_, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "one", Keys: []*meridianv1.ResourceKey{keyed(first)}})
				return err
			},
			func(s *secured) error {
				_, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "two", Keys: []*meridianv1.ResourceKey{keyed(second)}})
				return err
			},
		},
		"a deletion, and then the tests": {
			&noTests,
			func(s *secured) error { return s.deleteBoth("one") },
			func(s *secured) error { _, err := s.write(root, "two", carriedTests(both)); return err },
		},
		"the tests, and then a deletion": {
			&noTests,
			func(s *secured) error { _, err := s.write(root, "one", carriedTests(both)); return err },
			func(s *secured) error { return s.deleteBoth("two") },
		},
		"the mesh, and then a deletion": {
			&open,
			func(s *secured) error {
				_, err := s.write(root, "one", message("Mesh", "", "demo", securedMesh))
				return err
			},
			func(s *secured) error { return s.deleteBoth("two") },
		},
		"a deletion, and then the mesh": {
			&open,
			func(s *secured) error { return s.deleteBoth("one") },
			func(s *secured) error {
				_, err := s.write(root, "two", message("Mesh", "", "demo", securedMesh))
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSecured(t)
			s.must("mesh", message("Mesh", "", "demo", securedMesh), first, second, carriedTests(both))
			if tt.first != nil {
				s.change(*tt.first)
			}
			var meanwhile error
			s.Once(func() { meanwhile = tt.meanwhile(s) })
			err := tt.write(s)
			require.NoError(t, meanwhile)
			requireCode(t, err, rpcerr.Invalid, `"a or b": expected allowed, but it is denied`)
		})
	}
}

// deleteBoth deletes both permissions.
func (s *secured) deleteBoth(id string) error {
	_, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: id, Keys: []*meridianv1.ResourceKey{
		{Kind: "TrafficPermission", Mesh: "demo", Name: "first"}, {Kind: "TrafficPermission", Mesh: "demo", Name: "second"},
	}})
	return err
}

// Writes elsewhere do not stand in the way of one to a mesh with tests.
func TestWritesElsewhereAreNoConflict(t *testing.T) {
	s := newCarried(t)
	decisions, writes := 0, 0
	s.Before(func(store.Txn) error {
		decisions++
		writes++
		s.change(store.Put(built(t, "Timeout", "default", fmt.Sprintf("t%d", writes), `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "5s"}}`)))
		return nil
	})
	_, err := s.write(root, "a", lasting("soon", "7s"))
	require.NoError(t, err)
	require.Equal(t, 1, decisions)
}

// A plan says which tests the change would break.
func TestPlansHaveBrokenTests(t *testing.T) {
	s := newCarried(t)
	s.cfg.Plan = func(context.Context, *plan.Batch) (*plan.Plan, error) { return plan.New(), nil }
	response, err := s.Service.ApplyBatch(root, &meridianv1.ApplyRequest{Plan: true, Resources: []*meridianv1.Resource{lasting("late", "45s")}})
	require.NoError(t, err)
	p := plan.New()
	require.NoError(t, json.Unmarshal(response.GetPlan(), p))
	require.Equal(t, []plan.BrokenTests{{Mesh: "demo", Count: 1, Of: 3, Cases: []plan.BrokenTest{
		{Name: "answers come soon", Message: `outbound backend:9000: expected connectTimeout of Timeout to be "<= 30s", but it is "45s", by late`},
	}}}, p.BrokenTests)
	require.Len(t, p.Changes, 1)
}

func built(t *testing.T, kind, mesh, name, spec string) *resource.Resource {
	t.Helper()
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.Kind(kind), Mesh: resource.MeshName(mesh), Name: name}}, []byte(spec))
	require.NoError(t, err)
	return r
}
