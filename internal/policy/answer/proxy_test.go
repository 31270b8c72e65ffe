package answer_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// How proxies stand to the zone is shown in the list, with its JSON, and on the
// page about one dataplane, without.
func TestProxyStates(t *testing.T) {
	states := []*answer.ProxyState{
		{State: answer.ProxyOnline, RegisteredBy: answer.ByProxy, Acked: 12},
		{State: answer.ProxyOnline, RegisteredBy: answer.ByOperator, Acked: 9, Lag: 2, LastError: "no such cluster"},
		{State: answer.ProxyOffline, RegisteredBy: answer.ByProxy, Acked: 9},
		{State: answer.ProxyManual, RegisteredBy: answer.ByOperator},
		nil,
	}
	list := &answer.DataplanesAnswer{}
	for i, state := range states {
		list.Items = append(list.Items, answer.DataplaneSummary{
			Policies: new(int),
			Mesh:     "default", Name: "web-" + string(rune('1'+i)), Zone: "east", Services: []string{"web"}, Outbounds: []string{}, ProxyState: state,
		})
	}
	encoded, err := answer.Marshal(list)
	require.NoError(t, err)
	var decoded answer.DataplanesAnswer
	require.NoError(t, answer.Unmarshal(encoded, &decoded))
	require.Equal(t, list, &decoded)

	var page strings.Builder
	require.NoError(t, answer.RenderDataplanes(&page, &decoded, answer.Form{}))
	require.Equal(t, `MESH     NAME   ZONE  SERVICES  POLICIES  STATE    ACKED  LAG
default  web-1  east  web       0         online   12     0
default  web-2  east  web       0         online   9      2
    refused: no such cluster
default  web-3  east  web       0         offline  9
default  web-4  east  web       0         manual
default  web-5  east  web       0
`, page.String())

	a, err := answer.Dataplane(scenario(t, "more-tags-win"), "default", "web-1", "east", 7)
	require.NoError(t, err)
	without, err := json.Marshal(a)
	require.NoError(t, err)
	a.Proxy = states[1]
	with, err := json.Marshal(a)
	require.NoError(t, err)
	require.Equal(t, string(without), string(with), "no part of the document")
	page.Reset()
	require.NoError(t, answer.RenderDataplane(&page, a, answer.Form{}))
	require.Contains(t, page.String(),
		"revision 7\nproxy online, has taken on revision 9, 2 changes behind, refused the last configuration: no such cluster\n\n")
	require.Equal(t, "proxy offline, has taken on revision 9", states[2].String())
	require.Equal(t, "no proxy connected", states[3].String())
	require.Equal(t, "proxy online, 1 change behind", (&answer.ProxyState{State: answer.ProxyOnline, Lag: 1}).String())
}

// The page about a dataplane whose proxy follows its zone over xDS says of each row what
// the proxy does with it; the document does not.
func TestWireColumn(t *testing.T) {
	a, err := answer.Dataplane(scenario(t, "more-tags-win"), "default", "web-1", "east", 7)
	require.NoError(t, err)
	without, err := json.Marshal(a)
	require.NoError(t, err)
	a.Wire = map[answer.WireKey]string{}
	for i := range a.Effective {
		a.Wire[answer.WireKey{Attachment: a.Effective[i].Attachment.String(), Kind: a.Effective[i].Kind}] = "rev 7"
	}
	with, err := json.Marshal(a)
	require.NoError(t, err)
	require.Equal(t, string(without), string(with))
	var page strings.Builder
	require.NoError(t, answer.RenderDataplane(&page, a, answer.Form{}))
	require.Regexp(t, `POLICY +WIRE +WHY\n`, page.String())
	require.Equal(t, len(a.Effective), strings.Count(page.String(), "  rev 7  "))
}

