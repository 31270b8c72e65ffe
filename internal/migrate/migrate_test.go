package migrate_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/migrate"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// byName are the resources of a world in order.
func byName(w policytest.World) []*resource.Resource {
	return slices.SortedFunc(maps.Values(w.Resources), func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
}

// allowed is who may call whom, as inspect connection tells it.
func allowed(t require.TestingT, all []*resource.Resource) map[string]bool {
	m := policy.NewMatcher(engines.All()...)
	m.Reset(policy.NewSnapshot(all...))
	answers := map[string]bool{}
	for _, from := range all {
		for _, to := range all {
			if from.Key().Kind != resource.KindDataplane || to.Key().Kind != resource.KindDataplane {
				continue
			}
			q := answer.ConnectionQuestion{Mesh: policytest.FleetMesh, From: from.Key().Name, To: to.Key().Name}
			if a, err := answer.Connection(m, q, 0); err == nil {
				answers[from.Key().Name+" to "+to.Key().Name] = a.Allowed
			}
		}
	}
	return answers
}

// prove compares, and asks inspect connection as well: what the proof calls equal is.
func prove(t require.TestingT, before, after []*resource.Resource) *migrate.Proof {
	proof, err := migrate.Prove(context.Background(), "east", before, after)
	require.NoError(t, err)
	if proof.Counterexample == nil {
		require.Equal(t, allowed(t, before), allowed(t, after))
	}
	return proof
}

// Source/destination policies are equal to what they are translated into on all dataplanes
// with one inbound, whatever the rules of the mesh are.
func TestToTargetRef(t *testing.T) {
	translated := 0
	rapid.Check(t, func(rt *rapid.T) {
		before := byName(policytest.DrawFleet(rt, policytest.FleetOptions{SourceDestination: true, OneInbound: true}))
		m := migrate.ToTargetRef(before)
		for _, r := range m.Results {
			if d, _ := resource.Describe(r.Resource.Key().Kind); d.Class == resource.SourceDestination && r.Reason == "" {
				translated++
				require.NotContains(rt, m.After, r.Resource)
			}
		}
		if proof := prove(rt, before, m.After); proof.Counterexample != nil {
			rt.Fatalf("%s", proof.Counterexample)
		}
	})
	require.Positive(t, translated)
}

// On dataplanes with several inbounds `from` may hold where destinations did not (§4.7):
// the proof says equal only where it is.
func TestToTargetRefOnAnyDataplane(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		before := byName(policytest.DrawFleet(rt, policytest.FleetOptions{SourceDestination: true}))
		prove(rt, before, migrate.ToTargetRef(before).After)
	})
}

// FirstWins and LastWins are equal after the order is turned round, there and back.
func TestReorder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		before := byName(policytest.DrawFleet(rt, policytest.FleetOptions{TargetRef: true}))
		other := map[string]string{resource.FirstWins: resource.LastWins, resource.LastWins: resource.FirstWins}
		mesh := before[slices.IndexFunc(before, func(r *resource.Resource) bool { return r.Key().Kind == resource.KindMesh })]
		was := mesh.Spec().(*resource.Mesh).EffectiveMatching().TargetRef
		there := migrate.Reorder(before, other[was])
		require.Empty(rt, there.Refused())
		for _, after := range [][]*resource.Resource{there.After, migrate.Reorder(there.After, was).After} {
			if proof := prove(rt, before, after); proof.Counterexample != nil {
				rt.Fatalf("%s", proof.Counterexample)
			}
		}
		require.Equal(rt, before, migrate.Reorder(before, was).After, "there is nothing to do")
	})
}

const twoTimeouts = `{type: Mesh, name: default}
---
{type: Timeout, mesh: default, name: wide, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: '*'}}], conf: {connectTimeout: 5s, tcp: {idleTimeout: 1h}}}
---
{type: Timeout, mesh: default, name: web, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {connectTimeout: 1s}}
---
{type: TrafficPermission, mesh: default, name: web, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}]}
---
{type: Dataplane, mesh: default, name: web-1, networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}], outbound: [{port: 90, tags: {kuma.io/service: backend}}]}}
---
{type: Dataplane, mesh: default, name: backend-1, networking: {address: 10.0.0.2, inbound: [{port: 80, tags: {kuma.io/service: backend}}]}}
`

