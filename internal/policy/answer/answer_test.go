package answer_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// scenario returns a matcher over the documents of a scenario.
func scenario(t *testing.T, name string) *policy.Matcher {
	t.Helper()
	m := newMatcher(t)
	m.Reset(load(t, scenarios+"/"+name+"/input.yaml", "east", false))
	return m
}

func TestWhatDoesNotExist(t *testing.T) {
	m := scenario(t, "connection-to-every-inbound")
	tests := map[string]struct {
		ask  func() error
		want error
		says string
	}{
		"dataplane": {
			func() error { _, err := answer.Dataplane(m, "default", "web-2", "east", 0); return err },
			answer.ErrNotFound, `dataplane "web-2" in mesh "default": not found; did you mean "web-1"?`,
		},
		"dataplane of another mesh": {
			func() error { _, err := answer.Dataplane(m, "payments", "web-1", "east", 0); return err },
			answer.ErrNotFound, `there is one in mesh "default"`,
		},
		"caller": {
			func() error {
				_, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "default", From: "wob-1", To: "backend-1"}, 0)
				return err
			},
			answer.ErrNotFound, `did you mean "web-1"?`,
		},
		"port": {
			func() error {
				_, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "default", From: "web-1", To: "backend-1", Port: 80}, 0)
				return err
			},
			answer.ErrNotFound, "it has 9000 and 9001",
		},
		"policy": {
			func() error {
				_, err := answer.Policy(m, "TrafficPermission", "default", "catch-all-polcy", "east", 0)
				return err
			},
			answer.ErrNotFound, `did you mean "catch-all-policy"?`,
		},
		"gateway": {
			func() error {
				_, err := answer.Gateway(scenario(t, "inherit-paths-of-a-gateway"), "default", "edeg", 0)
				return err
			},
			answer.ErrNotFound, `gateway "edeg" in mesh "default": not found; did you mean "edge"?`,
		},
		"gateway of another mesh": {
			func() error {
				_, err := answer.Gateway(scenario(t, "inherit-paths-of-a-gateway"), "payments", "edge", 0)
				return err
			},
			answer.ErrNotFound, `gateway "edge" in mesh "payments": not found`,
		},
		"kind that is no policy": {
			func() error { _, err := answer.Policy(m, "Dataplane", "default", "web-1", "east", 0); return err },
			answer.ErrInvalid, "it is not a kind of policy",
		},
		"kind that is not matched": {
			func() error {
				_, err := answer.Why(m, answer.WhyQuestion{Mesh: "default", Dataplane: "web-1", Kind: "Mesh"}, "east", 0)
				return err
			},
			answer.ErrInvalid, "not matched to dataplanes",
		},
		"outbound": {
			func() error {
				_, err := answer.Why(m, answer.WhyQuestion{Mesh: "default", Dataplane: "web-1", Kind: "Retry", To: "admin"}, "east", 0)
				return err
			},
			answer.ErrNotFound, "it has outbounds to backend",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.ask()
			require.ErrorIs(t, err, tt.want)
			require.Contains(t, err.Error(), tt.says)
		})
	}
}

func TestGatewayHasNoInbounds(t *testing.T) {
	m := scenario(t, "proxy-template-on-gateway")
	_, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "default", From: "edge-1", To: "edge-1"}, 0)
	require.ErrorIs(t, err, answer.ErrNotFound)
	require.Contains(t, err.Error(), "it is a gateway")
}

func TestWhyNamesWinnerLosersAndRule(t *testing.T) {
	m := scenario(t, "more-tags-win")
	a, err := answer.Why(m, answer.WhyQuestion{
		Mesh: "default", Dataplane: "web-1", Kind: "TrafficLog", Field: "backend", To: "backend",
	}, "east", 7)
	require.NoError(t, err)
	require.Len(t, a.Entries, 1)
	require.Equal(t, []answer.WhyField{{
		Field: "/backend", Value: "splunk", Policy: "web-to-backend-policy", Rule: "3.3", Reason: "4 tags beat 2",
		Losers: []answer.WhyLoser{{
			Policy: "catch-all-policy", Value: "logstash", Rule: "3.3",
			Reason: "loses to web-to-backend-policy: matches 2 tags, the winner matches 4",
		}},
	}}, a.Entries[0].Fields)
	require.Empty(t, a.Elsewhere)
}