// A list of proxies shows what has the most to be looked at of several streams, and how
// many resources a proxy lacks on all of them.
func TestProxiesPage(t *testing.T) {
	stream := func(state string, revision resource.Revision, lag int) answer.ProxyStream {
		s := answer.ProxyStream{Client: "gRPC", Dialect: "grpc"}
		for _, typ := range []string{"CDS", "EDS", "LDS", "RDS"} {
			s.Types = append(s.Types, answer.ProxyType{Type: typ, State: answer.WireSynced, Revision: 12})
		}
		s.Types[3] = answer.ProxyType{Type: "RDS", State: state, Revision: revision, Lag: lag}
		return s
	}
	var page strings.Builder
	require.NoError(t, answer.RenderProxies(&page, &answer.ProxiesAnswer{Items: []answer.ProxyStatus{{
		Mesh: "default", Name: "web-1", Zone: "east", Streams: []answer.ProxyStream{stream(answer.WireSent, 9, 1), stream(answer.WireStale, 11, 2)},
	}}}, answer.Form{}))
	require.Equal(t, `MESH     NAME   ZONE  STREAMS  CDS     EDS     LDS     RDS    REVISION  LAG
default  web-1  east  2        SYNCED  SYNCED  SYNCED  STALE  9         3
`, page.String())

	// What is taken without TLS has a column where something counts it.
	page.Reset()
	require.NoError(t, answer.RenderProxies(&page, &answer.ProxiesAnswer{Items: []answer.ProxyStatus{
		{Mesh: "default", Name: "web-1", Zone: "east", Plaintext: &answer.ProxyPlaintext{Connections: 7, Open: 2, Last: "2026-01-02T03:04:05Z", AsOf: "2026-01-02T03:04:05Z"}},
		{Mesh: "default", Name: "web-2", Zone: "east", Plaintext: &answer.ProxyPlaintext{Connections: 7, Last: "2026-01-02T03:04:05Z", AsOf: "2026-01-02T03:09:05Z"}},
		{Mesh: "default", Name: "web-3", Zone: "east"},
	}}, answer.Form{}))
	require.Contains(t, page.String(), "LAG  PLAINTEXT\n")
	require.Contains(t, page.String(), "0    2 open\n")
	require.Contains(t, page.String(), "0    7, none for 5m\n")
}

// The condition of a policy counts the proxies that obey it, by zone; an answer of several
// zones has it for each.
func TestEnforcement(t *testing.T) {
	web := policy.DataplaneKey("default", "web-1")
	require.Equal(t, policy.Condition{Type: "Enforced", Status: "True", Reason: "AllProxies", Message: `10 of 10 proxies in zone "east"`},
		answer.Enforcement("east", 10, 0, nil, resource.Key{}))
	some := answer.Enforcement("west", 7, 0, map[string]int{"pending": 1, "no": 2}, web)
	require.Equal(t, policy.Condition{Type: "Enforced", Status: "False", Reason: "SomeProxies", Message: `7 of 10 proxies in zone "west" (2 not supported, 1 pending; such as web-1)`}, some)
	require.Equal(t, policy.Condition{Type: "Enforced", Status: "True", Reason: "AllProxies", Message: `10 of 10 proxies in zone "east" (4 not quite; such as web-1)`},
		answer.Enforcement("east", 10, 4, nil, web))
	require.Equal(t, "NoProxy", answer.Enforcement("west", 0, 0, map[string]int{"rejected": 1}, web).Reason)

	part := func(zone string, conditions ...policy.Condition) answer.Part {
		encoded, err := answer.Marshal(&answer.PolicyAnswer{Kind: "Timeout", Mesh: "default", Name: "t", Conditions: conditions})
		require.NoError(t, err)
		return answer.Part{Zone: resource.ZoneName(zone), JSON: encoded}
	}
	quarantined, east := policy.Condition{Type: "Quarantined"}, answer.Enforcement("east", 1, 0, nil, resource.Key{})
	merged, err := answer.MergePolicies([]answer.Part{part("", quarantined), part("east", quarantined, east), part("west", some)}, func([]answer.Rejected) []answer.Absence { return nil })
	require.NoError(t, err)
	var a answer.PolicyAnswer
	require.NoError(t, answer.Unmarshal(merged, &a))
	require.Equal(t, []policy.Condition{quarantined, east, some}, a.Conditions)
}