func decode(t *testing.T, text string) []*resource.Resource {
	t.Helper()
	documents, err := resource.Decode("test", []byte(text), resource.DecodeOptions{Mesh: "default"})
	require.NoError(t, err)
	var all []*resource.Resource
	for _, d := range documents {
		all = append(all, d.Resource)
	}
	return all
}

// A translation that is wrong is told by the first place that differs, with the reasons of
// both sides.
func TestCounterexamples(t *testing.T) {
	before := decode(t, twoTimeouts)
	after := migrate.ToTargetRef(before).After
	proof := prove(t, before, after)
	require.Nil(t, proof.Counterexample)
	require.Equal(t, 2, proof.Dataplanes)
	require.Equal(t, 4, proof.Connections)

	without := func(kind resource.Kind, name string) []*resource.Resource {
		return slices.DeleteFunc(slices.Clone(after), func(r *resource.Resource) bool { return r.Key().Kind == kind && r.Key().Name == name })
	}
	differs := prove(t, before, without("MeshUpstreamTimeout", "m00001-web")).Counterexample
	require.NotNil(t, differs)
	require.Equal(t, "web-1", differs.Dataplane)
	require.Equal(t, policy.Tree{"connectTimeout": "1s"}, differs.Before.Conf)
	require.Equal(t, policy.Tree{"connectTimeout": "5s", "idleTimeout": "1h"}, differs.After.Conf)
	require.Contains(t, differs.String(), "Timeout web: 2 exact values beat 0 (§3.3)")
	require.Contains(t, differs.String(), "MeshUpstreamTimeout m00000-wide: ")

	differs = prove(t, before, without("MeshTrafficPermission", "m00000-web")).Counterexample
	require.NotNil(t, differs)
	require.Equal(t, "backend-1", differs.From, "itself, which is denied before")
	require.Equal(t, false, differs.Before.Conf)
	require.Equal(t, true, differs.After.Conf)
}

// What cannot be said in the successor is named with its place and the reason, and nothing
// of its kind is translated.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ document, path, reason string }{
		"tags of outbounds": {"{type: Timeout, mesh: default, name: x, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend, version: v1}}], conf: {connectTimeout: 1s}}", "destinations[0].match", "names services"},
		"a field":           {"{type: Timeout, mesh: default, name: x, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {connectTimeout: 1s, grpc: {streamIdleTimeout: 1s}}}", "conf", "no field for grpc"},
		"nothing":           {"{type: HealthCheck, mesh: default, name: x, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}]}", "conf", "configures nothing"},
		"the default":       {"{type: TrafficLog, mesh: default, name: x, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {}}", "conf", "nothing"},
		"a kind":            {"{type: TrafficRoute, mesh: default, name: x, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {destination: {kuma.io/service: other}}}", "", "by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			before := decode(t, twoTimeouts+"---\n"+c.document+"\n")
			m := migrate.ToTargetRef(before)
			refused := m.Refused()
			at := slices.IndexFunc(refused, func(r migrate.Result) bool { return r.Resource.Key().Name == "x" })
			require.GreaterOrEqual(t, at, 0)
			require.Equal(t, resource.Path(c.path), refused[at].Path)
			require.Contains(t, refused[at].Reason, c.reason)
			for _, r := range m.Results {
				if r.Resource.Key().Kind == refused[at].Resource.Key().Kind {
					require.NotEmpty(t, r.Reason)
					require.Equal(t, []*resource.Resource{r.Resource}, r.Into)
				}
			}
			require.Nil(t, prove(t, before, m.After).Counterexample)
		})
	}
}

// A comparison ends with its caller.
func TestProveEnds(t *testing.T) {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	all := decode(t, twoTimeouts)
	_, err := migrate.Prove(ctx, "east", all, all)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
