package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/grpctest"
	policies "meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// The readers of a control plane with --read-access=granted: ann reads the mesh
// demo, and the Mesh; carl writes the TrafficPermissions of backend in demo; dora
// reads the kind Timeout; eve has no role.
const (
	annReads  = `{"rules": [{"mesh": "demo", "access": ["READ"]}, {"types": ["Mesh"], "names": ["demo"], "access": ["READ"]}]}`
	carlReads = `{"rules": [{"mesh": "demo", "types": ["TrafficPermission"], "access": ["UPDATE"], "when": [{"destinations": {"match": {"kuma.io/service": "backend"}}}]}]}`
	doraReads = `{"rules": [{"types": ["Timeout"], "access": ["READ"]}]}`
)

func newGranted(t *testing.T) *secured {
	t.Helper()
	s := newSecured(t)
	s.cfg.Access.(*authz.Authorizer).ReadGranted()
	bind := func(user, role string) *meridianv1.Resource {
		return message("AccessRoleBinding", "", user, fmt.Sprintf(`{"subjects": [{"type": "User", "name": %q}], "roles": [%q]}`, user, role))
	}
	s.must("granted", message("Mesh", "", "demo", "{}"), message("Mesh", "", "shop", "{}"),
		message("AccessRole", "", "ann", annReads), message("AccessRole", "", "carl", carlReads), message("AccessRole", "", "dora", doraReads),
		bind("ann", "ann"), bind("carl", "carl"), bind("dora", "dora"))
	return s
}

func user(name string) context.Context {
	return authn.WithPrincipal(context.Background(), authn.UserPrincipal(name, nil))
}

func permissionIn(mesh, name, destination string) *meridianv1.Resource {
	m := permission(name, destination)
	m.Mesh = mesh
	return m
}

func timeoutIn(mesh, name string) *meridianv1.Resource {
	return message("Timeout", mesh, name, `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "5s"}}`)
}

