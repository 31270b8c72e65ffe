package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/batch"
	"meridian/internal/commit/committest"
	"meridian/internal/policy"
	"meridian/internal/policy/specificity"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// fixture is a service with a client.
type fixture struct {
	meridianv1.AdminServiceClient
	service *Service
	store   *store.Store
	writer  *committest.Log
	ctx     context.Context
}

func newFixture(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	s := store.New(store.DefaultOptions())
	f := &fixture{store: s, writer: committest.New(s)}
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cfg := Config{
		Writer:  f.writer,
		Access:  authz.New(s.View),
		Applied: s.Applied, Remembers: s.Remembers,
		Preview: PreviewOf(s),
		View:    func() store.Reader { return s.View() },
		Stores:  func() []*store.Store { return []*store.Store{s} },
		Source:  func(*resource.Descriptor) Source { return s },
		Owns: func(d *resource.Descriptor) error {
			if d.Owner == resource.OwnedByZone {
				return errors.New("apply it on the zone")
			}
			return nil
		},
		Surveyors: []policy.Surveyor{specificity.Engine{}},
		Now:       func() time.Time { return clock },
	}
	if change != nil {
		change(&cfg)
	}
	listener := bufconn.Listen(1 << 20)
	defaults := authz.Defaults{}
	require.NoError(t, defaults.Ensure(t.Context(), s.View, f.writer, cfg.Now))
	server := grpc.NewServer(grpc.UnaryInterceptor(rpcerr.UnaryServer), grpc.StreamInterceptor(rpcerr.StreamServer))
	f.service = New(cfg)
	meridianv1.RegisterAdminServiceServer(server, f.service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///admin",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(rpcerr.UnaryClient), grpc.WithStreamInterceptor(rpcerr.StreamClient))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, conn.Close())
		server.Stop()
		require.NoError(t, <-served)
	})
	f.AdminServiceClient, f.ctx = meridianv1.NewAdminServiceClient(conn), ctx
	_, err = batch.Apply(ctx, f, &meridianv1.ApplyRequest{RequestId: "setup", Resources: []*meridianv1.Resource{message("Mesh", "", "default", "{}")}})
	require.NoError(t, err)
	return f
}

func message(kind, mesh, name, spec string) *meridianv1.Resource {
	return &meridianv1.Resource{Kind: kind, Mesh: mesh, Name: name, Spec: []byte(spec)}
}

func trafficLog(name, backend string) *meridianv1.Resource {
	return message("TrafficLog", "default", name, `{
		"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}],
		"conf": {"backend": "`+backend+`"}}`)
}

func (f *fixture) apply(id string, resources ...*meridianv1.Resource) (*meridianv1.ApplyResponse, error) {
	return batch.Apply(f.ctx, f, &meridianv1.ApplyRequest{RequestId: id, Resources: resources})
}

func requireCode(t *testing.T, err error, code rpcerr.Code, contains ...string) *rpcerr.Error {
	t.Helper()
	var e *rpcerr.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, e.Message)
	for _, text := range contains {
		require.Contains(t, e.Message, text)
	}
	return e
}

func outcomes(results []*meridianv1.Result) []meridianv1.Outcome {
	var out []meridianv1.Outcome
	for _, r := range results {
		out = append(out, r.GetOutcome())
	}
	return out
}

const (
	created   = meridianv1.Outcome_OUTCOME_CREATED
	updated   = meridianv1.Outcome_OUTCOME_UPDATED
	unchanged = meridianv1.Outcome_OUTCOME_UNCHANGED
)

// §1.2: a batch is applied atomically or not at all, and every problem
// in it is told at once.
func TestABadBatchIsRefusedWhole(t *testing.T) {
	f := newFixture(t, nil)
	before := f.store.View()
	_, err := f.apply("1",
		trafficLog("good", "a"),
		message("TrafficLgo", "default", "x", "{}"),
		message("TrafficLog", "default", "y", `{"sources": [{"match": {}}], "destinations": [], "conf": {"bakend": "b"}}`),
		trafficLog("good", "b"),
		message("Dataplane", "default", "dp", "{}"),
	)
	e := requireCode(t, err, rpcerr.Invalid)
	require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
	var fields []string
	for _, v := range e.Violations {
		fields = append(fields, v.Field)
	}
	require.Contains(t, fields, "resources[1]")
	require.Contains(t, fields, "resources[2].spec.sources[0].match")
	require.Contains(t, fields, "resources[3]", "one identity twice")
	require.Contains(t, fields, "resources[4]", "not owned here")
	require.Equal(t, before.Changed(), f.store.View().Changed(), "nothing was written")
}

