package envoy

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"meridian/internal/resource"
)

// below puts fields below a place, separated by spaces.
func below(at, fields string) string {
	return at + strings.Join(strings.Fields(fields), " "+at)
}

// eventually waits until requests show that something holds.
func (s *scene) eventually(holds func() bool) {
	s.Helper()
	for !holds() {
		require.NoError(s, s.Context().Err())
	}
}

// streak sends the same request, METHOD PATH and headers, until one is answered by another
// server than expected, and reports whether enough were. Turns never come to as many.
func (s *scene) streak(server, request string) bool {
	s.Helper()
	parts := strings.Fields(request)
	for range 6 {
		a, err := s.try(parts[0], parts[1], parts[2:]...)
		require.NoError(s, err)
		if a.status != http.StatusOK || a.header.Get("served-by") != server {
			return false
		}
	}
	return true
}

// routed expects that requests are answered by two, and others by one.
func (s *scene) routed(matched []string, others ...string) {
	s.Helper()
	s.eventually(func() bool { return s.streak("two", matched[0]) })
	for _, request := range matched {
		require.True(s, s.streak("two", request), request)
	}
	for _, request := range others {
		require.True(s, s.streak("one", request), request)
	}
}

// ofTrafficRoutes are behaviours of the parts that TrafficRoute and MeshTrafficRoute have
// in common.
func ofTrafficRoutes(kind resource.Kind) []behaviour {
	one, two := v("v1"), v("v2")
	return []behaviour{
		{kind, "destination", `{` + two + `}`, func(s *scene) { s.routed([]string{"GET /"}) }},
		{kind, "split[].weight split[].destination", `{"split":[{"weight":3,` + one + `},{"weight":1,` + two + `}]}`, func(s *scene) {
			// In turns, it is a half; the deviation is less than 9.
			s.eventually(func() bool { return s.bodies(400)["two"] < 150 })
			require.InDelta(s, 100, s.bodies(400)["two"], 60)
		}},
		{
			kind, "http[].match.path.prefix http[].match.path.exact http[].match.path.regex http[].destination",
			`{"http":[{"match":{"path":{"prefix":"/p"}},` + two + `},{"match":{"path":{"exact":"/e"}},` + two + `},{"match":{"path":{"regex":"/r[0-9]+"}},` + two + `}],` + one + `}`,
			func(s *scene) {
				s.routed([]string{"GET /pa", "GET /e", "GET /r12"}, "GET /", "GET /ea", "GET /r", "GET /r1/")
			},
		},
		{
			kind, "http[].match.method.prefix http[].match.method.exact http[].match.method.regex",
			`{"http":[{"match":{"method":{"prefix":"PO"}},` + two + `},{"match":{"method":{"exact":"PUT"}},` + two + `},{"match":{"method":{"regex":"DEL.*|PATCH"}},` + two + `}],` + one + `}`,
			func(s *scene) { s.routed([]string{"POST /", "PUT /", "DELETE /", "PATCH /"}, "GET /", "OPTIONS /") },
		},
		{
			kind, "http[].match.headers.*.prefix http[].match.headers.*.exact http[].match.headers.*.regex",
			`{"http":[{"match":{"headers":{"a":{"prefix":"x"}}},` + two + `},{"match":{"headers":{"b":{"exact":"y"}}},` + two + `},{"match":{"headers":{"c":{"regex":"z+"}}},` + two + `}],` + one + `}`,
			func(s *scene) {
				s.routed([]string{"GET / a xx", "GET / b y", "GET / c zz"}, "GET /", "GET / a y", "GET / b yy", "GET / c zza")
			},
		},
		{kind, "http[].split[].weight http[].split[].destination", `{"http":[{"match":{"path":{"prefix":"/s"}},"split":[{"weight":0,` + one + `},{"weight":7,` + two + `}]}],` + one + `}`, func(s *scene) {
			s.routed([]string{"GET /s"}, "GET /")
		}},
		{
			kind, below("http[].modify.", "path.rewritePrefix host.value requestHeaders.add[].name requestHeaders.add[].value requestHeaders.add[].append requestHeaders.remove[].name responseHeaders.add[].name responseHeaders.add[].value responseHeaders.add[].append responseHeaders.remove[].name"),
			`{"http":[{"match":{"path":{"prefix":"/old"}},"modify":{"path":{"rewritePrefix":"/new"},"host":{"value":"h.test"},
				"requestHeaders":{"add":[{"name":"x-set","value":"50%"},{"name":"x-add","value":"2","append":true}],"remove":[{"name":"x-gone"}]},
				"responseHeaders":{"add":[{"name":"protocol","value":"set"},{"name":"served-by","value":"more","append":true}],"remove":[{"name":"extra"}]}},` + one + `}],` + one + `}`,
			func(s *scene) {
				s.until("/old/a", func(a answer) bool { return a.header.Get("protocol") == "set" })
				a := s.get("/old/a?b=c", "x-set", "1", "x-add", "1", "x-gone", "1")
				s.changed(a)
				require.Equal(s, "/new/a?b=c", s.one.seen.Load().RequestURI)
				require.Equal(s, "h.test", s.one.seen.Load().Host)
			},
		},
		{
			kind, below("http[].modify.", "path.regex.pattern path.regex.substitution host.fromPath.pattern host.fromPath.substitution"),
			`{"http":[{"match":{"path":{"prefix":"/b/"}},"modify":{"path":{"regex":{"pattern":"^/b/(.*)$","substitution":"/\\1/b"}},"host":{"fromPath":{"pattern":"^/b/(.*)$","substitution":"\\1.test"}}},` + one + `}],` + one + `}`,
			func(s *scene) {
				s.eventually(func() bool { s.get("/b/x"); return s.one.requests.Load() > 0 && s.one.seen.Load().RequestURI == "/x/b" })
				s.get("/b/y")
				require.Equal(s, "/y/b", s.one.seen.Load().RequestURI)
				require.Equal(s, "y.test", s.one.seen.Load().Host)
			},
		},
		{kind, "loadBalancer.random", `{"loadBalancer":{"random":{}},"http":[]}`, func(s *scene) {
			s.eventually(func() bool { return !s.inTurns() })
		}},
		{kind, "loadBalancer.roundRobin", `{"loadBalancer":{"roundRobin":{}},"http":[]}`, func(s *scene) {
			s.eventually(s.inTurns)
		}},
		{kind, "loadBalancer.leastRequest.choiceCount", `{"loadBalancer":{"leastRequest":{"choiceCount":100}},"http":[]}`, func(s *scene) {
			// A request waits at one, so that two is the less busy of any number of places
			// that are looked at.
			s.one.block.Store(true)
			done := make(chan struct{})
			for s.one.requests.Load() == 0 {
				go func() {
					_, _ = s.try(http.MethodGet, "/") // it is answered when it may be
					done <- struct{}{}
				}()
				s.zone.waitFor(func() bool {
					select {
					case <-done:
						return true
					default:
						return s.one.requests.Load() > 0
					}
				})
			}
			s.eventually(func() bool { return s.streak("two", "GET /") })
			require.Equal(s, map[string]int{"two": 50}, s.answered(50, "/"))
			s.one.block.Store(false)
			s.one.release()
			<-done
		}},
	}
}