// A policy that selects the dataplane and never reaches what is asked about is
// mentioned: it is what its author is looking for.
func TestWhyNamesPoliciesThatDoNotReach(t *testing.T) {
	m := scenario(t, "more-tags-win")
	a, err := answer.Why(m, answer.WhyQuestion{Mesh: "default", Dataplane: "web-1", Kind: "TrafficLog", To: "admin"}, "east", 0)
	require.NoError(t, err)
	require.Equal(t, []string{"web-to-backend-policy"}, a.Elsewhere)
}

func TestWhyForOneCaller(t *testing.T) {
	m := scenario(t, "kuma2020-inbound-ranked-over-both")
	q := answer.WhyQuestion{
		Mesh: "default", Dataplane: "backend-1", Kind: "FaultInjection", Field: "/delay/value",
		From: resource.Tags{resource.ServiceTag: "web", "version": "v1"},
	}
	a, err := answer.Why(m, q, "east", 0)
	require.NoError(t, err)
	require.Len(t, a.Entries, 1)
	require.Len(t, a.Entries[0].Fields, 1)
	f := a.Entries[0].Fields[0]
	require.Equal(t, "slow-for-web", f.Policy)
	require.Equal(t, "4 tags beat 3", f.Reason)
	require.Equal(t, "slow-for-all", f.Losers[0].Policy)
	require.Equal(t, "3.3", f.Losers[0].Rule)

	q.From = resource.Tags{resource.ServiceTag: "other"}
	a, err = answer.Why(m, q, "east", 0)
	require.NoError(t, err)
	require.Equal(t, "slow-for-all", a.Entries[0].Fields[0].Policy)
	require.Empty(t, a.Entries[0].Fields[0].Losers)
}

// §1.3: a mesh that is gone leaves its dataplanes unmatched, and
// reported.
func TestMissingMeshIsReported(t *testing.T) {
	m := scenario(t, "more-tags-win")
	var view policy.View
	require.NoError(t, m.Read(func(r *policy.Reading) error { view = r.View(); return nil }))
	var rest []*resource.Resource
	for _, kind := range []resource.Kind{"Dataplane", "TrafficLog"} {
		for r := range view.List(kind, "") {
			rest = append(rest, r)
		}
	}
	touched := m.Update(policy.NewSnapshot(rest...), []resource.Key{{Kind: "Mesh", Name: "default"}})
	require.Len(t, touched, 1)
	a, err := answer.Dataplane(m, "default", "web-1", "east", 0)
	require.NoError(t, err)
	require.Empty(t, a.Effective)
	require.Equal(t, []string{`mesh "default" does not exist: no policy is matched`}, a.Warnings)
	list, err := answer.Dataplanes(m, "", "east")
	require.NoError(t, err)
	require.Equal(t, "mesh default does not exist", list.Items[0].Unmatched)
}

// What a server sends is rendered as what offline evaluation finds.
func TestMarshalRoundTrip(t *testing.T) {
	m := scenario(t, "connection-to-one-port")
	a, err := answer.Dataplane(m, "default", "backend-1", "east", 1841)
	require.NoError(t, err)
	text, err := answer.Marshal(a)
	require.NoError(t, err)
	var back answer.DataplaneAnswer
	require.NoError(t, answer.Unmarshal(text, &back))
	again, err := answer.Marshal(&back)
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
}