// Of the problems of a batch the first hundred are named, and that there are more.
func TestProblemsOfABatchAreBounded(t *testing.T) {
	f := newFixture(t, nil)
	var bad []*meridianv1.Resource
	for i := range 3 * maxViolations {
		bad = append(bad, message("TrafficLog", "default", fmt.Sprintf("l%d", i), fmt.Sprintf(`{"unknown%d": 1}`, i)))
	}
	_, err := f.apply("1", bad...)
	e := requireCode(t, err, rpcerr.Invalid)
	require.LessOrEqual(t, len(e.Violations), maxViolations+1)
	require.Equal(t, "there are more problems; fix these first", e.Violations[len(e.Violations)-1].Description)
}

func TestOutcomesAndRevision(t *testing.T) {
	f := newFixture(t, nil)
	first, err := f.apply("1", trafficLog("a", "x"), trafficLog("b", "x"))
	require.NoError(t, err)
	require.Equal(t, []meridianv1.Outcome{created, created}, outcomes(first.GetResults()))
	second, err := f.apply("2", trafficLog("a", "y"), trafficLog("b", "x"))
	require.NoError(t, err)
	require.Equal(t, []meridianv1.Outcome{updated, unchanged}, outcomes(second.GetResults()))
	require.Greater(t, second.GetRevision(), first.GetRevision())
	third, err := f.apply("3", trafficLog("a", "y"))
	require.NoError(t, err)
	require.Equal(t, second.GetRevision(), third.GetRevision(), "nothing changed: the current revision")
}

// §7.1: a retried request id is applied once.
func TestARetryTakesEffectOnce(t *testing.T) {
	f := newFixture(t, nil)
	first, err := f.apply("same", trafficLog("a", "x"))
	require.NoError(t, err)
	again, err := f.apply("same", trafficLog("a", "x"))
	require.NoError(t, err)
	require.Equal(t, outcomes(first.GetResults()), outcomes(again.GetResults()))
	require.Equal(t, first.GetRevision(), again.GetRevision())
	_, err = f.apply("", trafficLog("a", "x"))
	requireCode(t, err, rpcerr.Invalid, "request_id")
}

func TestDryRunWritesNothing(t *testing.T) {
	f := newFixture(t, nil)
	before := f.store.Revision()
	r, err := batch.Apply(f.ctx, f, &meridianv1.ApplyRequest{DryRun: true, Resources: []*meridianv1.Resource{trafficLog("a", "x")}})
	require.NoError(t, err)
	require.Equal(t, []meridianv1.Outcome{created}, outcomes(r.GetResults()))
	require.Equal(t, before, f.store.Revision())
}

func TestVersionCondition(t *testing.T) {
	f := newFixture(t, nil)
	at := func(version uint64, resources ...*meridianv1.Resource) error {
		request := &meridianv1.ApplyRequest{RequestId: rand.Text(), Resources: resources}
		request.IfVersions = []*meridianv1.VersionCondition{{Key: keyOf(resources[0]), Version: version}}
		_, err := batch.Apply(f.ctx, f, request)
		return err
	}
	require.NoError(t, at(0, trafficLog("a", "x")), "0: must not exist")
	requireCode(t, at(0, trafficLog("a", "y")), rpcerr.Conflict, "version")
	require.NoError(t, at(1, trafficLog("a", "y")))
	requireCode(t, at(1, trafficLog("a", "z")), rpcerr.Conflict)
	requireCode(t, at(1, trafficLog("a", "z"), trafficLog("b", "z")), rpcerr.Conflict)
	require.NoError(t, at(2, trafficLog("a", "z"), trafficLog("b", "z")))
}

