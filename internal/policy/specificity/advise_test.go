package specificity_test

import (
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/specificity"
	"meridian/internal/resource"
)

// §3.4: who writes a policy is told which others are as specific, and which of them
// has priority.
func TestAdviceAboutTies(t *testing.T) {
	connection := func(source, destination string) string {
		return fmt.Sprintf(`{"sources":[{"match":{%s}}],"destinations":[{"match":{%s}}],"conf":{"connectTimeout":"1s"}}`, source, destination)
	}
	web, api, any := `"kuma.io/service":"web"`, `"kuma.io/service":"api"`, `"kuma.io/service":"*"`
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	for _, tc := range []struct {
		name, matching string
		kind           string
		a, b           string // the older and the newer
		want           string // of a
	}{
		{"the same selectors", "KongMesh", "Timeout", connection(web, api), connection(web, api), "has lower priority than b: of equally specific policies that match the same, the one modified later has priority"},
		{"by name", "Kuma2020", "Timeout", connection(web, api), connection(web, api), "has priority over b: of equally specific policies that match the same, the name that sorts first has priority"},
		{"other services", "KongMesh", "Timeout", connection(web, api), connection(web, web), ""},
		{"more specific", "KongMesh", "Timeout", connection(any, api), connection(web, api), ""},
		{"equal in sum", "KongMesh", "Timeout", connection(any, api), connection(web, any), "has lower priority than b: "},
		{"other tags", "KongMesh", "Timeout", connection(web, `"a":"1"`), connection(web, `"b":"2"`), "has lower priority than b: "},
		{"inbound: callers do not count", "KongMesh", "TrafficPermission", connection(web, api), connection(api, api), "has lower priority than b: "},
		{"inbound, each caller", "Kuma2020", "RateLimit", connection(web, api), connection(api, api), ""},
		{"permissions apply together", "Kuma2020", "TrafficPermission", connection(web, api), connection(web, api), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.put(t, "Mesh", "", "m", fmt.Sprintf(`{"matching":{"sourceDestination":%q}}`, tc.matching), time.Time{})
			spec := func(s string) string {
				switch tc.kind {
				case "TrafficPermission":
					return strings.Replace(s, `,"conf":{"connectTimeout":"1s"}`, "", 1)
				case "RateLimit":
					return strings.Replace(s, `{"connectTimeout":"1s"}`, `{"http":{"requests":1,"interval":"1s"}}`, 1)
				}
				return s
			}
			a := w.put(t, tc.kind, "m", "a", spec(tc.a), early)
			w.put(t, tc.kind, "m", "b", spec(tc.b), late)
			advice := policytest.Lint(t, w.View(), []*resource.Resource{w.Resources[a]}, specificityEngine)
			if tc.want == "" {
				require.Empty(t, advice)
				return
			}
			require.Len(t, advice, 1)
			require.Equal(t, resource.Info, advice[0].Severity)
			require.Contains(t, advice[0].Message, tc.want)
		})
	}
}

// §3.4: policies that tie with each other have a cause in common, which names the one
// with priority.
func TestTiesHaveACause(t *testing.T) {
	w := newWorld()
	w.put(t, "Mesh", "", "m", "{}", time.Time{})
	var batch []*resource.Resource
	for i := range 60 {
		k := w.put(t, "Timeout", "m", fmt.Sprintf("t%d", i),
			`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}],"conf":{"connectTimeout":"1s"}}`, time.Unix(1, 0))
		batch = append(batch, w.Resources[k])
	}
	groups := policy.Groups(policytest.Lint(t, w.View(), batch, specificityEngine))
	require.Len(t, groups, 1)
	require.Equal(t, "60 documents (Timeout/m/t0, t1, t2, …): equally specific policies that match the same: "+
		"t0 has priority (the one modified later, then the name that sorts first)", groups[0].String())
}

// The advice on a batch decodes a bounded number of policies, however many tie with those
// that are written.
func TestAdviceDecodesABoundedNumber(t *testing.T) {
	const services, each = 250, 100
	w := newWorld()
	w.put(t, "Mesh", "", "m", "{}", time.Time{})
	var batch []*resource.Resource
	for i := range services * each {
		k := w.put(t, "TrafficPermission", "m", fmt.Sprintf("p%d", i),
			fmt.Sprintf(`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"s%d"}}]}`, i%services), time.Unix(1, 0))
		if i < services {
			batch = append(batch, w.Resources[k])
		}
	}
	most, decoded := specificity.Decoded(w.View(), batch)
	require.Less(t, most, services*each)
	require.LessOrEqual(t, decoded, most)
	require.Greater(t, decoded, most/2, "ties were looked for")
}

