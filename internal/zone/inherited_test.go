package zone

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/service/discovery"
	"meridian/internal/store"
	"meridian/internal/turns"
	"meridian/internal/xds"
)

// gateways is a zone's service over a replica with a gateway, a route and a
// policy on each, of which a version of "held" is in quarantine, and so is
// "unusable", of which no version was ever usable.
func gateways(t *testing.T) *inspectService {
	t.Helper()
	build := func(kind resource.Kind, mesh resource.MeshName, name, spec string) store.Op {
		return store.Put(resourcetest.Build(t, kind, mesh, name, spec))
	}
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(7, store.Txn{Ops: []store.Op{
		build("Mesh", "", "default", `{}`),
		build("Gateway", "default", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
		build("HTTPRoute", "default", "r1", `{"parentRefs": [{"name": "g"}], "rules": [{}]}`),
		build("AuthPolicy", "default", "held", `{"targetRef": {"kind": "Gateway", "name": "g"}, "rules": {"authentication": {"a": 1}}}`),
	}}).Err)
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	return &inspectService{
		zone: "east", matching: livematch.New(engines.NewMatcher(compiler), s), turns: turns.NewServer(),
		xds: discovery.New(discovery.Config{Source: noProxies{}}),
		quarantined: func(key resource.Key) (policy.Condition, bool) {
			return answer.Quarantined("east", 2, "unknown field"), key.Name == "held" || key.Name == "unusable"
		},
	}
}

// noProxies is what a zone has for proxies that follow it over xDS, while there are none.
type noProxies struct{ xds.Source }

func (noProxies) OnTouch(func([]resource.Key)) {}

func (noProxies) Listening(resource.Key, bool, bool) {}

func ask[D any](t *testing.T, s *inspectService, req *meridianv1.InspectRequest) (*D, error) {
	t.Helper()
	req.Mesh = "default"
	response, err := s.Inspect(t.Context(), req)
	if err != nil {
		return nil, err
	}
	require.Equal(t, uint64(7), response.GetAsOf())
	var d D
	require.NoError(t, answer.Unmarshal(response.GetJson(), &d))
	return &d, nil
}

func aboutPolicy(name, rule string) *meridianv1.InspectRequest {
	return &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Policy{
		Policy: &meridianv1.PolicyQuestion{Kind: "AuthPolicy", Name: name, Rule: rule},
	}}
}

func TestZoneAnswersForRoutes(t *testing.T) {
	s := gateways(t)
	route, err := ask[answer.RouteAnswer](t, s, &meridianv1.InspectRequest{
		Question: &meridianv1.InspectRequest_Route{Route: &meridianv1.RouteQuestion{Name: "r1"}},
	})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"authentication.a": "held"}, route.Paths[0].Origins)
	rules, err := ask[answer.RuleAnswer](t, s, aboutPolicy("held", "authentication.a"))
	require.NoError(t, err)
	require.Len(t, rules.Rules, 1)
}

// §5.8, §7.4: a zone that holds a policy in quarantine says so, and
// continues with the last version it could use.
func TestZoneTellsOfQuarantine(t *testing.T) {
	s := gateways(t)
	held, err := ask[answer.PolicyAnswer](t, s, aboutPolicy("held", ""))
	require.NoError(t, err)
	require.Len(t, held.Conditions, 3)
	require.Equal(t, `Zone "east" cannot use version 2: unknown field`, held.Conditions[2].Message)

	unusable, err := ask[answer.PolicyAnswer](t, s, aboutPolicy("unusable", ""))
	require.NoError(t, err)
	require.Len(t, unusable.Conditions, 1)
	require.Empty(t, unusable.Dataplanes)

	_, err = ask[answer.PolicyAnswer](t, s, aboutPolicy("absent", ""))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
}