// §6.1: with --read-access=granted a caller reads what READ or another access to
// it is granted for, in every form of reading.
func TestGrantedReading(t *testing.T) {
	s := newGranted(t)
	s.must("data", permissionIn("demo", "of-backend", "backend"), permissionIn("demo", "of-other", "other"), permissionIn("shop", "of-backend", "backend"),
		timeoutIn("demo", "slow"), timeoutIn("shop", "slow"), message("GlobalSecret", "", "db", `{"data": "c2VjcmV0"}`))
	all := []string{"Mesh/demo", "Timeout/slow", "TrafficPermission/of-backend", "TrafficPermission/of-other"}
	for name, tt := range map[string]struct {
		who  context.Context
		list []string
		// lists says which kinds may be listed at all.
		permissions, timeouts bool
	}{
		"one mesh":             {user("ann"), all, true, true},
		"depending on content": {user("carl"), []string{"TrafficPermission/of-backend"}, true, false},
		"a kind in any mesh":   {user("dora"), []string{"Timeout/slow", "Timeout/slow"}, false, true},
		"no role":              {user("eve"), nil, false, false},
		"anonymous":            {authn.WithPrincipal(context.Background(), authn.Anonymous()), nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			list := func(mesh string, kinds ...string) ([]string, error) {
				l := &listStream{Ctx: tt.who}
				err := s.List(&meridianv1.ListRequest{Kinds: kinds, Mesh: mesh}, l)
				return listed(l), err
			}
			got, err := list("")
			require.NoError(t, err)
			require.Equal(t, tt.list, got)
			for kind, may := range map[string]bool{"TrafficPermission": tt.permissions, "Timeout": tt.timeouts} {
				_, err := list("", kind)
				require.Equal(t, may, err == nil, kind)
				if !may {
					requireCode(t, err, rpcerr.Denied, "missing: READ on "+kind)
				}
				watched := s.Watch(&meridianv1.WatchRequest{Kinds: []string{kind}}, ended(tt.who))
				require.Equal(t, may, rpcerr.CodeOf(watched) != rpcerr.Denied, kind)
			}
		})
	}

	get := func(who, kind, mesh, name string) error {
		_, err := s.Get(user(who), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: kind, Mesh: mesh, Name: name}})
		return err
	}
	require.NoError(t, get("ann", "Timeout", "demo", "slow"))
	requireCode(t, get("ann", "Timeout", "demo", "slwo"), rpcerr.NotFound, `did you mean "slow"?`)
	require.NoError(t, get("carl", "TrafficPermission", "demo", "of-backend"))
	requireCode(t, get("ann", "GlobalSecret", "", "db"), rpcerr.Denied)

	// What may not be read looks the same whether or not it is there, also to a write.
	for _, key := range [][3]string{{"carl", "TrafficPermission", "of-other"}, {"carl", "Timeout", "slow"}, {"eve", "Timeout", "slow"}} {
		there, absent := get(key[0], key[1], "demo", key[2]), get(key[0], key[1], "demo", "absent")
		requireCode(t, there, rpcerr.Denied)
		require.Equal(t, renamed(there, key[2]), renamed(absent, "absent"))
		remove := func(name string) error {
			_, err := s.DeleteBatch(user(key[0]), &meridianv1.DeleteRequest{RequestId: "d" + name, Keys: []*meridianv1.ResourceKey{{Kind: key[1], Mesh: "demo", Name: name}}})
			return err
		}
		requireCode(t, remove(key[2]), rpcerr.Denied)
		require.Equal(t, renamed(remove(key[2]), key[2]), renamed(remove("absent"), "absent"))
		var early, applied [2]error
		for i, name := range []string{key[2], "absent"} {
			_, err := s.DeleteBatch(user(key[0]), &meridianv1.DeleteRequest{RequestId: "d2" + name, Keys: []*meridianv1.ResourceKey{
				{Kind: key[1], Mesh: "demo", Name: name}, {Kind: "Timeout", Mesh: "shop", Name: "slow"},
			}})
			requireCode(t, err, rpcerr.Denied, name, `Timeout "slow" in mesh "shop"`)
			m := permissionIn("demo", name, "other")
			if key[1] == "Timeout" {
				m = timeoutIn("demo", name)
			}
			early[i] = s.Apply(&applies{Ctx: user(key[0]), Requests: []*meridianv1.ApplyRequest{{RequestId: "e" + name, Resources: []*meridianv1.Resource{m}}}})
			applied[i] = s.as(user(key[0]), "a"+name, m)
		}
		for _, refused := range [][2]error{early, applied} {
			requireCode(t, refused[0], rpcerr.Denied, "missing: CREATE or UPDATE on "+key[1])
			require.Equal(t, renamed(refused[0], key[2]), renamed(refused[1], "absent"))
		}
	}
	denied := s.as(user("carl"), "w", permissionIn("demo", "of-other", "backend"))
	require.NotContains(t, denied.Error(), "entry 1 has other", "the content of what may not be read")
	require.Contains(t, s.as(bob, "b", permissionIn("shop", "of-backend", "other")).Error(), "entry 1 has other", "the author's own content")

	// Deleting a mesh names nothing in it.
	s.must("delete role", message("AccessRole", "", "eve", `{"rules": [{"types": ["Mesh"], "access": ["DELETE"]}]}`),
		message("AccessRoleBinding", "", "eve", `{"subjects": [{"type": "User", "name": "eve"}], "roles": ["eve"]}`))
	_, err := s.DeleteBatch(user("eve"), &meridianv1.DeleteRequest{RequestId: "mesh", Keys: []*meridianv1.ResourceKey{{Kind: "Mesh", Name: "shop"}}})
	require.Equal(t, `mesh "shop" still has resources`, requireCode(t, err, rpcerr.Conflict).Message)
}

func renamed(err error, name string) string {
	return strings.ReplaceAll(err.Error(), name, "NAME")
}