// §1.1: versions start again at 1 when a resource is deleted and created anew, so a
// condition may name the revision that wrote what was read.
func TestVersionConditionOfARevision(t *testing.T) {
	f := newFixture(t, nil)
	key := keyOf(trafficLog("a", ""))
	change := func(orMissing bool, version, revision uint64, backend string) error {
		_, err := batch.Apply(f.ctx, f, &meridianv1.ApplyRequest{
			RequestId: rand.Text(), Resources: []*meridianv1.Resource{trafficLog("a", backend)},
			IfVersions: []*meridianv1.VersionCondition{{Key: key, Version: version, Revision: revision, OrMissing: orMissing}},
		})
		return err
	}
	remove := func(version, revision uint64) error {
		_, err := batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{
			RequestId: rand.Text(), Keys: []*meridianv1.ResourceKey{key},
			IfVersions: []*meridianv1.VersionCondition{{Key: key, Version: version, Revision: revision}},
		})
		return err
	}
	created, err := f.apply(rand.Text(), trafficLog("a", "x"))
	require.NoError(t, err)
	read := created.GetRevision()
	require.NoError(t, remove(1, read))
	again, err := f.apply(rand.Text(), trafficLog("a", "y"))
	require.NoError(t, err)

	requireCode(t, change(false, 1, read, "z"), rpcerr.Conflict, "deleted and created anew")
	requireCode(t, change(true, 1, read, "z"), rpcerr.Conflict, "deleted and created anew")
	requireCode(t, remove(1, read), rpcerr.Conflict, "deleted and created anew")
	requireCode(t, change(false, 0, read, "z"), rpcerr.Invalid, "has no revision")
	require.NoError(t, change(false, 1, again.GetRevision(), "z"))
	require.NoError(t, change(false, 2, 0, "w"), "a client that names no revision")
	require.NoError(t, remove(3, 0))
	require.NoError(t, change(true, 7, read, "v"), "it does not exist")
}

// §1.2: the version that a document was read at is a condition that also holds
// where the resource does not exist; every condition is about a resource of the
// batch, and one of several that fails refuses all of it.
func TestVersionsOfDocuments(t *testing.T) {
	f := newFixture(t, nil)
	type conditions = []*meridianv1.VersionCondition
	apply := func(c conditions, resources ...*meridianv1.Resource) error {
		_, err := batch.Apply(f.ctx, f, &meridianv1.ApplyRequest{RequestId: rand.Text(), Resources: resources, IfVersions: c})
		return err
	}
	read := func(name string, version uint64) *meridianv1.VersionCondition {
		return &meridianv1.VersionCondition{Key: keyOf(trafficLog(name, "")), Version: version, OrMissing: true}
	}
	require.NoError(t, apply(conditions{read("a", 7)}, trafficLog("a", "x")), "it does not exist")
	requireCode(t, apply(conditions{read("a", 7)}, trafficLog("a", "y")), rpcerr.Conflict, "version")
	requireCode(t, apply(conditions{read("b", 1), read("a", 7)}, trafficLog("a", "y"), trafficLog("b", "y")), rpcerr.Conflict, "version")
	require.NoError(t, apply(conditions{read("b", 1), read("a", 1)}, trafficLog("a", "y"), trafficLog("b", "y")))
	requireCode(t, apply(conditions{read("c", 1)}, trafficLog("a", "z")), rpcerr.Invalid, "does not have")
	requireCode(t, apply(conditions{read("a", 2), read("a", 2)}, trafficLog("a", "z")), rpcerr.Invalid, "another condition")

	_, err := batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: rand.Text(), Keys: []*meridianv1.ResourceKey{keyOf(trafficLog("a", ""))}, IfVersions: conditions{read("a", 1)}})
	requireCode(t, err, rpcerr.Conflict, "version")
}

func keyOf(m *meridianv1.Resource) *meridianv1.ResourceKey {
	return &meridianv1.ResourceKey{Kind: m.GetKind(), Mesh: m.GetMesh(), Name: m.GetName()}
}

// §1.4: meshes must exist, and be empty to be deleted.
func TestMeshRules(t *testing.T) {
	f := newFixture(t, nil)
	orphan := trafficLog("a", "x")
	orphan.Mesh = "nowhere"
	_, err := f.apply("1", orphan)
	requireCode(t, err, rpcerr.Invalid, "nowhere")
	_, err = f.apply("2", orphan, message("Mesh", "", "nowhere", "{}"))
	require.NoError(t, err, "a mesh may come with its resources")
	_, err = batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: "3", Keys: []*meridianv1.ResourceKey{{Kind: "mesh", Name: "nowhere"}}})
	requireCode(t, err, rpcerr.Conflict)
	require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
}

// §1.4: a backend that no mesh defines is accepted with a warning,
// judged by what the batch leaves behind.
func TestAdviceIsAboutTheStateAfterTheBatch(t *testing.T) {
	f := newFixture(t, nil)
	r, err := f.apply("1", trafficLog("a", "splunk"))
	require.NoError(t, err)
	require.Len(t, r.GetWarnings(), 1)
	require.Contains(t, r.GetWarnings()[0], "splunk")
	mesh := message("Mesh", "", "default", `{"logging": {"backends": [{"name": "splunk", "type": "tcp", "conf": {"address": "127.0.0.1:1"}}]}}`)
	r, err = f.apply("2", trafficLog("b", "splunk"), mesh)
	require.NoError(t, err)
	require.Empty(t, r.GetWarnings(), "the mesh that comes with it defines the backend")
}

