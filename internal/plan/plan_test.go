package plan_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

func matcherOf(t require.TestingT, view policy.View) *policy.Matcher {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	m := engines.NewMatcher(compiler)
	m.Reset(view)
	return m
}

// world is a random mesh, with and without mutual TLS, and with faults for some callers.
type world struct{ policytest.Generations }

func (w world) drawMesh(rt *rapid.T) resource.Key {
	spec := `{}`
	if rapid.Bool().Draw(rt, "mtls") {
		spec = `{"mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}}`
	}
	return w.Put(rt, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, spec)
}

func (w world) drawFault(rt *rapid.T) resource.Key {
	service := rapid.SampledFrom([]string{"a", "b", "c", "*"})
	return w.Put(rt, resource.Meta{Key: resource.Key{Kind: "FaultInjection", Mesh: "m", Name: fmt.Sprintf("f%d", rapid.IntRange(1, 2).Draw(rt, "fault"))}},
		fmt.Sprintf(`{"sources": [{"match": {"kuma.io/service": %q}}], "destinations": [{"match": {"kuma.io/service": %q}}],
			"conf": {"abort": {"httpStatus": 50%d, "percentage": 50}}}`, service.Draw(rt, "source"), service.Draw(rt, "destination"), rapid.IntRange(0, 2).Draw(rt, "status")))
}

func drawWorld(rt *rapid.T) world {
	w := world{policytest.DrawGenerations(rt)}
	if rapid.Bool().Draw(rt, "other mesh settings") {
		w.drawMesh(rt)
	}
	if rapid.Bool().Draw(rt, "faults") {
		w.drawFault(rt)
	}
	return w
}

func (w world) change(rt *rapid.T) resource.Key {
	switch rapid.IntRange(0, 9).Draw(rt, "which") {
	case 0:
		return w.drawMesh(rt)
	case 1, 2:
		return w.drawFault(rt)
	case 3:
		key := resource.Key{Kind: resource.KindDataplane, Mesh: "m", Name: "d1"}
		delete(w.Resources, key)
		return key
	}
	return w.DrawChange(rt)
}

// connections is what inspect says of every connection, by its ends and port. An inbound
// that has its port twice is left out: a question cannot tell them apart.
func connections(t require.TestingT, m *policy.Matcher, view policy.View) map[string]bool {
	all := map[string]bool{}
	for from := range view.List(resource.KindDataplane, "m") {
		for to := range view.List(resource.KindDataplane, "m") {
			if from.Key() == to.Key() {
				continue
			}
			for _, port := range ports(to) {
				a, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "m", From: from.Key().Name, To: to.Key().Name, Port: port}, 0)
				require.NoError(t, err)
				all[fmt.Sprintf("%s %s %d", from.Key().Name, to.Key().Name, port)] = a.Allowed
			}
		}
	}
	return all
}

// ports are those of the inbounds of a dataplane; none where two inbounds have one port.
func ports(r *resource.Resource) []uint32 {
	seen := map[uint32]string{}
	for _, in := range r.Spec().(*resource.Dataplane).Inbounds() {
		if tags := fmt.Sprint(in.Tags); seen[in.Port] != "" && seen[in.Port] != tags {
			return nil
		}
		seen[in.Port] = fmt.Sprint(in.Tags)
	}
	return slices.Sorted(maps.Keys(seen))
}

// unclear are the dataplanes with a port that two inbounds have.
func (w world) unclear(names map[string]bool) {
	for key, r := range w.Resources {
		if key.Kind == resource.KindDataplane && len(ports(r)) == 0 {
			names[key.Name] = true
		}
	}
}

// values are what inspect says of every field, by where it is.
func values(t require.TestingT, m *policy.Matcher, view policy.View) map[string]string {
	all := map[string]string{}
	for dp := range view.List(resource.KindDataplane, "m") {
		a, err := answer.Dataplane(m, "m", dp.Key().Name, "z", 0)
		require.NoError(t, err)
		for _, e := range a.Effective {
			if e.Rules != nil || e.SupersededBy != nil || len(e.Policies) == 0 {
				continue
			}
			fields(all, dp.Key().Name, "", policytest.Spell(t, e.Attachment), e.Kind, e.Conf, e.Fields, t)
		}
	}
	for from := range view.List(resource.KindDataplane, "m") {
		for to := range view.List(resource.KindDataplane, "m") {
			if from.Key() == to.Key() {
				continue
			}
			for _, port := range ports(to) {
				a, err := answer.Connection(m, answer.ConnectionQuestion{Mesh: "m", From: from.Key().Name, To: to.Key().Name, Port: port}, 0)
				require.NoError(t, err)
				for _, e := range a.Effective {
					if e.Side == policy.OnInbound && !resource.Permission(e.Kind) {
						fields(all, to.Key().Name, from.Key().Name, fmt.Sprint(port), e.Kind, e.Conf, e.Fields, t)
					}
				}
			}
		}
	}
	return all
}