// watchStream collects what a watch sends, until its context ends.
type watchStream struct {
	grpctest.Stream[meridianv1.WatchRequest, meridianv1.WatchResponse]
	sent chan *meridianv1.WatchResponse
}

func newWatch(ctx context.Context, sent chan *meridianv1.WatchResponse) *watchStream {
	w := &watchStream{sent: sent}
	w.Ctx, w.OnSend = ctx, func(r *meridianv1.WatchResponse) error {
		select {
		case sent <- r:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return w
}

// ended is the stream of a watch that ends at once.
func ended(who context.Context) *watchStream {
	ctx, cancel := context.WithCancel(who)
	cancel()
	return newWatch(ctx, make(chan *meridianv1.WatchResponse, 8))
}

// A watch shows a change when, and only when, its reader has the right to read it:
// a history of changes and of rights that come and go. What ceases to be readable
// by its content is shown as deleted, and what comes to be readable as created.
func TestWatchFollowsRights(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newGranted(t)
		ctx, cancel := context.WithCancel(user("carl"))
		defer cancel()
		stream := newWatch(ctx, make(chan *meridianv1.WatchResponse))
		var watching sync.WaitGroup
		watching.Go(func() { _ = s.Watch(&meridianv1.WatchRequest{}, stream) })
		defer watching.Wait()
		defer cancel()
		<-stream.sent // where it begins
		// Whatever carl may read besides, he always reads this: when it arrives, all
		// before it was judged.
		s.must("mark", message("AccessRole", "", "mark", `{"rules": [{"types": ["Mesh"], "names": ["mark"], "access": ["READ"]}]}`),
			message("AccessRoleBinding", "", "mark", `{"subjects": [{"type": "User", "name": "carl"}], "roles": ["mark"]}`))
		binding := message("AccessRoleBinding", "", "carl", `{"subjects": [{"type": "User", "name": "carl"}], "roles": ["carl"]}`)
		bound, stored := true, map[string]string{}
		for i := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			var want []string
			name := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")
			before, now := stored[name], ""
			switch step := rapid.SampledFrom([]string{"backend", "other", "delete", "bind", "unbind"}).Draw(rt, "step"); step {
			case "bind":
				s.change(s.op(binding))
				bound, now = true, before
			case "unbind":
				s.change(store.Delete(resource.Key{Kind: resource.KindAccessRoleBinding, Name: "carl"}))
				bound, now = false, before
			case "delete":
				if before == "" {
					continue
				}
				s.change(store.Delete(resource.Key{Kind: "TrafficPermission", Mesh: "demo", Name: name}))
			default:
				now = step
				s.change(s.op(permissionIn("demo", name, step)))
			}
			if bound && before != now {
				switch {
				case before == "backend":
					want = append(want, name+" OUTCOME_DELETED")
				case now == "backend":
					want = append(want, name+" OUTCOME_CREATED")
				}
			}
			if stored[name] = now; now == "" {
				delete(stored, name)
			}
			s.change(s.op(message("Mesh", "", "mark", fmt.Sprintf(`{"logging": {"backends": [{"name": "b%d", "type": "file", "conf": {"path": "/dev/null"}}]}}`, i))))
			require.Equal(rt, want, untilMark(rt, stream), "step %d", i)
		}
	})
}

// untilMark returns the changes that a watch shows before the next mark.
func untilMark(t *rapid.T, stream *watchStream) (shown []string) {
	for response := range stream.sent {
		for _, c := range response.GetChanges() {
			if c.GetResource().GetKind() == "Mesh" {
				require.Equal(t, "mark", c.GetResource().GetName())
				return shown
			}
			shown = append(shown, c.GetResource().GetName()+" "+c.GetOutcome().String())
		}
	}
	return shown
}

