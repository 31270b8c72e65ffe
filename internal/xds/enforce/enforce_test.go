package enforce_test

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/enforce"
	"meridian/internal/xds/serve"
	"meridian/internal/xds/world"
)

func key(kind resource.Kind, name string) resource.Key {
	return resource.Key{Kind: kind, Mesh: "default", Name: name}
}

// alone is the precedence of a policy without rivals.
type alone struct{}

func (alone) Over(policy.Precedence) policy.Decision { return policy.Decision{} }
func (alone) Alone() policy.Decision                 { return policy.Decision{} }

func ruleOf(t *testing.T, kind resource.Kind, confs map[string]string, names ...string) policy.Rule {
	t.Helper()
	r := policy.Rule{Target: policy.Target{Kind: kind, Attachment: policy.Attachment{Type: policy.OnOutbound, Service: "backend", Port: 1}}}
	for _, name := range names {
		conf, err := policy.ParseTree([]byte(confs[name]))
		require.NoError(t, err)
		r.Steps = append(r.Steps, policy.Step{Conf: conf, Origin: key(kind, name), Precedence: alone{}})
	}
	return r
}

func clusterFrom(t *testing.T, name string, sources ...resource.Key) *xds.Resource {
	t.Helper()
	var origins []xds.Origin
	for _, s := range sources {
		origins = append(origins, xds.Origin{Source: s})
	}
	r, err := xds.New(&clusterv3.Cluster{Name: name}, origins...)
	require.NoError(t, err)
	return r
}

// What a proxy does with a policy follows from what of it proxies can do, and from how
// far the resources have come that have values of it.
func TestEffects(t *testing.T) {
	const breaker = resource.KindCircuitBreaker
	confs := map[string]string{
		"full":  `{"thresholds": {"maxRequests": 7}}`,
		"part":  `{"thresholds": {"maxRequests": 7, "maxRetries": 3}}`,
		"other": `{"thresholds": {"maxRetries": 3}}`,
	}
	full, other := key(breaker, "full"), key(breaker, "other")
	for name, c := range map[string]struct {
		policies []string
		sent     []resource.Key
		delivery serve.Delivery
		want     enforce.State
		each     []enforce.State
	}{
		"accepted":          {[]string{"full"}, []resource.Key{full}, serve.Accepted, enforce.Enforced, []enforce.State{enforce.Enforced}},
		"in part":           {[]string{"part"}, []resource.Key{key(breaker, "part")}, serve.Accepted, enforce.Approximated, []enforce.State{enforce.Approximated}},
		"nothing of it":     {[]string{"other"}, nil, serve.Accepted, enforce.Unsupported, []enforce.State{enforce.Unsupported}},
		"nothing of one":    {[]string{"full", "other"}, []resource.Key{full}, serve.Accepted, enforce.Approximated, []enforce.State{enforce.Enforced, enforce.Unsupported}},
		"on its way":        {[]string{"full"}, []resource.Key{full}, serve.Pending, enforce.Pending, []enforce.State{enforce.Pending}},
		"rejected":          {[]string{"full"}, []resource.Key{full}, serve.Refused, enforce.Rejected, []enforce.State{enforce.Rejected}},
		"not asked for":     {[]string{"full"}, []resource.Key{full}, serve.NotAsked, enforce.Unused, []enforce.State{enforce.Unused}},
		"others rejected":   {[]string{"full"}, []resource.Key{other}, serve.Refused, enforce.Pending, []enforce.State{enforce.Pending}},
		"no policy at all":  {nil, nil, serve.Accepted, enforce.Unused, nil},
		"rejected, in part": {[]string{"part"}, []resource.Key{key(breaker, "part")}, serve.Refused, enforce.Rejected, []enforce.State{enforce.Rejected}},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := xds.NewSet(9, clusterFrom(t, "c", c.sent...))
			require.NoError(t, err)
			deliveries := func(resources []*xds.Resource) []serve.Delivery {
				return slices.Repeat([]serve.Delivery{c.delivery}, len(resources))
			}
			effects := new(enforce.Reader).Effects(xds.GRPC, world.Mesh{}, set, []policy.Rule{ruleOf(t, breaker, confs, c.policies...)}, nil, nil, deliveries)
			require.Len(t, effects, 1)
			require.Equal(t, c.want, effects[0].State)
			states := map[string]enforce.State{}
			for _, p := range effects[0].Policies {
				states[p.Key.Name] = p.State
			}
			require.Len(t, states, len(c.each))
			for i, want := range c.each {
				require.Equal(t, want, states[c.policies[i]], c.policies[i])
			}
			asked := 0
			for i, want := range c.each {
				only := key(breaker, c.policies[i])
				effects := new(enforce.Reader).Effects(xds.GRPC, world.Mesh{}, set, []policy.Rule{ruleOf(t, breaker, confs, c.policies...)}, nil, &only, func(resources []*xds.Resource) []serve.Delivery {
					asked += len(resources)
					return slices.Repeat([]serve.Delivery{c.delivery}, len(resources))
				})
				require.Equal(t, []enforce.Policy{{Key: only, State: want}}, effects[0].Policies, "asked about alone")
			}
			require.LessOrEqual(t, asked, len(c.each), "what has nothing of it is not looked at, unless nothing has")
		})
	}
}