func TestRender(t *testing.T) {
	render := func(t *testing.T, do func(*strings.Builder) error) string {
		t.Helper()
		var b strings.Builder
		require.NoError(t, do(&b))
		return b.String()
	}
	t.Run("dataplane", func(t *testing.T) {
		a, err := answer.Dataplane(scenario(t, "more-tags-win"), "default", "web-1", "east", 1841)
		require.NoError(t, err)
		require.Equal(t, `web-1  mesh default, zone east, revision 1841

ATTACHMENT             KIND        POLICY                 WHY
outbound backend:1234  TrafficLog  web-to-backend-policy  4 tags beat 2 (§3.3)
outbound admin:1235    TrafficLog  catch-all-policy       no other policy matches (§3.2)
`, render(t, func(b *strings.Builder) error { return answer.RenderDataplane(b, a, answer.Form{}) }))
		require.Equal(t, `web-1  mesh default, zone east, revision 1841

ATTACHMENT             KIND        POLICY                 WHY
outbound backend:1234  TrafficLog  web-to-backend-policy  4 tags beat 2 (§3.3)
    {"backend":"splunk"}
    not catch-all-policy: loses to web-to-backend-policy: matches 2 tags, the winner matches 4 (§3.3)
outbound admin:1235    TrafficLog  catch-all-policy       no other policy matches (§3.2)
    {"backend":"logstash"}
    not web-to-backend-policy: its destinations do not match this outbound (§3.2)
`, render(t, func(b *strings.Builder) error { return answer.RenderDataplane(b, a, answer.Form{Wide: true}) }))
	})
	t.Run("nothing effective", func(t *testing.T) {
		a, err := answer.Dataplane(scenario(t, "permission-leaves-source-alone"), "default", "web-1", "east", 0)
		require.NoError(t, err)
		require.Equal(t, "web-1  mesh default, zone east\n\nNo policy takes effect on it.\n",
			render(t, func(b *strings.Builder) error { return answer.RenderDataplane(b, a, answer.Form{}) }))
	})
	t.Run("list per caller", func(t *testing.T) {
		a, err := answer.Dataplane(scenario(t, "shadowed-source"), "default", "backend-1", "east", 0)
		require.NoError(t, err)
		require.Equal(t, `backend-1  mesh default, zone east

ATTACHMENT            KIND       POLICY  WHY
inbound backend:9000  RateLimit  limits  no other policy matches (§3.2)
    1. from kuma.io/service=*  {"http":{"interval":"10s","requests":5}}  limits
    2. from kuma.io/service=web,version=v1  {"http":{"interval":"10s","requests":5}}  limits  (shadowed by limits)
`, render(t, func(b *strings.Builder) error { return answer.RenderDataplane(b, a, answer.Form{Wide: true}) }))
	})
	t.Run("attachments of one name are distinguished by tags", func(t *testing.T) {
		m := scenario(t, "destination-by-any-tag")
		a, err := answer.Policy(m, "Retry", "default", "all", "east", 0)
		require.NoError(t, err)
		require.Equal(t, `Retry all  mesh default

DATAPLANE  ZONE  ATTACHMENTS
web-1      east  outbound backend:1235
`, render(t, func(b *strings.Builder) error { return answer.RenderPolicy(b, a, answer.Form{}) }))
	})
	t.Run("connection", func(t *testing.T) {
		m := scenario(t, "connection-to-every-inbound")
		a, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "default", From: "web-1", To: "backend-1"}, 3)
		require.NoError(t, err)
		require.Equal(t, `web-1 -> backend-1  mesh default, revision 3
denied on some inbounds

INBOUND           ALLOWED  BY
backend:9000      yes      catch-all-policy
backend-api:9001  no
`, render(t, func(b *strings.Builder) error { return answer.RenderConnection(b, a, answer.Form{}) }))
	})
	t.Run("connection to one port", func(t *testing.T) {
		m := scenario(t, "connection-to-one-port")
		a, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "default", From: "web-1", To: "backend-1", Port: 9000}, 0)
		require.NoError(t, err)
		require.Equal(t, `web-1 -> backend-1  mesh default
allowed by catch-all-policy

SIDE      PORT  KIND       POLICY   CONF
outbound  1234  Retry      retries  {"tcp":{"maxConnectAttempts":5}}
inbound   9000  RateLimit  limits   {"http":{"interval":"10s","requests":5}}
`, render(t, func(b *strings.Builder) error { return answer.RenderConnection(b, a, answer.Form{}) }))
	})
	t.Run("why", func(t *testing.T) {
		a, err := answer.Why(scenario(t, "more-tags-win"), answer.WhyQuestion{Mesh: "default", Dataplane: "web-1", Kind: "TrafficLog"}, "east", 0)
		require.NoError(t, err)
		require.Equal(t, `TrafficLog on web-1  mesh default, zone east

outbound backend:1234
  FIELD     VALUE     POLICY                 WHY
  /backend  "splunk"  web-to-backend-policy  4 tags beat 2 (§3.3)
      not "logstash" of catch-all-policy: loses to web-to-backend-policy: matches 2 tags, the winner matches 4 (§3.3)

outbound admin:1235
  FIELD     VALUE       POLICY            WHY
  /backend  "logstash"  catch-all-policy  no other policy matches (§3.2)
`, render(t, func(b *strings.Builder) error { return answer.RenderWhy(b, a, answer.Form{}) }))
	})
	t.Run("why without fields", func(t *testing.T) {
		a, err := answer.Why(scenario(t, "permissions-override"), answer.WhyQuestion{Mesh: "default", Dataplane: "a-1", Kind: "TrafficPermission"}, "east", 0)
		require.NoError(t, err)
		require.Equal(t, `TrafficPermission on a-1  mesh default, zone east

inbound a:9000
  #  FROM               POLICY        CONF
  1  kuma.io/service=b  allow-b-to-a  {}
  POLICY        USED  WHY
  allow-b-to-a  yes   as specific as allow-c-to-a and modified later (§3.4)
  allow-c-to-a  no    loses to allow-b-to-a: equally specific, the winner was modified later (§3.4)
`, render(t, func(b *strings.Builder) error { return answer.RenderWhy(b, a, answer.Form{}) }))
	})
	t.Run("gateway", func(t *testing.T) {
		a, err := answer.Gateway(scenario(t, "inherit-paths-of-a-gateway"), "default", "edge", 0)
		require.NoError(t, err)
		_, table, _ := strings.Cut(render(t, func(b *strings.Builder) error { return answer.RenderGateway(b, a, answer.Form{}) }), "\n\nLISTENER")
		require.Equal(t, `  ROUTE               RULE    KIND             EFFECTIVE               FROM
https     HTTPRoute/checkout  pay     AuthPolicy       authentication.api-key  checkout-auth
    authentication.api-key of edge-defaults is overridden by checkout-auth
    authorization.geo, a default of edge-defaults, is unset by checkout-auth
https     HTTPRoute/checkout  pay     RateLimitPolicy  per-user                cap
    per-user of pay-limits is overridden by cap
https     HTTPRoute/checkout  status  AuthPolicy       authentication.api-key  checkout-auth
    authentication.api-key of edge-defaults is overridden by checkout-auth
    authorization.geo, a default of edge-defaults, is unset by checkout-auth
https     HTTPRoute/checkout  status  RateLimitPolicy  per-user                status-limits
    overrides of cap skipped: when spec.limits["per-user"].rates.exists(r, r.limit > 100) is false
https     GRPCRoute/checkout  rule-1  AuthPolicy       authentication.api-key  edge-defaults
                                                       authorization.geo       edge-defaults
https     GRPCRoute/checkout  rule-1  RateLimitPolicy  no rules
    overrides of cap skipped: when spec.limits["per-user"].rates.exists(r, r.limit > 100) is false: no such key: per-user
internal  GRPCRoute/checkout  rule-1  AuthPolicy       authentication.api-key  edge-defaults
                                                       authorization.geo       edge-defaults
`, table)
		a, err = answer.Gateway(scenario(t, "inherit-paths-of-a-gateway"), "default", "other", 0)
		require.NoError(t, err)
		require.Contains(t, render(t, func(b *strings.Builder) error { return answer.RenderGateway(b, a, answer.Form{}) }), "No policy reaches a route through it.")
	})
	t.Run("losers on the paths to a route", func(t *testing.T) {
		a, err := answer.Route(scenario(t, "inherit-ties"), "default", "r1", 0)
		require.NoError(t, err)
		text := render(t, func(b *strings.Builder) error { return answer.RenderRoute(b, a, answer.Form{}) })
		require.Contains(t, text, "\n    authentication.a of established is overridden by newcomer\n    authorization.b of newcomer is overridden by established\n")
		// An earlier release answers without the losers.
		a.Paths[0].OverriddenOf = nil
		text = render(t, func(b *strings.Builder) error { return answer.RenderRoute(b, a, answer.Form{}) })
		require.Contains(t, text, "\n    authentication.a of another policy is overridden by newcomer\n")
	})
	t.Run("route of a gateway's dataplane", func(t *testing.T) {
		a := &answer.DataplaneAnswer{Mesh: "default", Dataplane: "edge-1", Effective: []answer.Effective{
			{Attachment: policy.Attachment{Type: policy.OnDataplane}, Kind: "MeshHealthCheck", Policies: []string{"all"}},
			{Attachment: policy.Attachment{Type: policy.OnDataplane, Route: "shop"}, Kind: "MeshHealthCheck", Policies: []string{"of-shop"}},
		}}
		text := render(t, func(b *strings.Builder) error { return answer.RenderDataplane(b, a, answer.Form{}) })
		require.Contains(t, text, "\ndataplane             MeshHealthCheck  all\n")
		require.Contains(t, text, "\ndataplane route shop  MeshHealthCheck  of-shop\n")
	})
	t.Run("dataplanes", func(t *testing.T) {
		a, err := answer.Dataplanes(scenario(t, "policy-where-used"), "", "east")
		require.NoError(t, err)
		require.Equal(t, `MESH     NAME   ZONE  SERVICES  POLICIES  OUTBOUNDS
default  web-1  east  web       2         admin, backend
default  web-2  east  web       1         backend
`, render(t, func(b *strings.Builder) error { return answer.RenderDataplanes(b, a, answer.Form{Wide: true}) }))
	})
}