// No change that is written after a right was revoked is shown, whatever runs at
// the same time.
func TestARevokedRightEndsAWatch(t *testing.T) {
	s := newGranted(t)
	ctx, cancel := context.WithCancel(user("ann"))
	defer cancel()
	stream := newWatch(ctx, make(chan *meridianv1.WatchResponse))
	var running sync.WaitGroup
	running.Go(func() { _ = s.Watch(&meridianv1.WatchRequest{Mesh: "demo"}, stream) })
	<-stream.sent
	s.change(s.op(timeoutIn("demo", "first")))
	require.Len(t, (<-stream.sent).GetChanges(), 1)
	var revoked resource.Revision
	running.Go(func() {
		defer cancel()
		for i := range 200 {
			s.change(s.op(timeoutIn("demo", fmt.Sprintf("t%d", i%7))))
			if i == 60 {
				s.change(store.Delete(resource.Key{Kind: resource.KindAccessRoleBinding, Name: "ann"}))
				revoked = s.Revision()
			}
			s.change(store.Delete(resource.Key{Kind: "Timeout", Mesh: "demo", Name: fmt.Sprintf("t%d", i%7)}))
		}
	})
	var last uint64
	for ctx.Err() == nil {
		select {
		case response := <-stream.sent:
			last = response.GetRevision()
		case <-ctx.Done():
		}
	}
	running.Wait()
	require.LessOrEqual(t, last, uint64(revoked))
}

// answers is a service that gives a fixed answer.
type answers struct {
	meridianv1.UnimplementedInspectServiceServer
	document   any
	connection *meridianv1.DataplaneConnection
	err        error
}

func (a answers) Inspect(context.Context, *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	if a.err != nil {
		return nil, a.err
	}
	encoded, err := answer.Marshal(a.document)
	return &meridianv1.InspectResponse{Json: encoded, Connection: a.connection, Notes: []string{`zone "west" is offline`}}, err
}

// §6.1: an answer has nothing of what its reader may not read, neither in its data
// nor in prose.
func TestGrantedAnswers(t *testing.T) {
	s := newGranted(t)
	s.must("data", permissionIn("demo", "of-backend", "backend"), permissionIn("demo", "hidden", "other"),
		message("AccessRole", "", "dora", `{"rules": [{"types": ["Timeout", "Dataplane"], "mesh": "demo", "access": ["READ"]}]}`))
	document := &answer.DataplaneAnswer{
		Mesh: "demo", Dataplane: "web-1", Warnings: []string{"hidden supersedes visible"},
		Effective: []answer.Effective{
			{Kind: "Timeout", Policies: []string{"visible"}, Considered: []answer.Considered{{Policy: "visible", Used: true, Reason: "beats hidden"}}},
			{Kind: "Retry", Policies: []string{"hidden"}, Considered: []answer.Considered{{Policy: "hidden", Used: true}}},
		},
	}
	about := func(name string) *meridianv1.InspectRequest {
		return &meridianv1.InspectRequest{Mesh: "demo", Question: &meridianv1.InspectRequest_Dataplane{Dataplane: &meridianv1.DataplaneQuestion{Name: name}}}
	}
	serve := func(who string, a answers, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		inspect := &Inspect{Answers: a, Readers: s.cfg.Access, View: s.cfg.View}
		return inspect.Inspect(user(who), req)
	}
	whole, err := serve("ann", answers{document: document}, about("web-1"))
	require.NoError(t, err)
	require.Contains(t, string(whole.GetJson()), "hidden supersedes visible")
	require.NotContains(t, fmt.Sprint(whole.GetNotes()), "west", "ann may not read zones")

	part, err := serve("dora", answers{document: document}, about("web-1"))
	require.NoError(t, err)
	require.Contains(t, string(part.GetJson()), "visible")
	require.NotContains(t, string(part.GetJson()), "hidden")
	require.Contains(t, part.GetNotes()[0], "may not read")

	// Which zones an answer lacks is for those who may read them.
	connection := question.Request(question.Connection{From: "web-1", To: "web-2"}, "demo", "")
	lacking := &answer.ConnectionAnswer{Mesh: "demo", Incomplete: []answer.Absence{
		{Zone: "west", Reason: "west is offline"}, {Server: "west-2", Reason: "west is offline"},
	}}
	for _, who := range []string{"ann", "dora"} {
		shown, err := serve(who, answers{document: lacking}, connection)
		require.NoError(t, err)
		require.Contains(t, string(shown.GetJson()), `"zone": "another"`, "that something is missing is said")
		require.NotContains(t, string(shown.GetJson())+fmt.Sprint(shown.GetNotes()), "west", who)
	}
	// What the global asks its zones is refused from clients: it would not be filtered.
	for _, internal := range []question.Connection{
		{From: "web-1", To: "web-2", Ends: true},
		{From: "web-1", To: "web-2", Elsewhere: &answer.ConnectionEnds{Called: true}},
	} {
		for _, who := range []string{"ann", "dora", "root"} {
			_, err := serve(who, answers{document: lacking}, question.Request(internal, "demo", ""))
			require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), who)
		}
	}

	_, err = serve("carl", answers{document: document}, about("web-1"))
	requireCode(t, err, rpcerr.Denied, `READ on Dataplane "web-1" in mesh "demo"`)
	missing := answers{err: rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "not found; did you mean hidden?")}
	_, err = serve("dora", missing, about("web-2"))
	require.NotContains(t, requireCode(t, err, rpcerr.NotFound).Message, "hidden")

	// A policy that may be read by its content is answered about, another one not.
	policy := func(name string) *meridianv1.InspectRequest {
		return &meridianv1.InspectRequest{Mesh: "demo", Question: &meridianv1.InspectRequest_Policy{Policy: &meridianv1.PolicyQuestion{Kind: "TrafficPermission", Name: name}}}
	}
	places := &answer.PolicyAnswer{Kind: "TrafficPermission", Mesh: "demo", Name: "of-backend", Dataplanes: []answer.PolicyDataplane{{Name: "web-1"}}}
	response, err := serve("carl", answers{document: places}, policy("of-backend"))
	require.NoError(t, err)
	require.NotContains(t, string(response.GetJson()), "web-1")
	_, err = serve("carl", answers{document: places}, policy("hidden"))
	requireCode(t, err, rpcerr.Denied)
}

