package dataplane

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
)

// step is one change of what the global owns or of a dataplane, or of who is
// there, and what the proxies do meanwhile.
type step struct {
	what            string
	kind            resource.Kind
	name            string
	from, to, value string
	settle          bool
	// proxy is whom it concerns where it concerns one; answering is who answers
	// afterwards; refusing is with what.
	proxy, answering, refusing string
}

var proxyNames = []string{"web-1", "web-2", "backend-1"}

var stepGenerator = rapid.Custom(func(t *rapid.T) step {
	service := rapid.SampledFrom([]string{"*", "web", "backend", "admin"})
	return step{
		what: rapid.SampledFrom([]string{
			"policy", "policy", "policy", "remove policy", "rules", "operator", "mesh", "leave", "return", "delete", "restart", "wait",
		}).Draw(t, "what"),
		kind: rapid.SampledFrom([]resource.Kind{"Timeout", "TrafficPermission", "MeshTrafficPermission", "ProxyTemplate"}).Draw(t, "kind"),
		name: fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(t, "name")),
		from: service.Draw(t, "from"), to: service.Draw(t, "to"),
		value:     fmt.Sprintf("%ds", rapid.IntRange(1, 3).Draw(t, "value")),
		settle:    rapid.Bool().Draw(t, "settle"),
		proxy:     rapid.SampledFrom(proxyNames).Draw(t, "proxy"),
		answering: rapid.SampledFrom(append([]string{""}, proxyNames...)).Draw(t, "answering"),
		refusing:  rapid.SampledFrom([]string{"", "", "", "no"}).Draw(t, "refusing"),
	}
})

// Whatever happens and however slowly a proxy answers, what it was sent adds up
// to what inspect says at that revision, and nothing is ever sent that it knows
// already (which proxyClient watches over): not through changes of policies,
// rules, meshes and dataplanes, proxies that refuse, leave and return, and
// restarts of the zone.
func TestDeltasAddUpToTheAnswer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(stepGenerator, 1, 30).Draw(rt, "steps")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = follow(t, steps) })
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

// life is three proxies that live through steps.
type life struct {
	t       *testing.T
	w       *world
	proxies map[string]*proxyClient // those that are there
	// answered counts the configurations that each has answered, or looked at.
	answered map[*proxyClient]int
	// refused are those whose last answer was a refusal.
	refused map[*proxyClient]bool
	// said is what inspect has said of a dataplane at a revision, every time: what
	// the zone owns changes without a revision of the global.
	said map[string]map[resource.Revision][]entries
}

// entries are those of a dataplane by their targets.
type entries map[string]*meridianv1.EffectiveEntry

func (a entries) equal(b entries) bool {
	if len(a) != len(b) {
		return false
	}
	for key, e := range a {
		if !proto.Equal(e, b[key]) {
			return false
		}
	}
	return true
}

// follow lets three proxies live through the steps.
func follow(t *testing.T, steps []step) error {
	l := &life{
		t: t, w: newWorld(t), proxies: map[string]*proxyClient{}, answered: map[*proxyClient]int{},
		refused: map[*proxyClient]bool{},
		said:    map[string]map[resource.Revision][]entries{},
	}
	l.w.open()
	defer func() { l.w.stop() }()
	defer func() {
		for _, p := range l.proxies {
			p.leave()
		}
	}()
	for _, name := range proxyNames {
		l.arrive(name)
	}
	synctest.Wait()
	if err := l.inspect(); err != nil {
		return err
	}
	for _, s := range steps {
		s.take(l)
		if err := l.inspect(); err != nil {
			return err
		}
		if s.settle {
			synctest.Wait()
		}
		if err := l.answer(s.answering, s.refusing); err != nil {
			return err
		}
	}
	synctest.Wait()
	for _, name := range proxyNames {
		if err := l.settled(name); err != nil {
			return err
		}
	}
	return nil
}

// settled has a proxy answer everything and finds it where inspect is.
func (l *life) settled(name string) error {
	p := l.proxies[name]
	if p == nil || p.over() {
		return nil
	}
	if err := l.answer(name, ""); err != nil {
		return err
	}
	now, at, err := l.now(name)
	if err != nil {
		return err
	}
	if has := p.holds(); !has.equal(now) {
		return fmt.Errorf("%s: has %v, inspect shows %v at %d", name, has, now, at)
	}
	if state := l.w.state(name); (state.Lag != 0) != l.refused[p] || !state.Connected {
		return fmt.Errorf("%s: %+v", name, state)
	}
	return nil
}