// Dataplanes with equal attachments share a row, which names the first of them.
func TestRenderPolicyGroupsEqualDataplanes(t *testing.T) {
	a := &answer.PolicyAnswer{Kind: resource.KindTimeout, Mesh: "default", Name: "t"}
	for _, name := range []string{"web-1", "web-2", "web-3", "web-4", "web-5"} {
		a.Dataplanes = append(a.Dataplanes, answer.PolicyDataplane{
			Name: name, Zone: "east", Attachments: []policy.Attachment{{Type: policy.OnOutbound, Service: "backend", Port: 80}},
		})
	}
	a.Dataplanes = append(a.Dataplanes, answer.PolicyDataplane{
		Name: "web-9", Zone: "west", Attachments: []policy.Attachment{{Type: policy.OnOutbound, Service: "backend", Port: 80}},
	})
	var narrow, wide strings.Builder
	require.NoError(t, answer.RenderPolicy(&narrow, a, answer.Form{}))
	require.Contains(t, narrow.String(), "web-1, web-2, web-3, and 2 more  east")
	require.Contains(t, narrow.String(), "web-9                            west")
	require.NoError(t, answer.RenderPolicy(&wide, a, answer.Form{Wide: true}))
	require.Contains(t, wide.String(), "web-1, web-2, web-3, web-4, web-5  east")
}