// §6.1: of the paths through a gateway a reader sees those of which it may read the
// route, of its kind, and every policy, the losing ones too.
func TestGrantedPathsOfAGateway(t *testing.T) {
	s := newGranted(t)
	role := func(rules string) {
		s.must("role of dora", message("AccessRole", "", "dora", `{"rules": [`+rules+`]}`))
	}
	document := &answer.GatewayAnswer{
		Mesh: "demo", Gateway: "edge",
		Conditions: []policies.Condition{{Type: "kuadrant.io/AuthPolicyAffected", Status: "True", Message: "affected by hidden"}},
	}
	path := func(rule string, change func(*answer.RoutePath)) {
		p := answer.RoutePath{
			Gateway: "edge", Listener: "http", Route: "shop", Rule: rule, Kind: "AuthPolicy", RouteKind: "HTTPRoute",
			Origins: map[string]string{"a": "visible"},
		}
		change(&p)
		document.Paths = append(document.Paths, p)
	}
	path("shown", func(p *answer.RoutePath) {
		p.Skipped = []answer.SkippedBlock{{Policy: "visible", Block: "overrides", Reason: "when: no such key: of-hidden"}}
	})
	path("of a route", func(p *answer.RoutePath) { p.Route = "hidden" })
	path("of another kind", func(p *answer.RoutePath) { p.RouteKind = "GRPCRoute" })
	path("from", func(p *answer.RoutePath) { p.Origins["a"] = "hidden" })
	path("overridden by", func(p *answer.RoutePath) { p.Overridden = map[string]string{"b": "hidden"} })
	path("overridden of", func(p *answer.RoutePath) { p.OverriddenOf = map[string][]string{"b": {"visible", "hidden"}} })
	path("unset by", func(p *answer.RoutePath) { p.Unset = map[string]string{"b": "hidden"} })
	path("unset of", func(p *answer.RoutePath) { p.UnsetOf = map[string][]string{"b": {"hidden"}} })
	path("skipped", func(p *answer.RoutePath) { p.Skipped = []answer.SkippedBlock{{Policy: "hidden"}} })
	about := &meridianv1.InspectRequest{Mesh: "demo", Question: &meridianv1.InspectRequest_Gateway{Gateway: &meridianv1.GatewayQuestion{Name: "edge"}}}
	ask := func(who string) (*answer.GatewayAnswer, error) {
		inspect := &Inspect{Answers: answers{document: document}, Readers: s.cfg.Access, View: s.cfg.View}
		response, err := inspect.Inspect(user(who), about)
		if err != nil {
			return nil, err
		}
		a := new(answer.GatewayAnswer)
		return a, answer.Unmarshal(response.GetJson(), a)
	}

	whole, err := ask("ann")
	require.NoError(t, err)
	require.Len(t, whole.Paths, 9)

	_, err = ask("dora")
	requireCode(t, err, rpcerr.Denied, `READ on Gateway "edge" in mesh "demo"`)

	role(`{"mesh": "demo", "types": ["Gateway"], "access": ["READ"]}`)
	part, err := ask("dora")
	require.NoError(t, err)
	require.Empty(t, part.Paths)

	role(`{"mesh": "demo", "types": ["Gateway"], "access": ["READ"]},
		{"mesh": "demo", "types": ["HTTPRoute"], "names": ["shop"], "access": ["READ"]},
		{"mesh": "demo", "types": ["AuthPolicy"], "names": ["visible"], "access": ["READ"]}`)
	part, err = ask("dora")
	require.NoError(t, err)
	require.Len(t, part.Paths, 1)
	require.Equal(t, "shown", part.Paths[0].Rule)
	encoded, err := answer.Marshal(part)
	require.NoError(t, err)
	require.NotContains(t, string(encoded), "hidden")
}