func fields(all map[string]string, dataplane, from, at string, kind resource.Kind, conf policy.Tree, by map[policy.Pointer]string, t require.TestingT) {
	for p := range by {
		v, _ := policy.At(conf, p)
		all[policytest.Spell(t, []any{dataplane, from, at, kind, p})] = policytest.Spell(t, v)
	}
}

// What a plan predicts is what inspect says once the change is made, and what it does not
// mention stays as it is.
func TestPredictionEqualsWhatComesToBe(t *testing.T) {
	connected, configured := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := drawWorld(rt)
		before := w.View()
		m := matcherOf(rt, before)
		computed := connections(rt, m, before)
		settings := values(rt, m, before)
		unclear := map[string]bool{}
		w.unclear(unclear)

		var changed []resource.Key
		for range rapid.IntRange(1, 3).Draw(rt, "changes") {
			changed = append(changed, w.change(rt))
		}
		w.unclear(unclear)
		after := w.View()
		p := plan.New()
		batch := &plan.Batch{}
		for _, key := range changed {
			if r, ok := w.Resources[key]; !ok {
				batch.Deleted = append(batch.Deleted, key)
			} else {
				batch.Written = append(batch.Written, r)
			}
		}
		require.NoError(rt, p.Dataplanes(t.Context(), m, batch, "z", nil))
		require.NoError(rt, p.RoutesOf(t.Context(), m, batch))
		require.Equal(rt, computed, connections(rt, m, before), "a plan changes nothing")

		d := p.Document()
		require.Zero(rt, d.Truncated+d.TruncatedFields)
		predicted := maps.Clone(computed)
		rows := map[string]bool{}
		for _, c := range d.Connections {
			if unclear[c.To] {
				continue
			}
			key := fmt.Sprintf("%s %s %d", c.From, c.To, c.Port)
			// An inbound whose tags change is two: one goes, another comes.
			side := fmt.Sprint(key, c.Before != nil, c.After != nil)
			require.False(rt, rows[side], "%s twice", key)
			rows[side] = true
			if c.Before != nil {
				require.Equal(rt, computed[key], *c.Before, key)
				if !rows[fmt.Sprint(key, false, true)] {
					delete(predicted, key)
				}
			}
			if c.After != nil {
				predicted[key] = *c.After
			}
			connected++
		}
		next := matcherOf(rt, after)
		now := connections(rt, next, after)
		for _, all := range []map[string]bool{predicted, now} {
			maps.DeleteFunc(all, func(key string, _ bool) bool { return unclear[strings.Fields(key)[1]] })
		}
		require.Equal(rt, now, predicted, "%s", policytest.Spell(rt, d))

		expected := values(rt, next, after)
		foreseen := maps.Clone(settings)
		stable := func(dataplane string) bool {
			return !slices.Contains(changed, policy.DataplaneKey("m", dataplane))
		}
		for _, f := range d.Fields {
			at := policytest.Spell(rt, f.Attachment)
			if f.From != "" {
				at = fmt.Sprint(f.Attachment.Port)
			}
			key := policytest.Spell(rt, []any{f.Dataplane, f.From, at, f.Kind, f.Field})
			if f.Before != nil && f.Field != "" && stable(f.Dataplane) {
				if was, known := settings[key]; known {
					require.Equal(rt, was, policytest.Spell(rt, f.Before))
				}
			}
			if delete(foreseen, key); f.After != nil {
				foreseen[key] = policytest.Spell(rt, f.After)
			}
			configured++
		}
		for _, side := range []map[string]string{expected, foreseen} {
			for key := range side {
				var parts []string
				require.NoError(rt, json.Unmarshal([]byte(key), &parts))
				// The fields of a connection come and go with it: it is listed itself.
				if !stable(parts[0]) && parts[1] != "" || parts[1] != "" && !stable(parts[1]) || parts[4] == "" || parts[1] != "" && unclear[parts[0]] {
					continue
				}
				require.Equal(rt, expected[key], foreseen[key], "%s: %s", key, policytest.Spell(rt, d))
			}
		}
	})
	require.Greater(t, connected, 20)
	require.Greater(t, configured, 20)
}

// A change that deletes the tests that a mesh carries takes them away.
func TestDeletedTestsAreALoss(t *testing.T) {
	p := plan.New()
	p.Changes = []plan.Change{
		{Kind: resource.KindMeshTest, Mesh: "shop", Name: "shop", Outcome: plan.Updated},
		{Kind: resource.KindMeshTest, Mesh: "default", Name: "default", Outcome: plan.Deleted},
		{Kind: resource.KindTimeout, Mesh: "default", Name: "slow", Outcome: plan.Deleted},
	}
	require.Equal(t, []string{"the tests that mesh default carries"}, p.Losses())
}