// What is as it should be is a note, not a warning: which of two policies on one
// target has priority (§4.3).
func TestInformationIsANote(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Surveyors = []policy.Surveyor{targetref.New()} })
	timeouts := func(name string) *meridianv1.Resource {
		return message("MeshUpstreamTimeout", "default", name, `{"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectTimeout": "5s"}}]}`)
	}
	r, err := f.apply("1", timeouts("a"), timeouts("b"))
	require.NoError(t, err)
	require.Empty(t, r.GetWarnings())
	require.Equal(t, []string{"2 documents (MeshUpstreamTimeout/default/a, b): targetRef: " +
		"policies that target Mesh and set /connectTimeout: the name that sorts later has priority"}, r.GetNotes(), "one line for one cause")
	require.Len(t, r.GetFindings(), 2, "each document has its own")
	for i, name := range []string{"a", "b"} {
		found := r.GetFindings()[i]
		require.Equal(t, meridianv1.Finding_SEVERITY_INFO, found.GetSeverity())
		require.Equal(t, name, found.GetKey().GetName())
		require.Equal(t, "targetRef", found.GetField())
		require.Contains(t, found.GetMessage(), "priority")
	}
}

// What is wrong with every document of a batch is one problem.
func TestProblemsOfOneCauseAreOne(t *testing.T) {
	f := newFixture(t, func(c *Config) {
		c.Owns = func(d *resource.Descriptor) error {
			if d.Kind == resource.KindMesh {
				return nil
			}
			return fmt.Errorf("%s is not written here", d.Kind)
		}
	})
	_, err := f.apply("1", permission("a", "web"), permission("b", "web"), trafficLog("c", "x"))
	e := requireCode(t, err, rpcerr.Invalid, "2 documents (TrafficPermission/default/a, b): TrafficPermission is not written here")
	require.Len(t, e.Violations, 2)
	require.Equal(t, `resources[0]`, e.Violations[0].Field)
	require.Equal(t, `TrafficLog "c" in mesh "default": TrafficLog is not written here`, e.Violations[1].Description)
}

func TestDelete(t *testing.T) {
	f := newFixture(t, nil)
	_, err := f.apply("1", trafficLog("alpha", "x"), trafficLog("beta", "x"))
	require.NoError(t, err)
	keys := func(names ...string) []*meridianv1.ResourceKey {
		var out []*meridianv1.ResourceKey
		for _, name := range names {
			out = append(out, &meridianv1.ResourceKey{Kind: "traffic-logs", Mesh: "default", Name: name})
		}
		return out
	}
	_, err = batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: "2", Keys: keys("alpha", "betta")})
	requireCode(t, err, rpcerr.NotFound, `did you mean "beta"?`)
	require.Equal(t, 2, f.store.View().Count("TrafficLog"), "nothing is deleted when one is missing")
	r, err := batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: "3", Keys: keys("alpha", "beta")})
	require.NoError(t, err)
	require.Len(t, r.GetResults(), 2)
	require.Zero(t, f.store.View().Count("TrafficLog"))
}

func TestGetAndList(t *testing.T) {
	f := newFixture(t, nil)
	written, err := f.apply("1", trafficLog("b", "x"), trafficLog("a", "x"))
	require.NoError(t, err)
	got, err := f.Get(f.ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "trafficlog", Mesh: "default", Name: "a"}})
	require.NoError(t, err)
	require.Equal(t, uint64(1), got.GetResource().GetVersion())
	require.Equal(t, written.GetRevision(), got.GetResource().GetRevision())
	require.NotNil(t, got.GetResource().GetCreationTime())
	_, err = f.Get(f.ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "trafficlog", Mesh: "default", Name: "c"}})
	requireCode(t, err, rpcerr.NotFound)
	_, err = f.Get(f.ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "trafficlgo", Mesh: "default", Name: "c"}})
	requireCode(t, err, rpcerr.Invalid, "TrafficLog")

	stream, err := f.List(f.ctx, &meridianv1.ListRequest{Kinds: []string{"TrafficLog", "Mesh", "trafficlogs"}})
	require.NoError(t, err)
	response, err := stream.Recv()
	require.NoError(t, err)
	var names []string
	for _, r := range response.GetResources() {
		names = append(names, r.GetKind()+"/"+r.GetName())
	}
	require.Equal(t, []string{"Mesh/default", "TrafficLog/a", "TrafficLog/b"}, names)
}