// §6.1: who may read nothing that a list could have gets an empty one, and no other
// server is asked for it.
func TestGrantedLists(t *testing.T) {
	s := newGranted(t)
	list := func(who string, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		asked := answers{err: rpcerr.New(rpcerr.Unavailable, "ASKED", "the zones were asked")}
		return (&Inspect{Answers: asked, Readers: s.cfg.Access, View: s.cfg.View}).Inspect(user(who), req)
	}
	dataplanes := &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Dataplanes{Dataplanes: &meridianv1.DataplanesQuestion{}}}
	timeouts := &meridianv1.InspectRequest{Mesh: "demo", Question: &meridianv1.InspectRequest_Conditions{Conditions: &meridianv1.ConditionsQuestion{Kind: "Timeout"}}}
	for _, req := range []*meridianv1.InspectRequest{dataplanes, timeouts} {
		response, err := list("eve", req)
		require.NoError(t, err)
		require.Contains(t, string(response.GetJson()), `"items": []`)
		require.Contains(t, response.GetNotes()[0], "may not read")
	}
	// What holds for everything in a mesh is for who reads all of it, and what other zones
	// have is told by the global alone.
	invariant := &meridianv1.InspectRequest{Mesh: "demo", Question: &meridianv1.InspectRequest_Invariant{Invariant: &meridianv1.InvariantQuestion{Over: "connections", Expression: "true"}}}
	for _, who := range []string{"eve", "dora", "ann"} {
		_, err := list(who, invariant)
		requireCode(t, err, rpcerr.Denied)
	}
	invariant.GetInvariant().Elsewhere = []byte("[]")
	_, err := list("ann", invariant)
	requireCode(t, err, rpcerr.Invalid)
	_, err = list("ann", dataplanes)
	requireCode(t, err, rpcerr.Unavailable)
	_, err = list("dora", timeouts)
	requireCode(t, err, rpcerr.Unavailable)
}