// §3.2: a dataplane is selected where one of its inbounds matches, so that policies whose
// selectors no tags match both tie on a dataplane with two inbounds, and only there.
func TestTiesOfADataplaneWithTwoInbounds(t *testing.T) {
	one, two := `[{"port":1,"tags":{"kuma.io/service":"a"}}]`,
		`[{"port":1,"tags":{"kuma.io/service":"a"}},{"port":2,"tags":{"kuma.io/service":"b"}}]`
	template := `{"selectors":[{"match":{"kuma.io/service":%q}}],"conf":{"imports":["i"]}}`
	timeout := `{"sources":[{"match":{"kuma.io/service":%q}}],"destinations":[{"match":{"kuma.io/service":"c"}}],"conf":{"connectTimeout":"1s"}}`
	permission := `{"sources":[{"match":{"kuma.io/service":"c"}}],"destinations":[{"match":{"kuma.io/service":%q}}]}`
	for _, tc := range []struct {
		name, kind, spec, inbounds string
		tie                        bool
	}{
		{"dataplane policies", "ProxyTemplate", template, two, true},
		{"dataplane policies, one inbound", "ProxyTemplate", template, one, false},
		{"callers", "Timeout", timeout, two, true},
		{"callers, one inbound", "Timeout", timeout, one, false},
		{"inbounds are ranked one by one", "TrafficPermission", permission, two, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.put(t, "Mesh", "", "m", `{}`, time.Time{})
			w.put(t, "Dataplane", "m", "d", `{"networking":{"address":"10.0.0.1","inbound":`+tc.inbounds+`}}`, time.Time{})
			w.put(t, tc.kind, "m", "p1", fmt.Sprintf(tc.spec, "a"), time.Unix(1, 0))
			p2 := w.put(t, tc.kind, "m", "p2", fmt.Sprintf(tc.spec, "b"), time.Unix(2, 0))
			var notes []string
			for _, a := range policytest.Lint(t, w.View(), []*resource.Resource{w.Resources[p2]}, specificityEngine) {
				if a.Severity == resource.Info {
					notes = append(notes, a.Message)
				}
			}
			if !tc.tie {
				require.Empty(t, notes)
				return
			}
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], "has priority over p1: ")
		})
	}
}

// Every tie that decides what a dataplane gets is noted, the same way round.
func TestEveryTieIsNoted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		view := drawWorld(rt).View()
		m := matcher(view)
		for dp := range view.List("Dataplane", "") {
			o := &oracle{view: view, rules: policy.MeshOf(view, dp.Key().Mesh).Matching.SourceDestination}
			for _, rule := range explain(rt, m, dp.Key()) {
				together := rule.Kind == resource.KindTrafficPermission && o.rules == resource.Kuma2020
				perCaller := rule.Attachment.Type == policy.OnInbound && o.rules == resource.Kuma2020
				if together || perCaller {
					continue
				}
				ranked := o.ranked(rule.Kind, dp, &rule.Attachment, nil)
				if len(ranked) < 2 || ranked[0].score != ranked[1].score {
					continue
				}
				winner, loser := ranked[0].r, ranked[1].r
				for r, verb := range map[*resource.Resource]string{winner: "has priority over", loser: "has lower priority than"} {
					noted := ""
					for _, a := range policytest.Lint(rt, view, []*resource.Resource{r}, specificityEngine) {
						if strings.HasPrefix(a.Message, verb) {
							noted = a.Message
						}
					}
					other := map[*resource.Resource]string{winner: loser.Key().Name, loser: winner.Key().Name}[r]
					require.True(rt, strings.Contains(noted, " "+other+":") || strings.Contains(noted, " "+other+",") || strings.Contains(noted, " "+other+" and ") || strings.Contains(noted, " more: "),
						"%s and %s tie; noted: %q", r.Key(), other, noted)
				}
			}
		}
	})
}

