package inherit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// in puts a resource in a namespace; an empty one is that of no namespace.
func in(namespace string, r *resource.Resource) *resource.Resource {
	meta := r.Meta()
	if namespace != "" {
		meta.Name, meta.Labels = resource.Namespaced(namespace, meta.Name), map[string]string{resource.LabelNamespace: namespace}
	}
	return r.WithMeta(meta)
}

// labelled is a Namespace.
func labelled(t testing.TB, name string, labels map[string]string) *resource.Resource {
	t.Helper()
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: "Namespace", Name: name}, Labels: labels}, []byte(`{}`))
	require.NoError(t, err)
	return r
}

// §5.1: which namespaces a selector of labels allows.
func TestSelectedNamespaces(t *testing.T) {
	for _, tt := range []struct{ name, selector, want string }{
		{"a label", `{"matchLabels": {"tier": "gold"}}`, "bank shop"},
		{"two labels", `{"matchLabels": {"tier": "gold", "team": "a"}}`, "shop"},
		{"a value that none has", `{"matchLabels": {"tier": "lead"}}`, ""},
		{"the name, which every namespace has as a label", `{"matchLabels": {"kubernetes.io/metadata.name": "bank"}}`, "bank"},
		{"a namespace may be named wrongly by its own label", `{"matchLabels": {"kubernetes.io/metadata.name": "shop"}}`, "shop"},
		{"everything there is a Namespace of", `{}`, "bank default shop"},
		{"In", `{"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}`, "bank shop"},
		{"In without values", `{"matchExpressions": [{"key": "team", "operator": "In"}]}`, ""},
		{"NotIn, which an absent label is", `{"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}`, "bank default"},
		{"Exists", `{"matchExpressions": [{"key": "tier", "operator": "Exists"}]}`, "bank shop"},
		{"DoesNotExist", `{"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}`, "default"},
		{"both", `{"matchLabels": {"tier": "gold"}, "matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["b"]}]}`, "shop"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resources := []*resource.Resource{
				build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP",
					"allowedRoutes": {"namespaces": {"from": "Selector", "selector": `+tt.selector+`}}}]}`),
				labelled(t, "shop", map[string]string{"tier": "gold", "team": "a"}),
				labelled(t, "bank", map[string]string{"tier": "gold", "team": "b", "kubernetes.io/metadata.name": "shop"}),
				labelled(t, "default", nil),
				onGateway(t, "g"),
			}
			names := map[string]string{"default": "r", "shop": "r.shop", "bank": "r.bank", "unknown": "r.unknown"}
			for namespace := range names {
				if namespace == "default" {
					namespace = ""
				}
				resources = append(resources, in(namespace, build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g", "namespace": "default"}]}`)))
			}
			x := indexOf(t, resources...)
			var attached []string
			for namespace, name := range names {
				if len(paths(t, x, name)) > 0 {
					attached = append(attached, namespace)
				}
			}
			slices.Sort(attached)
			require.Equal(t, tt.want, strings.Join(attached, " "))
		})
	}
}