// §6.1: an HTTPRoute and a GRPCRoute that share a name are two resources, and why a
// proxy refused its configuration is for who may read everything that is in it.
func TestGrantedAnswersAboutOneOfTwo(t *testing.T) {
	s := newGranted(t)
	const route = `{"parentRefs": [{"name": "g"}]}`
	s.must("data", message("HTTPRoute", "demo", "both", route), message("GRPCRoute", "demo", "both", route), message("GRPCRoute", "demo", "grpc", route),
		message("AccessRole", "", "dora", `{"rules": [{"types": ["HTTPRoute", "Gateway", "AuthPolicy", "Dataplane"], "access": ["READ"]}]}`))
	ask := func(document any, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		inspect := &Inspect{Answers: answers{document: document, connection: &meridianv1.DataplaneConnection{State: "online", LastError: "policy hidden"}}, Readers: s.cfg.Access, View: s.cfg.View}
		req.Mesh = "demo"
		return inspect.Inspect(user("dora"), req)
	}
	about := func(name string) *meridianv1.InspectRequest {
		return &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Route{Route: &meridianv1.RouteQuestion{Name: name}}}
	}
	response, err := ask(&answer.RouteAnswer{Mesh: "demo", Route: "both", Paths: []answer.RoutePath{
		{Gateway: "g", Rule: "visible", Kind: "AuthPolicy", RouteKind: "HTTPRoute"}, {Gateway: "g", Rule: "hidden", Kind: "AuthPolicy", RouteKind: "GRPCRoute"},
	}, Conditions: []policies.Condition{{Type: "Visible", RouteKind: "HTTPRoute"}, {Type: "Hidden", RouteKind: "GRPCRoute"}}}, about("both"))
	require.NoError(t, err)
	require.Contains(t, string(response.GetJson()), "visible")
	require.Contains(t, string(response.GetJson()), "Visible")
	require.NotContains(t, string(response.GetJson()), "hidden")
	require.NotContains(t, string(response.GetJson()), "Hidden")

	// The name alone, which may be read as that of an HTTPRoute, opens no GRPCRoute.
	_, there := ask(&answer.RouteAnswer{Mesh: "demo", Route: "grpc", Paths: []answer.RoutePath{{Gateway: "g", Kind: "AuthPolicy"}}}, about("grpc"))
	requireCode(t, there, rpcerr.NotFound)

	// Of an answer that names a route without its kind, what is on a name that may be
	// another kind's is left out.
	question := &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Dataplane{Dataplane: &meridianv1.DataplaneQuestion{Name: "web-1"}}}
	on := func(route string) answer.Effective {
		return answer.Effective{Kind: "AuthPolicy", Attachment: policies.Attachment{Type: policies.OnOutbound, Route: route}}
	}
	s.must("http", message("HTTPRoute", "demo", "http", route))
	response, err = ask(&answer.DataplaneAnswer{Mesh: "demo", Effective: []answer.Effective{on("both"), on("grpc"), on("http"), on("")}}, question)
	require.NoError(t, err)
	var part answer.DataplaneAnswer
	require.NoError(t, answer.Unmarshal(response.GetJson(), &part))
	require.Len(t, part.Effective, 2)
	require.Equal(t, "http", part.Effective[0].Attachment.Route)
	require.True(t, part.Partial.Partial)

	response, err = ask(&answer.DataplaneAnswer{Mesh: "demo", Dataplane: "web-1"},
		&meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Dataplane{Dataplane: &meridianv1.DataplaneQuestion{Name: "web-1"}}})
	require.NoError(t, err)
	require.Equal(t, "online", response.GetConnection().GetState())
	require.Empty(t, response.GetConnection().GetLastError())
	response, err = ask(&answer.DataplanesAnswer{Items: []answer.DataplaneSummary{
		{Mesh: "demo", Name: "web-1", ProxyState: &answer.ProxyState{State: answer.ProxyOnline, LastError: "policy hidden"}},
	}}, &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Dataplanes{Dataplanes: &meridianv1.DataplanesQuestion{}}})
	require.NoError(t, err)
	require.Contains(t, string(response.GetJson()), "online")
	require.NotContains(t, string(response.GetJson()), "hidden")
}