// inTurns reports whether one and two answer in turns.
func (s *scene) inTurns() bool {
	last := ""
	for range 40 {
		a := s.get("/")
		if a.body == last {
			return false
		}
		last = a.body
	}
	return true
}

// changed expects what the behaviours about headers change in a request that has x-set,
// x-add and x-gone, and in its answer.
func (s *scene) changed(a answer) {
	s.Helper()
	r := s.one.seen.Load()
	require.Equal(s, []string{"50%"}, r.Header.Values("x-set"))
	require.Equal(s, []string{"1", "2"}, r.Header.Values("x-add"))
	require.Empty(s, r.Header.Values("x-gone"))
	require.Equal(s, []string{"set"}, a.header.Values("protocol"))
	require.Equal(s, []string{"one", "more"}, a.header.Values("served-by"))
	require.Empty(s, a.header.Values("extra"))
}

const (
	toOne = `{"kind":"ServiceSubset","name":"backend","tags":{"version":"v1"}`
	toTwo = `{"kind":"ServiceSubset","name":"backend","tags":{"version":"v2"}`

	headerFilters = `{"type":"RequestHeaderModifier","requestHeaderModifier":{"set":[{"name":"x-set","value":"50%"}],"add":[{"name":"x-add","value":"2"}],"remove":["x-gone"]}},
		{"type":"ResponseHeaderModifier","responseHeaderModifier":{"set":[{"name":"protocol","value":"set"}],"add":[{"name":"served-by","value":"more"}],"remove":["extra"]}}`
	headerFields = "type requestHeaderModifier.set[].name requestHeaderModifier.set[].value requestHeaderModifier.add[].name requestHeaderModifier.add[].value requestHeaderModifier.remove " +
		"responseHeaderModifier.set[].name responseHeaderModifier.set[].value responseHeaderModifier.add[].name responseHeaderModifier.add[].value responseHeaderModifier.remove"
)