func TestStaleReadsNeedNoLeader(t *testing.T) {
	f := newFixture(t, nil)
	f.writer.Fail(errors.New("no leader"))
	key := &meridianv1.ResourceKey{Kind: "Mesh", Name: "default"}
	_, err := f.Get(f.ctx, &meridianv1.GetRequest{Key: key})
	requireCode(t, err, rpcerr.Unavailable, "stale")
	_, err = f.Get(f.ctx, &meridianv1.GetRequest{Key: key, Consistency: meridianv1.Consistency_CONSISTENCY_STALE})
	require.NoError(t, err)
}

func TestWatchFromARevision(t *testing.T) {
	f := newFixture(t, nil)
	from := uint64(f.store.Revision())
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	stream, err := f.Watch(ctx, &meridianv1.WatchRequest{Kinds: []string{"TrafficLog"}, FromRevision: &from})
	require.NoError(t, err)
	_, err = f.apply("1", trafficLog("a", "x"))
	require.NoError(t, err)
	_, err = f.apply("2", message("Mesh", "", "other", "{}"))
	require.NoError(t, err)
	_, err = f.apply("3", trafficLog("a", "y"))
	require.NoError(t, err)
	first, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, created, first.GetChanges()[0].GetOutcome())
	second, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, updated, second.GetChanges()[0].GetOutcome(), "other kinds are left out")
	require.Greater(t, second.GetRevision(), first.GetRevision())

	future := uint64(1 << 40)
	stream, err = f.Watch(f.ctx, &meridianv1.WatchRequest{FromRevision: &future})
	require.NoError(t, err)
	_, err = stream.Recv()
	requireCode(t, err, rpcerr.OutOfRange, "has not been written yet")
}

// A watch from now on can be taken up again before anything has changed.
func TestWatchFromNowSaysWhereItBegins(t *testing.T) {
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	stream, err := f.Watch(ctx, &meridianv1.WatchRequest{})
	require.NoError(t, err)
	first, err := stream.Recv()
	require.NoError(t, err)
	require.Empty(t, first.GetChanges())
	require.Equal(t, uint64(f.store.Revision()), first.GetRevision())
	_, err = f.apply("1", trafficLog("a", "x"))
	require.NoError(t, err)
	second, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, created, second.GetChanges()[0].GetOutcome())
}

// A watch ends when the state is replaced: the difference is not a change that a
// client made.
func TestWatchEndsWhenTheStateIsReplaced(t *testing.T) {
	f := newFixture(t, nil)
	stream, err := f.Watch(f.ctx, &meridianv1.WatchRequest{})
	require.NoError(t, err)
	first, err := stream.Recv()
	require.NoError(t, err)
	require.NoError(t, f.store.Reset(&store.Snapshot{Revision: 1}))
	_, err = stream.Recv()
	requireCode(t, err, rpcerr.OutOfRange, fmt.Sprintf("what follows revision %d is no longer retained", first.GetRevision()))
}

// A watch that is taken up again at a server that is a little behind waits for
// it.
func TestWatchWaitsForARevisionThatIsNear(t *testing.T) {
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	near := uint64(f.store.Revision()) + 1
	stream, err := f.Watch(ctx, &meridianv1.WatchRequest{FromRevision: &near})
	require.NoError(t, err)
	f.store.Advance(f.store.Revision() + 1)
	_, err = f.apply("1", trafficLog("a", "x"))
	require.NoError(t, err)
	got, err := stream.Recv()
	require.NoError(t, err)
	require.Greater(t, got.GetRevision(), near)
}

func TestLimits(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.WaitForZones = nil })
	_, err := f.apply("1")
	requireCode(t, err, rpcerr.Invalid, "empty")
	_, err = f.waitForZones(&meridianv1.WaitForZonesRequest{Revision: 1})
	requireCode(t, err, rpcerr.Invalid, "zone")
}