// Where nothing is sent nothing is enforced, and a route of a service counts like a
// policy.
func TestEffectsOfWithheldAndRoutes(t *testing.T) {
	rule := ruleOf(t, resource.KindCircuitBreaker, map[string]string{"full": `{"thresholds": {"maxRequests": 7}}`}, "full")
	none := func(resources []*xds.Resource) []serve.Delivery { return make([]serve.Delivery, len(resources)) }
	effects := new(enforce.Reader).Effects(xds.GRPC, world.Mesh{}, xds.WithheldSet(9, "mutual TLS"), []policy.Rule{rule}, nil, nil, none)
	require.Equal(t, enforce.Unsupported, effects[0].State)

	documents, err := resource.Decode("routes", []byte(`{type: GRPCRoute, mesh: default, name: r, parentRefs: [{kind: Service, name: backend}], rules: [{backendRefs: [{name: backend}]}]}`), resource.DecodeOptions{})
	require.NoError(t, err)
	route := documents[0].Resource
	set, err := xds.NewSet(9, clusterFrom(t, "c", route.Key()))
	require.NoError(t, err)
	effects = new(enforce.Reader).Effects(xds.GRPC, world.Mesh{}, set, nil, []*resource.Resource{route}, nil, func([]*xds.Resource) []serve.Delivery { return []serve.Delivery{serve.Accepted} })
	require.Equal(t, []enforce.Policy{{Key: route.Key(), State: enforce.Enforced}}, effects[0].Policies)
}

// What is about an outbound that is too large to be sent is not enforced, whatever else was
// accepted.
func TestEffectsOfWhatIsOmitted(t *testing.T) {
	confs := map[string]string{"full": `{"thresholds": {"maxRequests": 7}}`}
	rule := ruleOf(t, resource.KindCircuitBreaker, confs, "full")
	other := rule
	other.Attachment.Port = 2
	accepted := func(resources []*xds.Resource) []serve.Delivery {
		return slices.Repeat([]serve.Delivery{serve.Accepted}, len(resources))
	}
	set, err := xds.NewSet(9, clusterFrom(t, "c", key(resource.KindCircuitBreaker, "full")))
	require.NoError(t, err)
	set.Omitted = []xds.Omission{{Attachment: rule.Attachment.String()}}
	effects := new(enforce.Reader).Effects(xds.GRPC, world.Mesh{}, set, []policy.Rule{rule, other}, nil, nil, accepted)
	require.Equal(t, enforce.Unsupported, effects[0].State)
	require.Equal(t, enforce.Enforced, effects[1].State)
}

// A permission holds as far as it is known of callers who they are.
func TestEffectsOfPermissions(t *testing.T) {
	const kind = resource.KindMeshTrafficPermission
	rule := ruleOf(t, kind, map[string]string{"p": `{"action": "DENY"}`}, "p")
	rule.Attachment = policy.Attachment{Type: policy.OnInbound, Port: 80}
	set, err := xds.NewSet(9, clusterFrom(t, "c", key(kind, "p")))
	require.NoError(t, err)
	accepted := func(resources []*xds.Resource) []serve.Delivery {
		return slices.Repeat([]serve.Delivery{serve.Accepted}, len(resources))
	}
	for _, c := range []struct {
		mesh        world.Mesh
		envoy, grpc enforce.State
	}{
		{world.Mesh{MTLS: true, BackendType: world.BuiltinCA}, enforce.Enforced, enforce.Enforced},
		{world.Mesh{MTLS: true, BackendType: world.BuiltinCA, Permissive: true}, enforce.Approximated, enforce.Unsupported},
		{world.Mesh{MTLS: true, Permissive: true}, enforce.Unsupported, enforce.Unsupported},
		{world.Mesh{}, enforce.Unsupported, enforce.Unsupported},
	} {
		for dialect, want := range map[xds.Dialect]enforce.State{xds.Envoy: c.envoy, xds.GRPC: c.grpc} {
			effects := new(enforce.Reader).Effects(dialect, c.mesh, set, []policy.Rule{rule}, nil, nil, accepted)
			require.Equal(t, want, effects[0].State, "%s %+v", dialect, c.mesh)
		}
	}
}

func TestWorse(t *testing.T) {
	require.Equal(t, enforce.Rejected, enforce.Worse(enforce.Rejected, enforce.Pending))
	require.Equal(t, enforce.Rejected, enforce.Worse(enforce.Pending, enforce.Rejected))
	require.Equal(t, enforce.Unused, enforce.Worse("", enforce.Unused))
	require.True(t, enforce.Approximated.Holds())
	require.False(t, enforce.Pending.Holds())
}