// shape is how a kind of route writes a rule.
type shape struct {
	kind resource.Kind
	// at is the place of filters and destinations.
	at string
	// match holds for paths below /a.S.
	match string
}

var shapes = map[resource.Kind]shape{
	resource.KindHTTPRoute:        {resource.KindHTTPRoute, "rules[].", `{"path":{"value":"/a.S"}}`},
	resource.KindGRPCRoute:        {resource.KindGRPCRoute, "rules[].", `{"method":{"service":"a.S"}}`},
	resource.KindMeshTrafficRoute: {resource.KindMeshTrafficRoute, "rules[].default.", `{"path":{"value":"/a.S"}}`},
}

// rule is a rule with conditions, filters and destinations.
func (h shape) rule(matches, filters, backends string) string {
	does := `"filters":[` + filters + `],"backendRefs":[` + backends + `]`
	if h.kind == resource.KindMeshTrafficRoute {
		does = `"default":{` + does + `}`
	}
	return `{"matches":[` + matches + `],` + does + `}`
}

// spec is a route with rules.
func (h shape) spec(rules ...string) string {
	list := `"rules":[` + strings.Join(rules, ",") + `]}`
	if h.kind == resource.KindMeshTrafficRoute {
		return "{" + list
	}
	return `{"parentRefs":[{"kind":"Service","name":"backend"}],` + list
}

const call = "/a.S/M"

// filters are the behaviours of the filters of rules that every kind has.
func (h shape) filters() []behaviour {
	filter := func(text, backends string) string { return h.spec(h.rule(h.match, text, backends)) }
	const mirror = "requestMirror."
	at := h.at + "filters[]."
	return []behaviour{
		{h.kind, below(at, headerFields), filter(headerFilters, toOne+`}`), func(s *scene) {
			s.until(call, func(a answer) bool { return a.header.Get("protocol") == "set" })
			s.changed(s.get(call, "x-set", "1", "x-add", "1", "x-gone", "1"))
		}},
		{
			h.kind, below(at+mirror, "backendRef.name backendRef.tags percentage"),
			filter(`{"type":"RequestMirror","requestMirror":{"percentage":50,"backendRef":`+toTwo+`}}}`, toOne+`}`), func(s *scene) {
				s.eventually(func() bool { return s.streak("one", "GET "+call) })
				s.two.requests.Store(0)
				for range 400 {
					require.Equal(s, "one", s.get(call).header.Get("served-by"))
				}
				// Copies may come later than the answer; the deviation is 10.
				s.zone.waitFor(func() bool { return s.two.requests.Load() >= 125 })
				require.LessOrEqual(s, s.two.requests.Load(), int32(275))
			},
		},
	}
}

// addresses are the behaviours of filters that are not for gRPC calls.
func (h shape) addresses() []behaviour {
	filter := func(text, backends string) string { return h.spec(h.rule(h.match, text, backends)) }
	rewrite := func(path string) string {
		return filter(`{"type":"URLRewrite","urlRewrite":{"hostname":"h.test","path":{`+path+`}}}`, toOne+`}`)
	}
	rewritten := func(want string) func(s *scene) {
		return func(s *scene) {
			s.eventually(func() bool { s.get(call); return s.one.requests.Load() > 0 && s.one.seen.Load().Host == "h.test" })
			require.Equal(s, want, s.one.seen.Load().RequestURI)
		}
	}
	redirect := func(path string) string {
		return filter(`{"type":"RequestRedirect","requestRedirect":{"scheme":"https","hostname":"h.test","port":8443,"statusCode":308,"path":{`+path+`}}}`, "")
	}
	redirected := func(want string) func(s *scene) {
		return func(s *scene) {
			s.until(call, status(http.StatusPermanentRedirect))
			require.Equal(s, want, s.get(call).header.Get("Location"))
		}
	}
	at := h.at + "filters[]."
	return []behaviour{
		{h.kind, below(at, "urlRewrite.hostname urlRewrite.path.type urlRewrite.path.replaceFullPath"), rewrite(`"type":"ReplaceFullPath","replaceFullPath":"/x\\1"`), rewritten(`/x\1`)},
		{h.kind, below(at, "urlRewrite.path.replacePrefixMatch"), rewrite(`"type":"ReplacePrefixMatch","replacePrefixMatch":"/new"`), rewritten("/new/M")},
		{
			h.kind, below(at, "requestRedirect.scheme requestRedirect.hostname requestRedirect.port requestRedirect.statusCode requestRedirect.path.type requestRedirect.path.replacePrefixMatch"),
			redirect(`"type":"ReplacePrefixMatch","replacePrefixMatch":"/s"`), redirected("https://h.test:8443/s/M"),
		},
		{h.kind, below(at, "requestRedirect.path.replaceFullPath"), redirect(`"type":"ReplaceFullPath","replaceFullPath":"/s"`), redirected("https://h.test:8443/s")},
	}
}

