package zone

import (
	"testing"

	"github.com/stretchr/testify/require"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/inherit"
	"meridian/internal/question"
	"meridian/internal/resource"
)

func listOf(t *testing.T, a answer.ProxiesAnswer) []byte {
	t.Helper()
	document, err := answer.Marshal(&a)
	require.NoError(t, err)
	return document
}

// The proxies of all servers are one list: each dataplane once, with the streams that it has
// at any of them.
func TestProxiesOfAllServers(t *testing.T) {
	proxy := func(name string, clients ...string) answer.ProxyStatus {
		p := answer.ProxyStatus{Mesh: "default", Name: name, Zone: "east", Streams: []answer.ProxyStream{}}
		for _, c := range clients {
			p.Streams = append(p.Streams, answer.ProxyStream{Client: c, Types: []answer.ProxyType{}})
		}
		return p
	}
	here := answer.ProxiesAnswer{Items: []answer.ProxyStatus{proxy("b", "x"), proxy("c")}}
	there := &answer.ProxiesAnswer{Items: []answer.ProxyStatus{proxy("a", "y"), proxy("c", "z")}}
	merged, err := elsewhere{servers: 2, proxies: []*answer.ProxiesAnswer{there}}.withProxies(listOf(t, here))
	require.NoError(t, err)
	require.JSONEq(t, string(listOf(t, answer.ProxiesAnswer{Items: []answer.ProxyStatus{proxy("a", "y"), proxy("b", "x"), proxy("c", "z")}})), string(merged))
}

// Those that have yet to accept a change are those of all servers, as of what the last one
// has applied; while it is not known of a server, it is as if nothing were known.
func TestProxiesBehindOnAllServers(t *testing.T) {
	behind := func(asOf resource.Revision, names ...string) answer.ProxiesAnswer {
		b := &answer.ProxiesBehind{AsOf: asOf, Count: len(names), Some: []answer.ProxyBehind{}}
		for _, name := range names {
			b.Some = append(b.Some, answer.ProxyBehind{Mesh: "default", Name: name, State: "pending"})
		}
		return answer.ProxiesAnswer{Items: []answer.ProxyStatus{}, Behind: b}
	}
	there := behind(7, "b", "c")
	read := func(e elsewhere) *answer.ProxiesBehind {
		t.Helper()
		merged, err := e.withProxies(listOf(t, behind(9, "a")))
		require.NoError(t, err)
		var all answer.ProxiesAnswer
		require.NoError(t, answer.Unmarshal(merged, &all))
		return all.Behind
	}
	got := read(elsewhere{servers: 2, proxies: []*answer.ProxiesAnswer{&there}})
	require.Equal(t, resource.Revision(7), got.AsOf)
	require.Equal(t, 3, got.Count)
	require.Equal(t, 2, got.Servers)
	require.Len(t, got.Some, 3)

	silent := elsewhere{servers: 2, proxies: []*answer.ProxiesAnswer{&there}, missing: []string{"three"}, unknown: true}
	require.Zero(t, read(silent).AsOf)
	require.Equal(t, []string{"what proxies do that are connected to three is not known: no answer"}, silent.notes())
	require.Empty(t, elsewhere{servers: 2}.notes())
}

// What proxies do with a policy is counted over all servers.
func TestEnforcementOnAllServers(t *testing.T) {
	less := resource.Key{Kind: resource.KindDataplane, Mesh: "default", Name: "b"}
	e := enforcement{holds: 2, approximated: 1, lacking: map[string]int{"pending": 1}}
	other := enforcement{holds: 3, lacking: map[string]int{"pending": 1, "rejected": 2}, lacks: less}
	e.add(other.encode(resource.Key{Kind: resource.KindTimeout, Mesh: "default", Name: "t"}))
	require.Equal(t, enforcement{holds: 5, approximated: 1, lacking: map[string]int{"pending": 2, "rejected": 2}, lacks: less}, e)
	require.Equal(t, 9, e.proxies())
	e.add(&peerv1.PolicyEnforcement{})
	require.Equal(t, 9, e.proxies())
}

// The conditions of kinds that proxies do not obey are answered without the other servers, also
// while one of these hangs: `meridian status` asks about each such kind.
func TestConditionsWithoutProxiesAreAnsweredHere(t *testing.T) {
	one := newServerOne(t)
	for _, d := range resource.Kinds() {
		if inherit.Follows(d.Kind) {
			require.NotPanics(t, func() { // there is no cluster.Server to ask others by
				asked := question.Conditions{Kind: d.Kind}
				require.Empty(t, one.others.partsOf(t.Context(), question.Request(asked, "", ""), asked), d.Kind)
			})
		}
	}
}

// What proxies do not obey is one warning for each field and kind of proxies, whatever server
// they are at.
func TestUnenforcedOnAllServers(t *testing.T) {
	warn := func(path string, proxies int) answer.Warning {
		return answer.UnenforcedWarning(path, &answer.Unenforced{Dialect: "grpc", Status: "unsupported", Note: "n", Zones: []answer.UnenforcedIn{{Zone: "east", Proxies: proxies}}})
	}
	field := func(path string, proxies uint32) *peerv1.UnenforcedField {
		return &peerv1.UnenforcedField{Path: path, Dialect: "grpc", Status: "unsupported", Note: "n", Proxies: proxies}
	}
	got := elsewhere{servers: 3, unenforced: []*peerv1.UnenforcedField{field("b", 2), field("a", 1), field("b", 3)}}.withUnenforced("east", []answer.Warning{{Path: "x", Message: "another"}, warn("a", 4)})
	require.Equal(t, []answer.Warning{{Path: "x", Message: "another"}, warn("a", 5), warn("b", 5)}, got)
	require.Equal(t, []answer.Warning{warn("a", 4)}, elsewhere{}.withUnenforced("east", []answer.Warning{warn("a", 4)}))
}

// What is counted of permissions that are tried is one list, those with the most calls first.
func TestTrialsOnAllServers(t *testing.T) {
	item := func(dataplane string, calls uint64) answer.TrialItem {
		return answer.TrialItem{Mesh: "default", Dataplane: dataplane, Zone: "east", Would: answer.WouldDeny, Calls: calls}
	}
	here, err := answer.Marshal(&answer.TrialsAnswer{Items: []answer.TrialItem{item("a", 3)}, More: 1})
	require.NoError(t, err)
	document, err := elsewhere{servers: 3, trials: []*answer.TrialsAnswer{{Items: []answer.TrialItem{item("b", 9)}, More: 2}, {}}}.withTrials(here)
	require.NoError(t, err)
	var all answer.TrialsAnswer
	require.NoError(t, answer.Unmarshal(document, &all))
	require.Equal(t, answer.TrialsAnswer{Items: []answer.TrialItem{item("b", 9), item("a", 3)}, More: 3}, all)
}