// §5.8: the conditions of everything of a kind.
func TestZoneSummarisesConditions(t *testing.T) {
	s := gateways(t)
	about := func(kind string) (*answer.ConditionsAnswer, error) {
		return ask[answer.ConditionsAnswer](t, s, &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Conditions{
			Conditions: &meridianv1.ConditionsQuestion{Kind: kind},
		}})
	}
	a, err := about("auth-policy")
	require.NoError(t, err)
	require.Equal(t, []answer.ConditionsItem{{Mesh: "default", Name: "held", Conditions: []answer.ConditionSummary{
		{Type: "Accepted", Status: "True", Reason: "Accepted"},
		{Type: "Enforced", Status: "True", Reason: "Enforced"},
		{Type: "Quarantined", Status: "True", Reason: "ZoneCannotUse"},
	}}}, a.Items)
	_, err = about("Secret")
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
}

// An answer that no message could hold is refused with what to ask instead.
func TestAnswerTooLargeToSend(t *testing.T) {
	s := gateways(t)
	question := &meridianv1.InspectRequest{Mesh: "default", Question: &meridianv1.InspectRequest_Dataplanes{Dataplanes: &meridianv1.DataplanesQuestion{}}}
	_, err := s.Inspect(t.Context(), question)
	require.NoError(t, err)
	s.maxBytes = 8
	_, err = s.Inspect(t.Context(), question)
	require.Equal(t, rpcerr.TooLarge, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, "meridian why DATAPLANE KIND")
}

// §1.1: beside the document, which has stored names, stands how people are shown them.
func TestZoneTellsHowNamesAreShown(t *testing.T) {
	s := store.New(store.DefaultOptions())
	meta := resource.Meta{
		Key:    resource.Key{Kind: "HTTPRoute", Mesh: "default", Name: "cart.shop"},
		Labels: map[string]string{resource.LabelNamespace: "shop"},
	}
	route, _, err := resource.Build(meta, []byte(`{"parentRefs": [{"name": "g"}]}`))
	require.NoError(t, err)
	require.NoError(t, s.Apply(7, store.Txn{Ops: []store.Op{
		store.Put(resourcetest.Build(t, "Mesh", "", "default", `{}`)), store.Put(route),
	}}).Err)
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	service := &inspectService{zone: "east", matching: livematch.New(engines.NewMatcher(compiler), s), turns: turns.NewServer(), xds: discovery.New(discovery.Config{Source: noProxies{}})}
	response, err := service.Inspect(t.Context(), &meridianv1.InspectRequest{Mesh: "default", Question: &meridianv1.InspectRequest_Route{
		Route: &meridianv1.RouteQuestion{Name: "cart.shop"},
	}})
	require.NoError(t, err)
	require.Contains(t, string(response.GetJson()), `"cart.shop"`)
	require.Equal(t, map[string]string{"cart.shop": "shop/cart"}, response.GetShownNames())
}

// Questions take turns with other work: those of a caller that has as much in progress as
// it may wait, and the questions of others do not, nor do those that the global passes on.
func TestQuestionsTakeTurns(t *testing.T) {
	s := gateways(t)
	as := func(name string) context.Context {
		return authn.WithPrincipal(t.Context(), authn.Principal{Name: name, Source: authn.FromToken})
	}
	most := turns.DefaultLimits().PerCaller
	begun, end := make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	for range most {
		running.Go(func() {
			_ = s.turns.Work(as("bob"), 0, func() error {
				begun <- struct{}{}
				<-end
				return nil
			})
		})
		<-begun
	}
	request := func() *meridianv1.InspectRequest {
		req := aboutPolicy("held", "")
		req.Mesh = "default"
		return req
	}
	answered := make(chan error, 1)
	running.Go(func() {
		_, err := s.Inspect(as("bob"), request())
		answered <- err
	})
	require.Eventually(t, func() bool { work, _ := s.turns.Stats(); return work.Waiting == 1 }, 10*time.Second, time.Millisecond)
	_, err := s.Inspect(as("ann"), request())
	require.NoError(t, err)
	question, err := proto.Marshal(request())
	require.NoError(t, err)
	_, err = s.answerRelayed(t.Context(), question)
	require.NoError(t, err)
	require.Empty(t, answered)
	close(end)
	require.NoError(t, <-answered)
	running.Wait()
}