// mirrorsElsewhere are copies to what is no service of a route's namespace, which nothing
// gets.
func (h shape) mirrorsElsewhere() (all []behaviour) {
	for field, to := range map[string]string{"group": `"group":"other"`, "kind": `"kind":"Other"`, "namespace": `"namespace":"elsewhere"`} {
		all = append(all, behaviour{
			h.kind, h.at + "filters[].requestMirror.backendRef." + field,
			h.spec(h.rule(h.match, `{"type":"RequestMirror","requestMirror":{"backendRef":{`+to+`,"name":"backend"}}}`, toOne+`}`)), func(s *scene) {
				s.eventually(func() bool { return s.streak("one", "GET "+call) })
				s.two.requests.Store(0)
				s.one.requests.Store(0)
				for range 20 {
					s.get(call)
				}
				require.EqualValues(s, 20, s.one.requests.Load())
				require.Zero(s, s.two.requests.Load())
			},
		})
	}
	return all
}

// destinations are the behaviours of the destinations of rules.
func (h shape) destinations() []behaviour {
	at := h.at + "backendRefs[]."
	return []behaviour{
		{h.kind, below(at, "kind name tags weight"), h.spec(h.rule(h.match, "", toOne+`,"weight":0},`+toTwo+`,"weight":3}`)), func(s *scene) {
			s.routed([]string{"GET " + call})
		}},
	}
}

// ofRoutes are what HTTPRoute and GRPCRoute have beside it: filters of destinations, and
// destinations that cannot be.
func (h shape) ofRoutes(host bool) []behaviour {
	at := h.at + "backendRefs[]."
	filters, fields := headerFilters, headerFields
	if host {
		filters, fields = filters+`,{"type":"URLRewrite","urlRewrite":{"hostname":"h.test"}}`, fields+" urlRewrite.hostname"
	}
	list := []behaviour{{h.kind, below(at+"filters[].", fields), h.spec(h.rule(h.match, "", toOne+`,"filters":[`+filters+`]}`)), func(s *scene) {
		s.until(call, func(a answer) bool { return a.header.Get("protocol") == "set" })
		s.changed(s.get(call, "x-set", "1", "x-add", "1", "x-gone", "1"))
		if host {
			require.Equal(s, "h.test", s.one.seen.Load().Host)
		}
	}}, {h.kind, "parentRefs[].kind parentRefs[].name", h.spec(h.rule(h.match, "", toTwo+`}`)), func(s *scene) {
		s.routed([]string{"GET " + call})
		s.zone.apply(s.zone.put(h.kind, "m", "r", strings.Replace(h.spec(h.rule(h.match, "", toTwo+`}`)), `"backend"}],"rules"`, `"other"}],"rules"`, 1)))
		require.Empty(s, s.zone.settle("web-1"))
		s.eventually(func() bool { return !s.streak("two", "GET "+call) })
		require.False(s, s.streak("two", "GET "+call))
	}}}
	for field, to := range map[string]string{"group": `"group":"other"`, "namespace": `"namespace":"elsewhere"`} {
		list = append(list, behaviour{h.kind, at + field, h.spec(h.rule(h.match, "", `{`+to+`,"name":"backend"}`)), func(s *scene) {
			s.until(call, func(a answer) bool { // calls are answered with a status of gRPC
				return a.status == http.StatusInternalServerError || a.header.Get("Grpc-Status") == strconv.Itoa(int(codes.Unknown))
			})
		}})
	}
	return slices.Concat(list, h.filters(), h.mirrorsElsewhere(), h.destinations())
}