// waitForZones returns every message of a wait.
func (f *fixture) waitForZones(req *meridianv1.WaitForZonesRequest) (all []*meridianv1.WaitForZonesResponse, err error) {
	stream, err := f.WaitForZones(f.ctx, req)
	for err == nil {
		var m *meridianv1.WaitForZonesResponse
		if m, err = stream.Recv(); err == nil {
			all = append(all, m)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return all, err
}

// A caller that waits for zones hears which it waits for, and why it waits no more.
func TestWaitForZones(t *testing.T) {
	var (
		asked ZoneWait
		ends  error
	)
	f := newFixture(t, func(c *Config) {
		c.WaitForZones = func(_ context.Context, w ZoneWait, progress func([]PendingZone) error) ([]string, error) {
			asked = w
			if err := progress([]PendingZone{{Name: "west", State: "offline", Revision: 3}}); err != nil {
				return nil, err
			}
			return []string{"zone north is offline"}, ends
		}
	})
	written := uint64(f.store.Revision())
	all, err := f.waitForZones(&meridianv1.WaitForZonesRequest{Revision: written, ConnectedOnly: true})
	require.NoError(t, err)
	require.Equal(t, ZoneWait{Revision: f.store.Revision(), ConnectedOnly: true}, asked)
	require.Len(t, all, 2)
	require.Equal(t, "west", all[0].GetPending()[0].GetName())
	require.Empty(t, all[1].GetPending())
	require.Equal(t, []string{"zone north is offline"}, all[1].GetWarnings())

	ends = context.DeadlineExceeded
	_, err = f.waitForZones(&meridianv1.WaitForZonesRequest{Revision: written})
	requireCode(t, err, rpcerr.Timeout, "west (offline)")

	_, err = f.waitForZones(&meridianv1.WaitForZonesRequest{Revision: written + 100})
	requireCode(t, err, rpcerr.OutOfRange, "not written yet")
}

// A zone waits for its own proxies, and for no zones.
func TestWaitForProxies(t *testing.T) {
	var ends error
	f := newFixture(t, func(c *Config) {
		c.WaitForZones = nil
		c.WaitForProxies = func(_ context.Context, revision resource.Revision, progress func([]PendingZone) error) error {
			require.EqualValues(t, 1000, revision, "that of the zone's own resources")
			if err := progress([]PendingZone{{Name: "east", ProxiesBehind: 1, Proxies: []PendingProxy{{Mesh: "m", Name: "web-1", State: "pending"}}}}); err != nil {
				return err
			}
			return ends
		}
	})
	_, err := f.waitForZones(&meridianv1.WaitForZonesRequest{Revision: 1000})
	requireCode(t, err, rpcerr.Invalid, "zone")
	wait := &meridianv1.WaitForZonesRequest{Revision: 1000, Enforced: true}
	all, err := f.waitForZones(wait)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "web-1", all[0].GetPending()[0].GetProxies()[0].GetDataplane())

	for _, c := range []struct {
		ends error
		code rpcerr.Code
		text string
	}{
		{context.DeadlineExceeded, rpcerr.Timeout, "1 proxies in east"},
		{ErrProxiesRejected, rpcerr.Conflict, "proxies have rejected"},
		{rpcerr.New(rpcerr.OutOfRange, "REVISION_UNKNOWN", "not written yet"), rpcerr.OutOfRange, "not written yet"},
	} {
		ends = c.ends
		_, err = f.waitForZones(wait)
		requireCode(t, err, c.code, c.text)
	}
}

// One missing mesh is one error, however many documents are in it.
func TestAMissingMeshIsOneError(t *testing.T) {
	f := newFixture(t, nil)
	var policies []*meridianv1.Resource
	for i := range 60 {
		policies = append(policies, permissionIn("nomesh", fmt.Sprintf("p%d", i), "web"))
	}
	policies = append(policies, permissionIn("defalt", "p", "web"))
	for _, dryRun := range []bool{false, true} {
		_, err := batch.Apply(f.ctx, f, &meridianv1.ApplyRequest{RequestId: "missing", Resources: policies, DryRun: dryRun})
		first := `60 documents (TrafficPermission/nomesh/p0, p1, p2, …): mesh "nomesh" does not exist. ` +
			`To create it, apply {type: Mesh, name: nomesh} before, or in the same batch`
		e := requireCode(t, err, rpcerr.Invalid, first)
		require.Equal(t, first, e.Message)
		require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
		require.True(t, rpcerr.HasReason(err, "MESH_MISSING"))
		require.Len(t, e.Violations, 2)
		require.Equal(t, `TrafficPermission "p" in mesh "defalt": mesh "defalt" does not exist; did you mean "default"? `+
			`To create it, apply {type: Mesh, name: defalt} before, or in the same batch`, e.Violations[1].Description)
	}
	require.Zero(t, f.store.View().Count(resource.KindTrafficPermission))
}
