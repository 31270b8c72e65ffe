package door

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// step is one change of what the global owns or of a dataplane, and what the
// proxies do meanwhile.
type step struct {
	what            int
	kind            resource.Kind
	name            string
	from, to, value string
	settle          bool
	answering       string
}

var stepGenerator = rapid.Custom(func(t *rapid.T) step {
	service := rapid.SampledFrom([]string{"*", "web", "backend", "admin"})
	return step{
		what: rapid.IntRange(0, 6).Draw(t, "what"),
		kind: rapid.SampledFrom([]resource.Kind{"Timeout", "TrafficPermission", "MeshTrafficPermission", "ProxyTemplate"}).Draw(t, "kind"),
		name: fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(t, "name")),
		from: service.Draw(t, "from"), to: service.Draw(t, "to"),
		value:     fmt.Sprintf("%ds", rapid.IntRange(1, 3).Draw(t, "value")),
		settle:    rapid.Bool().Draw(t, "settle"),
		answering: rapid.SampledFrom([]string{"", "web-1", "web-2", "backend-1"}).Draw(t, "answering"),
	}
})

// Whatever happens and however slowly a proxy answers, what it was sent adds up
// to what inspect says, and nothing is ever sent that it knows already (which
// proxyClient watches over).
func TestDeltasAddUpToTheAnswer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(stepGenerator, 1, 25).Draw(rt, "steps")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = follow(t, steps) })
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

// follow lets three proxies live through the steps.
func follow(t *testing.T, steps []step) error {
	w := newWorld(t)
	w.open()
	defer func() { w.stop() }()
	proxies, answered := map[string]*proxyClient{}, map[string]int{}
	for name, spec := range map[string]string{
		"web-1": dataplaneSpec("web", "backend", "admin"), "web-2": dataplaneSpec("web", "backend", "admin"), "backend-1": dataplaneSpec("backend", "admin"),
	} {
		proxies[name] = w.connectWith(w.token(""), name, spec, func(p *proxyClient) { p.hold = true })
		defer proxies[name].leave()
	}
	synctest.Wait()
	answer := func(name string) {
		for n := len(proxies[name].messages()); answered[name] < n; n = len(proxies[name].messages()) {
			answered[name] = n
			proxies[name].answer(uint64(n), "")
			synctest.Wait()
		}
	}
	for _, s := range steps {
		s.take(t, w)
		if s.settle {
			synctest.Wait()
		}
		if s.answering != "" {
			answer(s.answering)
		}
	}
	synctest.Wait()
	for name, p := range proxies {
		answer(name)
		if err := compareWithAnswer(w, p, name); err != nil {
			return err
		}
		if state := w.state(name); state.Lag != 0 || !state.Connected {
			return fmt.Errorf("%s: %+v", name, state)
		}
	}
	return nil
}

func (s step) take(t *testing.T, w *world) {
	switch s.what {
	case 0:
		w.globalDelete(resource.Key{Kind: s.kind, Mesh: "default", Name: s.name})
		return
	case 1:
		rules := map[bool]string{true: "KongMesh", false: "Kuma2020"}[s.from == "*"]
		w.global(build(t, "Mesh", "", "default", `{"matching": {"sourceDestination": "`+rules+`"}}`))
		return
	case 2:
		// The dataplane itself changes under its proxy.
		w.operator("web-2", dataplaneSpec("web", "backend-"+s.value, "admin"))
		return
	case 3:
		w.operator("web-2", dataplaneSpec("web", "backend", "admin"))
		return
	}
	selectors := fmt.Sprintf(`"sources": [{"match": {"kuma.io/service": %q}}], "destinations": [{"match": {"kuma.io/service": %q}}]`, s.from, s.to)
	var spec string
	switch s.kind {
	case "Timeout":
		spec = `{` + selectors + `, "conf": {"connectTimeout": "` + s.value + `"}}`
	case "TrafficPermission":
		spec = `{` + selectors + `}`
	case "ProxyTemplate":
		spec = fmt.Sprintf(`{"selectors": [{"match": {"kuma.io/service": %q}}], "conf": {"imports": [%q]}}`, s.from, s.value)
	case "MeshTrafficPermission":
		action := map[bool]string{true: "ALLOW", false: "DENY"}[s.value == "1s"]
		spec = fmt.Sprintf(`{"targetRef": {"kind": "Mesh"}, "from": [{"targetRef": {"kind": "MeshService", "name": %q}, "action": %q}]}`, s.to, action)
	}
	w.global(build(t, s.kind, "default", s.name, spec))
}

// compareWithAnswer compares what a proxy has with what inspect says.
func compareWithAnswer(w *world, p *proxyClient, name string) error {
	want := map[string]*meridianv1.EffectiveEntry{}
	err := w.matching.Read(func(m *policy.Matcher, asOf resource.Revision) error {
		a, err := answer.Dataplane(m, "default", name, "east", asOf)
		if err != nil {
			return err
		}
		for i := range a.Effective {
			e, err := entryOf(&a.Effective[i])
			if err != nil {
				return err
			}
			want[targetText(e.GetTarget())] = e
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(want) != len(p.has) {
		return fmt.Errorf("%s: has %d entries, inspect shows %d", name, len(p.has), len(want))
	}
	for key, e := range want {
		if !proto.Equal(e, p.has[key]) {
			return fmt.Errorf("%s: has %v, inspect shows %v", name, p.has[key], e)
		}
	}
	return nil
}

// entryOf is what a proxy should have, made from the public document.
func entryOf(e *answer.Effective) (*meridianv1.EffectiveEntry, error) {
	entry := &meridianv1.EffectiveEntry{
		Target:    encodeTarget(&policy.Target{Attachment: e.Attachment, Kind: e.Kind}),
		PerCaller: e.Rules != nil, Policies: slices.Clone(e.Policies),
	}
	if e.Rules == nil {
		conf, err := encodeTree(e.Conf)
		entry.Conf = conf
		return entry, err
	}
	for _, r := range e.Rules {
		conf, err := encodeTree(r.Conf)
		if err != nil {
			return nil, err
		}
		entry.Rules = append(entry.Rules, &meridianv1.EffectiveCallerRule{
			Match: r.Match, Conf: conf, Policy: r.Policy, ShadowedBy: r.ShadowedBy,
		})
	}
	return entry, nil
}