// §6.1: how a name is shown is told of resources that may be read, and not of others
// that happen to have the name of something in the answer.
func TestGrantedNames(t *testing.T) {
	s := newGranted(t)
	labels := map[string]string{resource.LabelNamespace: "shop"}
	route := message("HTTPRoute", "demo", "cart.shop", `{"parentRefs": [{"name": "g"}]}`)
	hidden := message("Gateway", "demo", "edge.shop", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`)
	route.Labels, hidden.Labels = labels, labels
	s.must("data", route, hidden, message("AccessRole", "", "dora", `{"rules": [{"types": ["HTTPRoute", "Dataplane"], "access": ["READ"]}]}`))
	document := &answer.DataplaneAnswer{Mesh: "demo", Dataplane: "web-1", Zone: "edge.shop", Effective: []answer.Effective{
		{Kind: "Timeout", Attachment: policies.Attachment{Type: policies.OnOutbound, Route: "cart.shop"}},
	}}
	inspect := &Inspect{Answers: answers{document: document}, Readers: s.cfg.Access, View: s.cfg.View}
	response, err := inspect.Inspect(user("dora"), &meridianv1.InspectRequest{Mesh: "demo", Question: &meridianv1.InspectRequest_Dataplane{
		Dataplane: &meridianv1.DataplaneQuestion{Name: "web-1"},
	}})
	require.NoError(t, err)
	require.Contains(t, string(response.GetJson()), "edge.shop")
	require.Equal(t, map[string]string{"cart.shop": "shop/cart"}, response.GetShownNames())
}

// §6.1: a wait for zones tells who may read some of them nothing of the others, and
// does not begin for who may read none.
func TestGrantedWaits(t *testing.T) {
	s := newGranted(t)
	s.must("zones", message("AccessRole", "", "dora", `{"rules": [{"types": ["Zone"], "names": ["east"], "access": ["READ"]}]}`))
	waits, ends := 0, error(nil)
	s.cfg.WaitForZones = func(_ context.Context, _ ZoneWait, progress func([]PendingZone) error) ([]string, error) {
		waits++
		if err := progress([]PendingZone{{Name: "east", State: "stale", LastError: "west"}, {Name: "west", State: "stale", ProxiesBehind: 77}}); err != nil {
			return nil, err
		}
		return []string{"zone west is offline"}, ends
	}
	wait := func(who context.Context) ([]*meridianv1.WaitForZonesResponse, error) {
		stream := &grpctest.Stream[meridianv1.WaitForZonesRequest, meridianv1.WaitForZonesResponse]{Ctx: who}
		err := s.WaitForZones(&meridianv1.WaitForZonesRequest{Revision: 1}, stream)
		return stream.Sent, err
	}
	_, err := wait(user("eve"))
	requireCode(t, err, rpcerr.Denied, "READ on Zone")
	_, err = wait(authn.WithPrincipal(context.Background(), authn.Anonymous()))
	requireCode(t, err, rpcerr.Denied)
	require.Zero(t, waits)

	sent, err := wait(user("dora"))
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(sent), "east")
	require.NotContains(t, fmt.Sprint(sent), "west")
	require.NotContains(t, fmt.Sprint(sent), "77", "how many proxies another zone has")
	require.Len(t, sent[1].GetWarnings(), 1)
	sent, err = wait(root)
	require.NoError(t, err)
	require.Equal(t, []string{"zone west is offline"}, sent[1].GetWarnings())
	require.Equal(t, "west", sent[0].GetPending()[0].GetLastError())

	ends = errors.New("revision 1 is not applied yet in: west")
	_, err = wait(user("dora"))
	require.NotContains(t, requireCode(t, err, rpcerr.Timeout, "east (stale), another (stale)").Message, "west")
	require.NotErrorIs(t, err, ends)
	_, err = wait(root)
	requireCode(t, err, rpcerr.Timeout, "yet in: west")
}
