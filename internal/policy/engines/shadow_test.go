package engines_test

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/shadow"
	"meridian/internal/resource"
)

// label sets the labels of a resource.
func label(r *resource.Resource, labels map[string]string) *resource.Resource {
	meta := r.Meta()
	meta.Labels = labels
	return r.WithMeta(meta)
}

// worlds are a world, the one without what is only tried, and the one where that is in
// effect.
func worlds(w policytest.World) (all, without, with policy.View) {
	var here, less, more []*resource.Resource
	for _, r := range w.Resources {
		here = append(here, r)
		if !r.Shadowed() {
			less, more = append(less, r), append(more, r)
		} else {
			more = append(more, label(r, nil))
		}
	}
	return policy.NewSnapshot(here...), policy.NewSnapshot(less...), policy.NewSnapshot(more...)
}

func matching(t require.TestingT, view policy.View) *policy.Matcher {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	m := engines.NewMatcher(compiler)
	m.Reset(view)
	return m
}

// What is in effect is what it is without the permissions that are only tried, and what is
// tried is what is in effect with them, whatever changes led there (§4.7).
func TestShadowPermissions(t *testing.T) {
	differed, labelled := false, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := policytest.DrawGenerations(rt)
		try := func() (changed []resource.Key) {
			for _, key := range w.Keys() {
				if slices.Contains(worldKinds, key.Kind) && rapid.IntRange(0, 2).Draw(rt, "label") == 0 {
					labels := map[string]string{resource.EnforcementLabel: rapid.SampledFrom([]string{"shadow", "shadow", "other"}).Draw(rt, "value")}
					w.Resources[key] = label(w.Resources[key], labels)
					changed = append(changed, key)
					labelled++
				}
			}
			return changed
		}
		try()
		var followed *policy.Matcher
		check := func() {
			_, less, more := worlds(w.World)
			without, with := matching(rt, less), matching(rt, more)
			trial, ok := policy.FollowerOf[*shadow.Trial](followed)
			require.True(rt, ok)
			for dp := range less.List(resource.KindDataplane, "m") {
				require.Equal(rt, spelled(rt, effective(rt, without, dp.Key())), spelled(rt, effective(rt, followed, dp.Key())))
				permissions := slices.DeleteFunc(slices.Clone(effective(rt, with, dp.Key())), func(r policy.Rule) bool { return !resource.Permission(r.Kind) })
				rules, tried, err := trial.Rules(dp.Key())
				require.NoError(rt, err)
				if !tried {
					rules = slices.DeleteFunc(slices.Clone(effective(rt, followed, dp.Key())), func(r policy.Rule) bool { return !resource.Permission(r.Kind) })
				}
				require.Equal(rt, spelled(rt, permissions), spelled(rt, rules))
				for from := range less.List(resource.KindDataplane, "m") {
					q := answer.ConnectionQuestion{Mesh: "m", From: from.Key().Name, To: dp.Key().Name}
					now, err := answer.Connection(followed, q, 0)
					require.NoError(rt, err)
					would, err := answer.Connection(with, q, 0)
					require.NoError(rt, err)
					if now.Shadow == nil {
						require.Equal(rt, would.Allowed, now.Allowed)
						require.Equal(rt, would.AllowedBy, now.AllowedBy)
						continue
					}
					differed = true
					require.Equal(rt, would.Allowed, now.Shadow.Allowed)
					require.Equal(rt, would.AllowedBy, now.Shadow.AllowedBy)
				}
			}
		}
		all, _, _ := worlds(w.World)
		followed = matching(rt, all)
		check()
		for range rapid.IntRange(0, 2).Draw(rt, "batches") {
			changed := append(try(), w.DrawChange(rt))
			followed.Update(w.View(), changed)
			check()
		}
	})
	require.True(t, differed)
	require.Positive(t, labelled)
}

// Answers say what is tried, and why.
func TestAnswersAboutShadowPermissions(t *testing.T) {
	w := policytest.NewWorld()
	put := func(kind resource.Kind, name, spec string, labels map[string]string) resource.Key {
		meta := resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}, Labels: labels}
		if kind == resource.KindMesh {
			meta.Mesh = ""
		}
		return w.Put(t, meta, spec)
	}
	tried := map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}
	put("Mesh", "m", `{}`, nil)
	for _, service := range []string{"web", "backend"} {
		put("Dataplane", service, `{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "`+service+`"}}]}}`, nil)
	}
	put("MeshTrafficPermission", "all", `{"targetRef": {"kind": "Mesh"}, "from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "ALLOW"}}]}`, nil)
	deny := put("MeshTrafficPermission", "no-web", `{"targetRef": {"kind": "MeshService", "name": "backend"}, "from": [{"targetRef": {"kind": "MeshService", "name": "web"}, "default": {"action": "DENY"}}]}`, tried)
	put("Timeout", "t", `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "1s"}}`, tried)
	m := matching(t, w.View())

	connection, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "m", From: "web", To: "backend"}, 0)
	require.NoError(t, err)
	require.True(t, connection.Allowed)
	require.Equal(t, &answer.ShadowAccess{AllowedBy: []string{}, DeniedBy: []string{"no-web"}}, connection.Shadow)
	require.Contains(t, page(t, connection, answer.RenderConnection), "allowed by all\nwould be denied by no-web (shadow)\n")
	other, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "m", From: "backend", To: "web"}, 0)
	require.NoError(t, err)
	require.Nil(t, other.Shadow, "it would be the same")

	why, err := answer.Why(m, answer.WhyQuestion{Mesh: "m", Dataplane: "backend", Kind: "MeshTrafficPermission", From: resource.Tags{"kuma.io/service": "web"}}, "z", 0)
	require.NoError(t, err)
	require.Equal(t, "ALLOW", why.Entries[0].Fields[0].Value)
	require.Equal(t, "DENY", why.Shadow[0].Fields[0].Value)
	require.Contains(t, page(t, why, answer.RenderWhy), "With the policies that are only tried (shadow):")

	about, err := answer.Policy(m, deny.Kind, "m", deny.Name, "z", 0)
	require.NoError(t, err)
	require.Empty(t, about.Dataplanes)
	require.Equal(t, "Shadow", about.Conditions[0].Type)
	require.Contains(t, about.Conditions[0].Message, "it would be on 1 dataplane.")

	// Who may not read what is tried is not told of it.
	connection.Restrict(func(key resource.Key) (bool, bool) { return key.Name != "no-web", true })
	require.Nil(t, connection.Shadow)
	why.Restrict(func(key resource.Key) (bool, bool) { return key.Name != "no-web", true })
	require.Empty(t, why.Shadow)

	advice := policytest.Lint(t, w.View(), []*resource.Resource{
		w.Resources[deny], w.Resources[resource.Key{Kind: "Timeout", Mesh: "m", Name: "t"}],
		label(w.Resources[deny], map[string]string{resource.EnforcementLabel: "Shadow"}),
	}, shadow.Surveyor{})
	require.Len(t, advice, 2)
	require.Contains(t, advice[0].Message, "this is in effect: only permissions can be tried")
	require.Contains(t, advice[1].Message, "the only value is shadow")
}

func page[A any](t *testing.T, a *A, render func(w io.Writer, a *A, form answer.Form) error) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, render(&b, a, answer.Form{}))
	return b.String()
}
