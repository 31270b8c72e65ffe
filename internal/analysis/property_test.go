package analysis_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/analysis"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// answers is what is in effect on every dataplane and connection of a view: not who would
// have it so.
func answers(t require.TestingT, compiler *condition.Compiler, view policy.View) map[string]string {
	m := engines.NewMatcher(compiler)
	m.Reset(view)
	all := map[string]string{}
	for to := range view.List(resource.KindDataplane, policytest.FleetMesh) {
		a, err := answer.Dataplane(m, policytest.FleetMesh, to.Key().Name, "east", 0)
		require.NoError(t, err)
		for _, e := range a.Effective {
			if e.SupersededBy == nil && e.Conf != nil {
				all[policytest.Spell(t, []any{to.Key().Name, e.Attachment, e.Kind})] = policytest.Spell(t, []any{e.Conf, e.Fields})
			}
		}
		for from := range view.List(resource.KindDataplane, policytest.FleetMesh) {
			q := answer.ConnectionQuestion{Mesh: policytest.FleetMesh, From: from.Key().Name, To: to.Key().Name}
			c, err := answer.Connection(m, q, 0)
			if err != nil {
				continue // a gateway is not called
			}
			effective := []any{}
			for _, e := range c.Effective {
				if len(e.Conf) > 0 || len(e.Policies) > 0 {
					effective = append(effective, []any{e.Side, e.Port, e.Kind, e.Conf, e.Fields})
				}
			}
			all[from.Key().Name+" to "+to.Key().Name] = policytest.Spell(t, []any{c.Allowed, c.AllowedBy, effective})
		}
	}
	return all
}

// without returns a spec without the item or source at a path.
func without(t require.TestingT, r *resource.Resource, part resource.Path) *resource.Resource {
	var spec map[string]any
	require.NoError(t, json.Unmarshal(r.Canonical(), &spec))
	place, index := "", 0
	_, err := fmt.Sscanf(strings.NewReplacer("[", " ", "]", "").Replace(string(part)), "%s %d", &place, &index)
	require.NoError(t, err, "%s", part)
	at := spec
	around, list, nested := strings.Cut(place, ".")
	if !nested {
		list = around
	} else {
		at = spec[around].(map[string]any)
	}
	rest := slices.Delete(at[list].([]any), index, index+1)
	if at[list] = rest; len(rest) == 0 && nested {
		delete(spec, around)
	}
	made, _, err := resource.Build(r.Meta(), []byte(policytest.Spell(t, spec)))
	require.NoError(t, err)
	return made
}

// What is called dead changes no answer when it is removed, and so does what is called
// shadowed. That holds one by one, whatever other policies there are.
func TestWhatIsDeadMayGo(t *testing.T) {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	dead, shadowed := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := policytest.DrawFleet(rt, policytest.FleetOptions{TargetRef: true, SourceDestination: true, Blocks: rapid.Bool().Draw(rt, "with blocks")})
		report, err := analysis.Run(context.Background(), w.View())
		require.NoError(rt, err)
		var before map[string]string
		for _, f := range report.Findings {
			part := f.Code == resource.CodeShadowedRule && f.Message[:13] == "takes effect "
			if f.Code != resource.CodeDeadPolicy && !part {
				continue
			}
			if before == nil {
				before = answers(rt, compiler, w.View())
			}
			changed := policytest.World{Resources: maps.Clone(w.Resources)}
			if part {
				shadowed++
				changed.Resources[f.Key] = without(rt, w.Resources[f.Key], f.Path)
			} else {
				dead++
				delete(changed.Resources, f.Key)
			}
			require.Equal(rt, before, answers(rt, compiler, changed.View()), "%s %s %s", f.Key, f.Path, f.Message)
		}
	})
	t.Logf("%d dead policies and %d shadowed parts", dead, shadowed)
	require.Positive(t, dead)
}

// BenchmarkRun analyses 10,000 policies of 1,000 services with 2,000 dataplanes.
func BenchmarkRun(b *testing.B) {
	w := policytest.NewWorld()
	put := func(kind resource.Kind, name, spec string) {
		key := resource.Key{Kind: kind, Mesh: "m", Name: name}
		if kind == resource.KindMesh {
			key.Mesh = ""
		}
		w.Put(b, resource.Meta{Key: key}, spec)
	}
	put(resource.KindMesh, "m", `{}`)
	for i := range 1000 {
		s := fmt.Sprintf("s%d", i)
		for j := range 2 {
			put(resource.KindDataplane, fmt.Sprintf("%s-%d", s, j), fmt.Sprintf(`{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": %q}}], "outbound": [{"port": 81, "tags": {"kuma.io/service": "s%d"}}]}}`, s, (i+1)%1000))
		}
		for j := range 5 {
			put(resource.KindTimeout, fmt.Sprintf("%s-%d", s, j), fmt.Sprintf(`{"sources": [{"match": {"kuma.io/service": %q}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "1s"}}`, s))
			put(resource.KindMeshTrafficPermission, fmt.Sprintf("%s-%d", s, j), fmt.Sprintf(`{"targetRef": {"kind": "MeshService", "name": %q}, "from": [{"targetRef": {"kind": "MeshService", "name": "s%d"}, "default": {"action": "ALLOW"}}]}`, s, (i+j)%1000))
		}
	}
	view := w.View()
	b.ResetTimer()
	for b.Loop() {
		report, err := analysis.Run(b.Context(), view)
		require.NoError(b, err)
		require.NotEmpty(b, report.Findings)
		require.Empty(b, report.Cut)
	}
}