// conditions are those of rules in the shape of HTTPRoute.
func (h shape) conditions() []behaviour {
	on := func(matches string) string {
		rest := h.rule("", "", toOne+`}`)
		return h.spec(h.rule(matches, "", toTwo+`}`), rest)
	}
	return []behaviour{
		{
			h.kind, below("rules[].matches[].", "path.type path.value method"),
			on(`{"path":{"value":"/p"}},{"path":{"type":"PathPrefix","value":"/q/"}},{"path":{"type":"Exact","value":"/e"}},{"path":{"type":"RegularExpression","value":"/r[0-9]+"}},{"method":"PUT"}`),
			func(s *scene) {
				s.routed([]string{"GET /p", "GET /p/a", "GET /q", "GET /e", "GET /r12", "PUT /"}, "GET /", "GET /pa", "GET /e/", "GET /r", "GET /r1/", "POST /")
			},
		},
		{
			h.kind, below("rules[].matches[].headers[].", "type name value"),
			on(`{"headers":[{"name":"a","value":"x"}]},{"headers":[{"name":"b","type":"RegularExpression","value":"y+"}]},{"headers":[{"name":"c","type":"Exact","value":"z"},{"name":"d","value":"z"}]}`),
			func(s *scene) {
				s.routed([]string{"GET / a x", "GET / b yy", "GET / c z d z"}, "GET /", "GET / a xx", "GET / b yyz", "GET / c z")
			},
		},
		{
			h.kind, below("rules[].matches[].queryParams[].", "type name value"),
			on(`{"queryParams":[{"name":"a","value":"x"}]},{"queryParams":[{"name":"b","type":"RegularExpression","value":"y+"}]},{"queryParams":[{"name":"c","type":"Exact","value":"z"},{"name":"d","value":"z"}]}`),
			func(s *scene) {
				s.routed([]string{"GET /?a=x", "GET /?b=yy", "GET /?c=z&d=z"}, "GET /", "GET /?a=xx", "GET /?b=yyz", "GET /?c=z")
			},
		},
	}
}

// calledBy are the conditions of GRPCRoute.
func (h shape) calledBy() []behaviour {
	on := func(matches string) string { return h.spec(h.rule(matches, "", toTwo+`}`), h.rule("", "", toOne+`}`)) }
	return []behaviour{
		{
			h.kind, below("rules[].matches[].method.", "type service method"),
			on(`{"method":{"service":"a.S","method":"M"}},{"method":{"type":"RegularExpression","service":"b\\..*","method":"N|O"}},{"method":{"type":"Exact","service":"c.S"}}`),
			func(s *scene) {
				s.routed([]string{"GET /a.S/M", "GET /b.S/O", "GET /c.S/P"}, "GET /a.S/N", "GET /b.S/M", "GET /d.S/M")
			},
		},
		{
			h.kind, below("rules[].matches[].headers[].", "type name value"),
			on(`{"headers":[{"name":"a","value":"x"}]},{"headers":[{"name":"b","type":"RegularExpression","value":"y+"}]}`),
			func(s *scene) {
				s.routed([]string{"GET /a.S/M a x", "GET /a.S/M b yy"}, "GET /a.S/M", "GET /a.S/M a xx", "GET /a.S/M b yyz")
			},
		},
	}
}

var ruleTimeouts = []behaviour{
	{resource.KindHTTPRoute, "rules[].timeouts.request", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"timeouts":{"request":"20ms"},"backendRefs":[{"name":"backend"}]}]}`, func(s *scene) { s.cut() }},
	{resource.KindHTTPRoute, "rules[].timeouts.backendRequest", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"timeouts":{"request":"0s","backendRequest":"20ms"},"backendRefs":[{"name":"backend"}]}]}`, func(s *scene) { s.cut() }},
	{resource.KindHTTPRoute, "rules[].retry.codes rules[].retry.attempts", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"retry":{"codes":[418],"attempts":2,"backoff":"1ms"},"backendRefs":[` + toOne + `}]}]}`, func(s *scene) {
		s.repeats(2, http.StatusTeapot)
		s.one.status.Store(http.StatusServiceUnavailable)
		s.one.fail.Store(1)
		require.Equal(s, http.StatusServiceUnavailable, s.get("/").status)
	}},
}

// cut expects that requests that nothing answers are answered in time.
func (s *scene) cut() {
	s.Helper()
	s.one.block.Store(true)
	s.two.block.Store(true)
	s.until("/", status(http.StatusGatewayTimeout))
}

// repeats expects that requests to one are sent again as often as is allowed after a
// status.
func (s *scene) repeats(allowed, failure int) {
	s.Helper()
	s.one.status.Store(int32(failure))
	s.eventually(func() bool {
		s.one.fail.Store(int32(allowed))
		return s.get("/").status == http.StatusOK && s.one.fail.Load() <= 0
	})
	s.one.fail.Store(int32(allowed))
	require.Equal(s, http.StatusOK, s.get("/").status)
	s.one.fail.Store(int32(allowed) + 1)
	require.Equal(s, failure, s.get("/").status)
	require.Zero(s, s.one.fail.Load())
}