// arrive connects a proxy: with its dataplane, or with the one that an operator
// has made of it.
func (l *life) arrive(name string) {
	spec := dataplaneSpec("web", "backend", "admin")
	if name == "backend-1" {
		spec = dataplaneSpec("backend", "admin")
	}
	if r, ok := l.w.stored(name); ok && !byProxy(r) {
		spec = ""
	}
	l.proxies[name] = l.w.connectWith(l.w.token(""), name, spec, func(p *proxyClient) { p.hold = true })
}

// answer has a proxy answer what it was sent, one after the other, and compares
// each with what inspect said at that revision.
func (l *life) answer(name, refusing string) error {
	p := l.proxies[name]
	for p != nil {
		n := l.answered[p]
		messages := p.messages()
		if n == len(messages) {
			return nil
		}
		at, has := resource.Revision(messages[n].GetRevision()), p.holds()
		if !slices.ContainsFunc(l.said[name][at], has.equal) {
			return fmt.Errorf("%s: has %v as of %d, where inspect said %v", name, has, at, l.said[name][at])
		}
		l.answered[p], l.refused[p] = n+1, refusing != ""
		p.answer(messages[n].GetSequence(), refusing)
		refusing = ""
		synctest.Wait()
	}
	return nil
}

// inspect notes what inspect says of every dataplane now.
func (l *life) inspect() error {
	for _, name := range proxyNames {
		now, at, err := l.now(name)
		if err != nil {
			return err
		}
		if l.said[name] == nil {
			l.said[name] = map[resource.Revision][]entries{}
		}
		l.said[name][at] = append(l.said[name][at], now)
	}
	return nil
}

// now is what inspect says of a dataplane, nil when there is none.
func (l *life) now(name string) (all entries, at resource.Revision, err error) {
	err = l.w.matching.Read(func(m *policy.Matcher, asOf resource.Revision) error {
		at = asOf
		if _, there := l.w.stored(name); !there {
			return nil
		}
		a, err := answer.Dataplane(m, "default", name, "east", asOf)
		if err != nil {
			return err
		}
		all = entries{}
		for i := range a.Effective {
			if a.Effective[i].SupersededBy != nil {
				continue // shown, and not in effect
			}
			e, err := entryOf(&a.Effective[i])
			if err != nil {
				return err
			}
			all[targetText(e.GetTarget())] = e
		}
		return nil
	})
	return all, at, err
}

func (s step) take(l *life) {
	w := l.w
	switch s.what {
	case "policy":
		s.policy(l.t, w)
	case "remove policy":
		w.globalDelete(resource.Key{Kind: s.kind, Mesh: "default", Name: s.name})
	case "rules":
		rules := map[bool]string{true: "KongMesh", false: "Kuma2020"}[s.from == "*"]
		w.global(resourcetest.Build(l.t, "Mesh", "", "default", `{"matching": {"sourceDestination": "`+rules+`"}}`))
	case "mesh":
		// The mesh goes, and what stands in it, and comes back as it was first.
		key := resource.Key{Kind: "Mesh", Name: "default"}
		if _, there := w.replica.View().Get(key); there {
			w.globalDeleteMesh("default")
		} else {
			w.global(resourcetest.Build(l.t, "Mesh", "", "default", "{}"))
		}
	case "operator":
		// The dataplane itself changes under its proxy.
		w.operator("web-2", dataplaneSpec("web", "backend-"+s.value, "admin"))
	case "delete":
		if _, there := w.stored(s.proxy); there {
			w.operatorDelete(s.proxy)
		}
	case "leave":
		if p := l.proxies[s.proxy]; p != nil {
			p.leave()
			delete(l.proxies, s.proxy)
		}
	case "return":
		if p := l.proxies[s.proxy]; p != nil {
			defer p.leave() // the newer takes its place first
		}
		l.arrive(s.proxy)
		synctest.Wait()
	case "restart":
		w.stop()
		w.open()
		for name, p := range l.proxies {
			p.leave()
			l.arrive(name)
		}
		synctest.Wait()
	case "wait":
		<-time.After(DefaultGrace + time.Second)
	}
}

// policy writes one of a few policies.
func (s step) policy(t *testing.T, w *world) {
	if _, there := w.replica.View().Get(resource.Key{Kind: "Mesh", Name: "default"}); !there {
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
		caller := fmt.Sprintf(`{"kind": "MeshService", "name": %q}`, s.to)
		if s.to == resource.AnyValue {
			caller = `{"kind": "Mesh"}`
		}
		spec = fmt.Sprintf(`{"targetRef": {"kind": "Mesh"}, "from": [{"targetRef": %s, "action": %q}]}`, caller, action)
	}
	w.global(resourcetest.Build(t, s.kind, "default", s.name, spec))
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