// Of two routes that share a name every path says whose it is, also where the other
// has none: a reader of that one may not read it.
func TestPathsOfRoutesThatShareAName(t *testing.T) {
	m := scenario(t, "inherit-several-gateways")
	var all []*resource.Resource
	var name resource.Key
	require.NoError(t, m.Read(func(r *policy.Reading) error {
		for _, d := range resource.Kinds() {
			for found := range r.View().List(d.Kind, "") {
				all = append(all, found)
				if d.Kind == resource.KindHTTPRoute {
					name = found.Key()
				}
			}
		}
		return nil
	}))
	alone, err := answer.Route(m, name.Mesh, name.Name, 0)
	require.NoError(t, err)
	require.NotEmpty(t, alone.Paths)
	require.Empty(t, alone.Paths[0].RouteKind)

	other := resource.Key{Kind: resource.KindGRPCRoute, Mesh: name.Mesh, Name: name.Name}
	unattached, _, err := resource.Build(resource.Meta{Key: other}, []byte(`{"parentRefs": [{"name": "nowhere"}]}`))
	require.NoError(t, err)
	m.Update(policy.NewSnapshot(append(all, unattached)...), []resource.Key{other})
	both, err := answer.Route(m, name.Mesh, name.Name, 0)
	require.NoError(t, err)
	require.Len(t, both.Paths, len(alone.Paths))
	for _, p := range both.Paths {
		require.Equal(t, resource.KindHTTPRoute, p.RouteKind)
	}
	both.Restrict(func(key resource.Key) (read, known bool) { return key.Kind != resource.KindHTTPRoute, true })
	require.Empty(t, both.Paths)
}