// §3.2: who writes a policy is warned of selectors that no dataplane matches, with the
// nearest name, and is again for as long as that is so.
func TestAdviceAboutSelectorsThatMatchNothing(t *testing.T) {
	const dataplane = `{"networking":{"address":"10.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"web","version":"v1"}}],
		"outbound":[{"port":2,"tags":{"kuma.io/service":"backend"}}]}}`
	connection := func(source, destination, conf string) string {
		return fmt.Sprintf(`{"sources":[{"match":{%s}}],"destinations":[{"match":{%s}}]%s}`, source, destination, conf)
	}
	service := func(name string) string { return fmt.Sprintf("%q:%q", resource.ServiceTag, name) }
	const timeout = `,"conf":{"connectTimeout":"1s"}`
	for _, tc := range []struct {
		name, kind, spec string
		want             []string
	}{
		{"matching", "Timeout", connection(service("web"), service("backend"), timeout), nil},
		{"any service", "Timeout", connection(service("*"), service("*"), timeout), nil},
		{
			"a source", "Timeout", connection(service("wbe"), service("backend"), timeout),
			[]string{"sources[0].match: no inbound has kuma.io/service=wbe; did you mean web?"},
		},
		{
			"a destination", "Timeout", connection(service("web"), service("backnd"), timeout),
			[]string{"destinations[0].match: no outbound has kuma.io/service=backnd; did you mean backend?"},
		},
		{
			"a service without outbounds", "Timeout", connection(service("web"), service("web"), timeout),
			[]string{"destinations[0].match: no outbound has kuma.io/service=web"},
		},
		{
			"a tag", "Timeout", connection(`"verson":"v1"`, service("*"), timeout),
			[]string{"sources[0].match: no inbound has the tag verson; did you mean version?"},
		},
		{
			"inbound", "TrafficPermission", connection(service("backend"), service("webb"), ""),
			[]string{"destinations[0].match: no inbound has kuma.io/service=webb; did you mean web?"},
		},
		{"callers of another zone", "TrafficPermission", connection(service("elsewhere"), service("web"), ""), nil},
		{
			"a caller, misspelled", "TrafficPermission", connection(service("wbe"), service("web"), ""),
			[]string{"sources[0].match: no inbound has kuma.io/service=wbe; did you mean web?"},
		},
		{
			"selectors", "ProxyTemplate", `{"selectors":[{"match":{"kuma.io/service":"web"}},{"match":{"kuma.io/service":"web","version":"v2"}}],"conf":{"imports":["i"]}}`,
			[]string{"selectors[1].match: no inbound has version=v2; did you mean v1?"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.put(t, "Mesh", "", "m", `{}`, time.Time{})
			p := w.put(t, tc.kind, "m", "p", tc.spec, time.Time{})
			require.Empty(t, policytest.Lint(t, w.View(), []*resource.Resource{w.Resources[p]}, specificityEngine), "no dataplane is known")
			w.put(t, "Dataplane", "m", "d", dataplane, time.Time{})
			var said []string
			for _, a := range policytest.Lint(t, w.View(), []*resource.Resource{w.Resources[p]}, specificityEngine) {
				require.Equal(t, resource.Warning, a.Severity)
				said = append(said, a.Problem.String())
			}
			require.Equal(t, tc.want, said)
			always, fleet, _ := policy.Standing(w.View(), w.Resources[p], specificityEngine)
			require.Empty(t, always)
			require.Len(t, fleet, len(tc.want))
		})
	}
}

// apart is a view that is not to be searched for what ties.
type apart struct {
	policy.View
	t *testing.T
}

func (v apart) ListBy(resource.Kind, resource.MeshName, string) (iter.Seq[*resource.Resource], bool) {
	v.t.Error("what ties was looked for")
	return nil, false
}

// What is warned of a stored policy needs no look at those that tie with it: a zone, which
// has no index of them, answers without making one.
func TestStandingLooksForNoTies(t *testing.T) {
	w := newWorld()
	w.put(t, "Mesh", "", "m", `{}`, time.Time{})
	const spec = `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"api"}}],"conf":{"connectTimeout":"5s"}}`
	p := w.put(t, "Timeout", "m", "p", spec, time.Time{})
	w.put(t, "Timeout", "m", "q", spec, time.Time{})
	require.NotEmpty(t, policytest.Lint(t, w.View(), []*resource.Resource{w.Resources[p]}, specificityEngine), "they tie")
	always, fleet, _ := policy.Standing(apart{w.View(), t}, w.Resources[p], specificityEngine)
	require.Empty(t, always)
	require.Empty(t, fleet)
}

// What is only tried is not in effect: it ties with nothing that is, and a mesh in which
// every permission is only tried denies every connection.
func TestAdviceLeavesOutWhatIsOnlyTried(t *testing.T) {
	const spec = `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"api"}}]}`
	w := newWorld()
	mesh := w.put(t, "Mesh", "", "m", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]},"matching":{"sourceDestination":"KongMesh"}}`, time.Time{})
	put := func(name string, labels map[string]string) resource.Key {
		return w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindTrafficPermission, Mesh: "m", Name: name}, Labels: labels}, spec)
	}
	tried := map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}
	put("a", tried)
	lint := func(key resource.Key) []policy.Advice {
		return policytest.Lint(t, w.View(), []*resource.Resource{w.Resources[key]}, specificityEngine)
	}
	advice := lint(mesh)
	require.Len(t, advice, 1)
	require.Contains(t, advice[0].String(), "denies every connection")
	b := put("b", nil)
	require.Empty(t, lint(mesh))
	require.Empty(t, lint(b), "the one that it would tie with is only tried")
	put("a", nil)
	require.Len(t, lint(b), 1)
}