// §5.8: a route says of each gateway that it asks for whether it takes the route, and
// the gateway names the routes that it does not.
func TestConditionsOfRoutes(t *testing.T) {
	gateway := build(t, "Gateway", "edge", `{"listeners": [
		{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.shop.example"},
		{"name": "grpc", "port": 81, "protocol": "HTTP", "allowedRoutes": {"kinds": [{"kind": "GRPCRoute"}]}},
		{"name": "closed", "port": 82, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "None"}}},
		{"name": "picky", "port": 83, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}}},
		{"name": "raw", "port": 9000, "protocol": "TCP"}]}`)
	const refs = `, "rules": [{"backendRefs": [%s]}]`
	for _, tt := range []struct{ name, spec, status, message, rejected string }{
		{"taken", `"parentRefs": [{"name": "edge"}]`, "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", "Route has been accepted", ""},
		{
			"no such gateway", `"parentRefs": [{"name": "egde"}]`, "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs",
			`there is no Gateway egde; did you mean "edge"?`, "",
		},
		{
			"no such listener", `"parentRefs": [{"name": "edge", "sectionName": "htp"}]`, "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs",
			"Gateway edge has no listener named htp", "HTTPRoute/r edge/htp NoMatchingParent",
		},
		{
			"no such port", `"parentRefs": [{"name": "edge", "port": 8080}]`, "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs",
			"Gateway edge has no listener on port 8080", "HTTPRoute/r edge:8080 NoMatchingParent",
		},
		{
			"a kind that is not allowed", `"parentRefs": [{"name": "edge", "sectionName": "grpc"}]`, "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs",
			"no listener of Gateway edge named grpc allows routes of kind HTTPRoute; its allowedRoutes.kinds decides", "HTTPRoute/r edge/grpc NotAllowedByListeners",
		},
		{
			"a namespace that is not allowed", `"parentRefs": [{"name": "edge", "sectionName": "closed"}]`, "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs",
			"no listener of Gateway edge named closed allows routes of namespace default; its allowedRoutes.namespaces decides", "HTTPRoute/r edge/closed NotAllowedByListeners",
		},
		{
			"a namespace that cannot be judged", `"parentRefs": [{"name": "edge", "sectionName": "picky"}]`, "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs",
			"no listener of Gateway edge named picky allows routes of namespace default: it selects namespaces by their labels, and there is no Namespace default; apply it",
			"HTTPRoute/r edge/picky NotAllowedByListeners",
		},
		{
			"no HTTP", `"parentRefs": [{"name": "edge", "sectionName": "raw"}]`, "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs",
			"no listener of Gateway edge named raw has the protocol HTTP or HTTPS", "HTTPRoute/r edge/raw NotAllowedByListeners",
		},
		{
			"the listener that is nearest says why", `"parentRefs": [{"name": "edge"}], "hostnames": ["a.example"]`, "Accepted=False/NoMatchingListenerHostname ResolvedRefs=True/ResolvedRefs",
			"no listener of Gateway edge serves a host name of the route", "HTTPRoute/r edge NoMatchingListenerHostname",
		},
		{
			"each parent once", `"parentRefs": [{"name": "edge", "sectionName": "raw"}, {"name": "edge", "sectionName": "http"}, {"name": "edge", "sectionName": "http"}]`,
			"Accepted=False/NotAllowedByListeners Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs",
			"no listener of Gateway edge named raw has the protocol HTTP or HTTPS", "HTTPRoute/r edge/raw NotAllowedByListeners",
		},
		{"a service", `"parentRefs": [{"kind": "Service", "name": "web"}]`, "ResolvedRefs=True/ResolvedRefs", "All references are of a kind and namespace that can be", ""},
		{
			"no kind of service", `"parentRefs": []` + fmt.Sprintf(refs, `{"name": "a"}, {"name": "b", "kind": "Bucket"}`), "ResolvedRefs=False/InvalidKind",
			"rules[0].backendRefs[1].kind: Bucket is no kind of service; use Service or ServiceSubset", "",
		},
		{
			"no group of services", `"parentRefs": []` + fmt.Sprintf(refs, `{"name": "b", "group": "storage.example"}`), "ResolvedRefs=False/InvalidKind",
			"rules[0].backendRefs[0].group: storage.example has no services", "",
		},
		{
			"another namespace", `"parentRefs": []` + fmt.Sprintf(refs, `{"name": "b", "namespace": "default"}, {"name": "b", "namespace": "bank"}`), "ResolvedRefs=False/RefNotPermitted",
			"rules[0].backendRefs[1].namespace: services are in no namespace: b is the value of kuma.io/service, and nothing permits a reference to namespace bank; leave it out", "",
		},
		{
			"a mirror", `"rules": [{"filters": [{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b", "kind": "Bucket"}}}]}]`, "ResolvedRefs=False/InvalidKind",
			"rules[0].filters[0].requestMirror.backendRef.kind: Bucket is no kind of service; use Service or ServiceSubset", "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			route := build(t, "HTTPRoute", "r", `{`+tt.spec+`}`)
			x := indexOf(t, gateway, route)
			conditions := conditionsOf(t, x, "HTTPRoute", "r")
			require.Equal(t, tt.status, told(conditions))
			require.Equal(t, tt.message, conditions[0].Message)
			states, _ := x.States(route.Key())
			require.Equal(t, tt.status, told(states))
			state, ok := x.Gateway("default", "edge")
			require.True(t, ok)
			var rejected []string
			for _, r := range state.Rejected {
				rejected = append(rejected, fmt.Sprintf("%s/%s %s %s", r.Route.Kind, r.Route.Name, r.Condition.ParentRef, r.Condition.Reason))
			}
			require.Equal(t, tt.rejected, strings.Join(rejected, "; "))
			if conditions[0].Status == isFalse {
				require.Contains(t, adviceOn(t, route, gateway), conditions[0].Message[strings.Index(conditions[0].Message, ": ")+1:], "apply says it, too")
			}
		})
	}
}

// §5.8: a policy whose route is attached to nothing says why.
func TestAPolicyOfADetachedRoute(t *testing.T) {
	on := build(t, "AuthPolicy", "p", `{`+ofRoute+`, "rules": {"authentication": {"a": 1}}}`)
	said := func(parents string) string {
		x := indexOf(t, on, build(t, "HTTPRoute", "r", `{"parentRefs": [`+parents+`]}`), build(t, "Gateway", "g", `{"listeners": [{"name": "raw", "port": 80, "protocol": "TCP"}]}`))
		return conditionsOf(t, x, "AuthPolicy", "p")[1].Message
	}
	require.Equal(t, saidIssues+": no route leads through its target: no listener of Gateway g has the protocol HTTP or HTTPS", said(`{"name": "g"}`))
	require.Equal(t, saidIssues+": no route leads through its target: HTTPRoute r has no Gateway among its parentRefs", said(`{"kind": "Service", "name": "g"}`))
}