// What is missing from an answer whose reader may not read everything is no statement,
// whether or not anything was left out.
func TestRenderPartialAnswers(t *testing.T) {
	may := func(resource.Key) (read, known bool) { return false, false }
	for name, render := range map[string]func(w io.Writer, partial bool) error{
		"dataplane": func(w io.Writer, partial bool) error {
			return rendered(w, partial, may, &answer.DataplaneAnswer{}, answer.RenderDataplane)
		},
		"why": func(w io.Writer, partial bool) error {
			return rendered(w, partial, may, &answer.WhyAnswer{}, answer.RenderWhy)
		},
		"policy": func(w io.Writer, partial bool) error {
			return rendered(w, partial, may, &answer.PolicyAnswer{Kind: "Timeout"}, answer.RenderPolicy)
		},
		"rules": func(w io.Writer, partial bool) error {
			return rendered(w, partial, may, &answer.RuleAnswer{}, answer.RenderRules)
		},
		"route": func(w io.Writer, partial bool) error {
			return rendered(w, partial, may, &answer.RouteAnswer{}, answer.RenderRoute)
		},
		"gateway": func(w io.Writer, partial bool) error {
			return rendered(w, partial, may, &answer.GatewayAnswer{}, answer.RenderGateway)
		},
	} {
		t.Run(name, func(t *testing.T) {
			const empty = "Nothing that you may read is in this answer"
			var whole, part strings.Builder
			require.NoError(t, render(&whole, false))
			require.NotContains(t, whole.String(), empty)
			require.NoError(t, render(&part, true))
			require.Contains(t, part.String(), empty)
			require.NotContains(t, part.String(), "No policy")
		})
	}
	for _, allowed := range []bool{false, true} {
		var text strings.Builder
		require.NoError(t, rendered(&text, true, may, &answer.ConnectionAnswer{From: "a", To: "b", Allowed: allowed}, answer.RenderConnection))
		require.NotContains(t, text.String(), "no permission")
	}
}

// rendered renders an answer, restricted or whole.
func rendered[A interface{ Restrict(may answer.May) }](w io.Writer, partial bool, may answer.May, a A, render func(io.Writer, A, answer.Form) error) error {
	if partial {
		a.Restrict(may)
	}
	return render(w, a, answer.Form{})
}
