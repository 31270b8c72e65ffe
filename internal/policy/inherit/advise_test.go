package inherit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// adviceOn returns what the author of a resource is told, beside others.
func adviceOn(t *testing.T, written *resource.Resource, others ...*resource.Resource) string {
	t.Helper()
	var said []string
	for _, a := range policytest.Lint(t, policy.NewSnapshot(append(others, written)...), []*resource.Resource{written}, Surveyor{}) {
		said = append(said, a.String())
	}
	return strings.Join(said, "\n")
}

// §5.1, §5.8: what is accepted and yet has no effect is said when it is
// written.
func TestAdvice(t *testing.T) {
	gateway := build(t, "Gateway", "edge", `{"listeners": [
		{"name": "http", "port": 80, "protocol": "HTTP", "hostname": "*.shop.example"},
		{"name": "closed", "port": 82, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "Selector"}}},
		{"name": "raw", "port": 9000, "protocol": "TCP"}]}`)
	route := build(t, "HTTPRoute", "checkout", `{"parentRefs": [{"name": "edge"}], "rules": [{"name": "pay"}, {}]}`)
	grpc := build(t, "GRPCRoute", "orders", `{"parentRefs": [{"name": "edge"}]}`)
	forbids := build(t, "Mesh", "default", `{"matching": {"unset": "Forbidden"}}`)
	policyOn := func(target string) string {
		return `{"targetRef": ` + target + `, "rules": {"authentication": {"a": 1}}}`
	}
	tests := []struct{ name, kind, spec, want string }{
		{"a gateway", "AuthPolicy", policyOn(`{"kind": "Gateway", "name": "edge"}`), ""},
		{"a listener", "AuthPolicy", policyOn(`{"kind": "Gateway", "name": "edge", "sectionName": "http"}`), ""},
		{"a named rule", "AuthPolicy", policyOn(`{"kind": "HTTPRoute", "name": "checkout", "sectionName": "pay"}`), ""},
		{"an unnamed rule", "AuthPolicy", policyOn(`{"kind": "HTTPRoute", "name": "checkout", "sectionName": "rule-2"}`), ""},
		{
			"no such gateway", "AuthPolicy", policyOn(`{"kind": "Gateway", "name": "egde"}`),
			`targetRef: egde was not found, so the policy has no effect: mesh "default" has no Gateway of that name; did you mean "edge"?`,
		},
		{
			"no such listener", "AuthPolicy", policyOn(`{"kind": "Gateway", "name": "edge", "sectionName": "htp"}`),
			`targetRef: edge/htp was not found, so the policy has no effect: Gateway edge has no listener of that name; did you mean "http"?`,
		},
		{
			"no such route", "RateLimitPolicy", `{"targetRef": {"kind": "GRPCRoute", "name": "order"}, "limits": {"a": 1}}`,
			`targetRef: order was not found, so the policy has no effect: mesh "default" has no GRPCRoute of that name; did you mean "orders"?`,
		},
		{
			"no such rule", "AuthPolicy", policyOn(`{"kind": "HTTPRoute", "name": "checkout", "sectionName": "rule-1"}`),
			`targetRef: checkout/rule-1 was not found, so the policy has no effect: HTTPRoute checkout has no rule of that name; did you mean "rule-2"?`,
		},
		{
			"unset where the mesh forbids it", "AuthPolicy",
			`{"targetRef": {"kind": "HTTPRoute", "name": "checkout"}, "rules": {"authentication": {"a": 1}}, "unset": ["rules.authentication.b"]}`,
			"unset: has no effect: mesh default forbids unsetting",
		},
		{"a route that is taken", "HTTPRoute", `{"parentRefs": [{"name": "edge", "port": 80}], "hostnames": ["pay.shop.example"]}`, ""},
		{"a route of a service", "HTTPRoute", `{"parentRefs": [{"kind": "Service", "name": "edgy"}]}`, ""},
		{
			"a route of a port of a service", "HTTPRoute", `{"parentRefs": [{"kind": "Service", "name": "web", "port": 80}]}`,
			"parentRefs[0].port: has no effect: the route is on every outbound to the service, whatever its port",
		},
		{"a gateway that is missing", "HTTPRoute", `{"parentRefs": [{"name": "edg"}]}`, `parentRefs[0].name: there is no Gateway edg; did you mean "edge"?`},
		{
			"a listener that is missing", "HTTPRoute", `{"parentRefs": [{"name": "edge", "sectionName": "no"}]}`,
			"parentRefs[0]: attaches the route to nothing: Gateway edge has no listener named no",
		},
		{
			"a port that is missing", "HTTPRoute", `{"parentRefs": [{"name": "edge", "sectionName": "http", "port": 8080}]}`,
			"parentRefs[0]: attaches the route to nothing: Gateway edge has no listener named http on port 8080",
		},
		{
			"a listener that allows no namespace", "HTTPRoute", `{"parentRefs": [{"name": "edge", "sectionName": "closed"}]}`,
			"parentRefs[0]: attaches the route to nothing: no listener of Gateway edge named closed allows routes of namespace default; its allowedRoutes.namespaces decides",
		},
		{
			"host names apart", "HTTPRoute", `{"parentRefs": [{"name": "edge"}], "hostnames": ["a.example"]}`,
			"parentRefs[0]: attaches the route to nothing: no listener of Gateway edge serves a host name of the route",
		},
		{
			"a protocol that is not HTTP", "GRPCRoute", `{"parentRefs": [{"name": "edge"}, {"name": "edge", "port": 9000}]}`,
			"parentRefs[1]: attaches the route to nothing: no listener of Gateway edge on port 9000 has the protocol HTTP or HTTPS",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, adviceOn(t, build(t, resource.Kind(tt.kind), "p", tt.spec), gateway, route, grpc, forbids))
		})
	}
}

// A batch of many policies whose targets are missed beside many routes costs
// no comparison of each with each.
func TestAdviceStaysCheap(t *testing.T) {
	var routes, policies []*resource.Resource
	for i := range 5000 {
		routes = append(routes, build(t, "HTTPRoute", fmt.Sprintf("checkout-of-shop-%d", i), `{}`))
		policies = append(policies, build(t, "AuthPolicy", fmt.Sprintf("p-%d", i),
			fmt.Sprintf(`{"targetRef": {"kind": "HTTPRoute", "name": "chekout-of-shop-%d"}, "rules": {"authentication": {"a": 1}}}`, i)))
	}
	view := policy.NewSnapshot(append(routes, policies...)...)
	advice := policytest.Lint(t, view, policies, Surveyor{})
	require.Len(t, advice, len(policies))
	require.Contains(t, advice[0].String(), "did you mean")
}