// admits is §5.1 once more, said in another way: whether a listener takes a route that
// asks for it.
func admits(l resource.GatewayListener, gatewayIn, routeIn string, kind resource.Kind, labels map[string]map[string]string) bool {
	if l.Protocol != "HTTP" {
		return false
	}
	if l.AllowedRoutes == nil {
		return gatewayIn == routeIn
	}
	for _, k := range l.AllowedRoutes.Kinds {
		if k.Kind != string(kind) {
			return false // the worlds below have one kind in a list
		}
	}
	n := l.AllowedRoutes.Namespaces
	switch {
	case n == nil || n.From == nil || *n.From == "Same":
		return gatewayIn == routeIn
	case *n.From != "Selector":
		return *n.From == "All"
	case n.Selector == nil || labels[routeIn] == nil:
		return false
	}
	wanted := map[string][]string{} // by label: the values of the worlds that pass
	for key, value := range n.Selector.MatchLabels {
		wanted[key] = []string{value}
	}
	for _, q := range n.Selector.MatchExpressions {
		pass := map[string][]string{
			"In": q.Values, "Exists": {"1", "2"}, "DoesNotExist": {""},
			"NotIn": slices.DeleteFunc([]string{"", "1", "2"}, func(v string) bool { return slices.Contains(q.Values, v) }),
		}[q.Operator]
		if before, ok := wanted[q.Key]; ok {
			pass = slices.DeleteFunc(slices.Clone(pass), func(v string) bool { return !slices.Contains(before, v) })
		}
		wanted[q.Key] = pass
	}
	for key, pass := range wanted {
		if !slices.Contains(pass, labels[routeIn][key]) {
			return false
		}
	}
	return true
}

// §5.1: in any world, after any change, a route is on the listeners that an independent
// model says, and its conditions and those of the gateway agree with that.
func TestAttachmentAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pick := func(label string, options ...string) string { return rapid.SampledFrom(options).Draw(rt, label) }
		drawGateway := func(namespace string) *resource.Resource {
			var listeners []string
			for i := range rapid.IntRange(1, 3).Draw(rt, "listeners") {
				var parts []string
				if from := pick("from", "", "Same", "All", "None", "Selector", "Selector", "Selector"); from != "" {
					selector := pick("selector", "", `, "selector": {}`, `, "selector": {"matchLabels": {"a": "1"}}`, `, "selector": {"matchLabels": {"a": "1", "b": "2"}}`,
						`, "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}`,
						`, "selector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}, {"key": "b", "operator": "Exists"}]}`,
						`, "selector": {"matchLabels": {"b": "1"}, "matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}`)
					parts = append(parts, fmt.Sprintf(`"namespaces": {"from": %q%s}`, from, selector))
				}
				if kind := pick("allowed kind", "", "", "HTTPRoute", "GRPCRoute"); kind != "" {
					parts = append(parts, fmt.Sprintf(`"kinds": [{"kind": %q}]`, kind))
				}
				allowed := ""
				if len(parts) > 0 {
					allowed = `, "allowedRoutes": {` + strings.Join(parts, ", ") + `}`
				}
				listeners = append(listeners, fmt.Sprintf(`{"name": "l%d", "port": %d, "protocol": %q%s}`, i, 80+i, pick("protocol", "HTTP", "HTTP", "TCP"), allowed))
			}
			return in(namespace, build(t, "Gateway", "g", `{"listeners": [`+strings.Join(listeners, ", ")+`]}`))
		}
		places := []string{"default", "n1", "n2"}
		stored := map[resource.Key]*resource.Resource{}
		view := func() policy.View { return policy.NewSnapshot(slices.Collect(maps.Values(stored))...) }
		x := New(newCompiler(t))
		for _, r := range []*resource.Resource{
			drawGateway(""), build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g", "namespace": "default"}]}`),
			in("n1", build(t, "GRPCRoute", "s", `{"parentRefs": [{"name": "g", "namespace": "default"}]}`)),
		} {
			stored[r.Key()] = r
		}
		x.Reset(view())
		for range rapid.IntRange(0, 8).Draw(rt, "changes") {
			namespace := pick("namespace", "", "n1", "n2")
			var r *resource.Resource
			switch pick("what", "Gateway", "Namespace", "Namespace", "Namespace", "HTTPRoute", "GRPCRoute") {
			case "Gateway":
				r = drawGateway(namespace)
			case "Namespace":
				labels := map[string]string{}
				for _, key := range []string{"a", "b"} {
					if value := pick("label", "", "1", "2"); value != "" {
						labels[key] = value
					}
				}
				r = labelled(t, pick("namespace", places...), labels)
			case "HTTPRoute":
				r = in(namespace, build(t, "HTTPRoute", "r", fmt.Sprintf(`{"parentRefs": [{"name": "g", "namespace": %q}]}`, pick("parent", places...))))
			default:
				r = in(namespace, build(t, "GRPCRoute", "s", fmt.Sprintf(`{"parentRefs": [{"name": "g", "namespace": %q}]}`, pick("parent", places...))))
			}
			if stored[r.Key()] = r; rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
				delete(stored, r.Key())
			}
			x.Update(view(), []resource.Key{r.Key()})
		}
		labels := map[string]map[string]string{}
		for r := range view().List("Namespace", "") {
			labels[r.Key().Name] = map[string]string{}
			for key, value := range r.Meta().Labels {
				labels[r.Key().Name][key] = value
			}
		}
		place := func(r *resource.Resource) string {
			if namespace := r.Meta().Labels[resource.LabelNamespace]; namespace != "" {
				return namespace
			}
			return "default"
		}
		for _, kind := range []resource.Kind{"HTTPRoute", "GRPCRoute"} {
			for r := range view().List(kind, "") {
				parent := *r.Spec().(resource.RouteSpec).Parents()[0].Namespace
				g, exists := stored[resource.Key{Kind: "Gateway", Mesh: "default", Name: resource.Namespaced(parent, "g")}]
				want := []string{}
				if exists {
					for _, l := range g.Spec().(*resource.Gateway).Listeners {
						if admits(l, place(g), place(r), kind, labels) {
							want = append(want, l.Name)
						}
					}
				}
				have := []string{}
				x.mu.Lock()
				for _, l := range x.meshes["default"].routes[r.Key()].legs {
					have = append(have, l.gateway.listeners[l.listener].Name)
				}
				x.mu.Unlock()
				require.Equal(rt, want, have, "%s", r.Key())
				conditions, _ := x.Conditions(r.Key())
				require.Equal(rt, len(want) > 0, conditions[0].Status == isTrue, "%+v", conditions[0])
				if exists {
					state, _ := x.Gateway("default", g.Key().Name)
					rejected := slices.ContainsFunc(state.Rejected, func(o policy.RejectedRoute) bool { return o.Route == r.Key() })
					require.Equal(rt, len(want) == 0, rejected)
				}
			}
		}
	})
}

// A listener that selects namespaces of which there are none takes no route: its author
// is told, and the author of a route which Namespace was meant.
func TestAdviceAboutMissingNamespaces(t *testing.T) {
	const selecting = `{"listeners":[{"name":"open","port":79,"protocol":"HTTP"},
		{"name":"http","port":80,"protocol":"HTTP","allowedRoutes":{"namespaces":{"from":"Selector","selector":{"matchLabels":{"tier":"gold"}}}}}]}`
	build := func(kind, mesh, name string, labels map[string]string, spec string) *resource.Resource {
		r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.Kind(kind), Mesh: resource.MeshName(mesh), Name: name}, Labels: labels}, []byte(spec))
		require.NoError(t, err)
		return r
	}
	gateway := build("Gateway", "m", "g", nil, selecting)
	route := build("HTTPRoute", "m", "r.shpo", map[string]string{resource.LabelNamespace: "shpo"},
		`{"parentRefs":[{"name":"g","namespace":"default","sectionName":"http"}],"rules":[{"backendRefs":[{"name":"b","port":80}]}]}`)
	silver := build("Namespace", "", "shop", map[string]string{"tier": "silver"}, `{}`)
	gold := build("Namespace", "", "shop", map[string]string{"tier": "gold"}, `{}`)
	said := func(stored ...*resource.Resource) (texts []string) {
		batch := []*resource.Resource{gateway, route}
		for _, a := range policytest.Lint(t, policy.NewSnapshot(append(stored, batch...)...), batch, Surveyor{}) {
			texts = append(texts, a.Problem.String())
		}
		return texts
	}
	none := "listeners[1].allowedRoutes.namespaces.selector: selects no Namespace, so that no route may attach: apply the namespaces with their labels"
	unknown := "parentRefs[0]: attaches the route to nothing: no listener of Gateway g named http allows routes of namespace shpo: " +
		"it selects namespaces by their labels, and there is no Namespace shpo; apply it"
	require.Equal(t, []string{none, unknown}, said())
	require.Equal(t, []string{none, unknown + `; did you mean "shop"?`}, said(silver))
	require.Equal(t, []string{unknown + `; did you mean "shop"?`}, said(gold))
}
