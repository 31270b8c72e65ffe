package question

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/livematch"
	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// earlierStates are two stores, as a zone has them, and what matches earlier states of them.
type earlierStates struct {
	compiler       *condition.Compiler
	replica, local *store.Store
	live           *livematch.Matching
	earlier        *livematch.Earlier
}

func newEarlierStates(t testing.TB, retention store.Retention, inMemory int) *earlierStates {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	options := store.DefaultOptions()
	options.History.MaxBatches = inMemory
	own := store.DefaultOptions()
	own.ExternalMeshes = true
	e := &earlierStates{compiler: compiler, replica: store.New(options), local: store.New(own)}
	require.NoError(t, e.replica.Apply(1, store.Txn{Retention: &retention}).Err)
	e.live = livematch.New(engines.NewMatcher(compiler), e.replica, e.local)
	e.earlier = livematch.NewEarlier(func() (*policy.Matcher, livematch.State) {
		return e.live.Fork(engines.Followers(compiler)...)
	})
	return e
}

func write(t require.TestingT, s *store.Store, ops ...store.Op) {
	rev := s.Revision() + 1
	require.NoError(t, s.Apply(rev, store.Txn{Time: time.Unix(int64(rev), 0), Ops: ops}).Err)
}

// state is an earlier state of the replica, with what is stored locally now.
func (e *earlierStates) state(t require.TestingT, rev resource.Revision) livematch.State {
	then, err := e.replica.StateAt(rev)
	require.NoError(t, err)
	var state livematch.State
	state.Of(e.replica, then, then.History())
	now := e.local.View()
	state.Of(e.local, now, now.Epoch().Random)
	return state
}

// asked asks everything that has a past, and returns the documents or errors.
func asked(from Source) map[string]string {
	answers := map[string]string{}
	for _, q := range []Question{
		Dataplane{"web"},
		Dataplane{"backend"},
		Connection{From: "web", To: "backend"},
		Policy{Kind: "Timeout", Name: "p1"},
		Policy{Kind: "TrafficPermission", Name: "p2"},
		Policy{Kind: "MeshUpstreamTimeout", Name: "p3"},
		Why{Dataplane: "web", Kind: "Timeout"},
		Route{"route"},
		Gateway{"gateway"},
	} {
		answered, err := Answer(q, from, At{Mesh: "m"})
		answers[fmt.Sprintf("%T %v", q, q)] = fmt.Sprintf("%d %s %v %v", answered.AsOf, answered.Document, answered.Shown, err)
	}
	return answers
}

// someOp is a write of one of few resources.
func someOp(t *rapid.T, tb testing.TB) store.Op {
	n := rapid.IntRange(0, 3).Draw(t, "name")
	value := rapid.IntRange(1, 5).Draw(t, "value")
	service := rapid.SampledFrom([]string{"*", "web", "backend"}).Draw(t, "service")
	ends := fmt.Sprintf(`"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":%q}}]`, service)
	all := []struct {
		kind resource.Kind
		spec string
	}{
		{"Timeout", fmt.Sprintf(`{%s,"conf":{"connectTimeout":"%ds"}}`, ends, value)},
		{"TrafficPermission", "{" + ends + "}"},
		{"MeshUpstreamTimeout", fmt.Sprintf(`{"targetRef":{"kind":"Mesh"},"to":[{"targetRef":{"kind":"Mesh"},"default":{"connectTimeout":"%ds"}}]}`, value)},
		{"MeshTrafficPermission", fmt.Sprintf(`{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"action":%q}}]}`,
			[]string{"Allow", "Deny"}[value%2])},
	}
	one := all[rapid.IntRange(0, len(all)-1).Draw(t, "kind")]
	name := fmt.Sprint("p", n)
	if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
		return store.Delete(resource.Key{Kind: one.kind, Mesh: "m", Name: name})
	}
	op := put(tb, one.kind, "m", name, one.spec)
	if resource.Permission(one.kind) && rapid.Bool().Draw(t, "tried") {
		meta := op.Resource.Meta()
		meta.Labels = map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}
		op.Resource = op.Resource.WithMeta(meta)
	}
	return op
}

func someDataplane(t *rapid.T, tb testing.TB) store.Op {
	name := rapid.SampledFrom([]string{"web", "backend"}).Draw(t, "dataplane")
	if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
		return store.Delete(policy.DataplaneKey("m", name))
	}
	return put(tb, resource.KindDataplane, "m", name, fmt.Sprintf(
		`{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":%q,"version":"%d"}}],"outbound":[{"port":81,"tags":{"kuma.io/service":"backend"}}]}}`,
		name, rapid.IntRange(0, 2).Draw(t, "version")))
}

// TestEarlierStatesAsThen: a matcher that is kept and brought from state to state, through
// writes, deletions and states that are told, answers as one that is made for the state.
func TestEarlierStatesAsThen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := newEarlierStates(t, store.DefaultRetention(), rapid.SampledFrom([]int{1, 4, 100}).Draw(rt, "inMemory"))
		write(rt, e.replica, put(t, "Mesh", "", "m", "{}"))
		for range rapid.IntRange(5, 20).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "step") {
			case 0, 1:
				write(rt, e.replica, someOp(rt, t))
			case 2:
				write(rt, e.local, someDataplane(rt, t))
			default:
				oldest := max(e.replica.OldestState(), 2)
				state := e.state(rt, resource.Revision(rapid.Uint64Range(uint64(oldest), uint64(e.replica.Revision())).Draw(rt, "revision")))
				if rapid.Bool().Draw(rt, "told") {
					told := &plan.Batch{}
					switch op := someOp(rt, t); {
					case op.Resource != nil:
						told.Written = append(told.Written, op.Resource)
					default:
						told.Deleted = append(told.Deleted, op.Key)
					}
					state.View = told.On(state.View)
					state.Otherwise, state.Without = told.Written, told.Deleted
				}
				fresh := engines.NewMatcher(e.compiler)
				fresh.Reset(state.View)
				want := asked(asOf{Fixed{fresh}, state.AsOf})
				require.Equal(rt, want, asked(e.earlier.At(context.Background(), state)))
				moved := e.earlier.Moved()
				require.Equal(rt, want, asked(e.earlier.At(context.Background(), state)))
				require.Equal(rt, moved, e.earlier.Moved(), "the second time it is there")
			}
		}
		require.LessOrEqual(rt, e.earlier.Kept(), 2)
	})
}

// asOf is a source with a revision.
type asOf struct {
	Fixed
	revision resource.Revision
}

func (a asOf) Read(ask func(m *policy.Matcher, asOf resource.Revision) error) error {
	return ask(a.Matcher, a.revision)
}

// TestEarlierStatesAtOnce: questions about more states than matchers are kept of wait for
// each other, and each has the answer of its own state.
func TestEarlierStatesAtOnce(t *testing.T) {
	e := newEarlierStates(t, store.DefaultRetention(), 1)
	write(t, e.replica, put(t, "Mesh", "", "m", "{}"))
	first := e.replica.Revision()
	const states = 6
	for i := range states {
		write(t, e.replica, put(t, "Timeout", "m", "p1", fmt.Sprintf(
			`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}],"conf":{"connectTimeout":"%ds"}}`, i+1)))
	}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(worker))) //nolint:gosec // not a secret
			for range 50 {
				i := resource.Revision(random.IntN(states)) //nolint:gosec // not negative
				source := e.earlier.At(context.Background(), e.state(t, first+1+i))
				err := source.Read(func(m *policy.Matcher, asOf resource.Revision) error {
					var stored *resource.Resource
					for range 3 {
						runtime.Gosched() // to who would bring it to another state meanwhile
						if err := m.Read(func(r *policy.Reading) error {
							stored, _ = r.View().Get(resource.Key{Kind: "Timeout", Mesh: "m", Name: "p1"})
							return nil
						}); err != nil {
							return err
						}
						if want := fmt.Sprintf(`"%ds"`, i+1); asOf != first+1+i || !strings.Contains(string(stored.Canonical()), want) {
							return fmt.Errorf("revision %d has %s, not %s", asOf, stored.Canonical(), want)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.LessOrEqual(t, e.earlier.Kept(), 2)
}

// TestEarlierStatesAfterAPanic: a question that cannot be answered for a defect leaves nothing
// behind that others would wait for, or be answered from.
func TestEarlierStatesAfterAPanic(t *testing.T) {
	e := newEarlierStates(t, store.DefaultRetention(), 1)
	write(t, e.replica, put(t, "Mesh", "", "m", "{}"))
	broken := true
	earlier := livematch.NewEarlier(func() (*policy.Matcher, livematch.State) {
		if broken {
			panic("broken")
		}
		return e.live.Fork(engines.Followers(e.compiler)...)
	})
	state := e.state(t, e.replica.Revision())
	for range 3 {
		require.Panics(t, func() { asked(earlier.At(context.Background(), state)) })
		require.Zero(t, earlier.Kept())
	}
	broken = false
	require.Panics(t, func() {
		_ = earlier.At(context.Background(), state).Read(func(*policy.Matcher, resource.Revision) error { panic("broken") })
	})
	require.Equal(t, asked(e.earlier.At(context.Background(), state)), asked(earlier.At(context.Background(), state)))
}

// TestEarlierStatesAreForgotten: a matcher of an earlier state is kept while it is used, and
// for a minute.
func TestEarlierStatesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEarlierStates(t, store.DefaultRetention(), 1)
		write(t, e.replica, put(t, "Mesh", "", "m", "{}"))
		state := e.state(t, e.replica.Revision())
		ask := func() { asked(e.earlier.At(context.Background(), state)) }
		ask()
		for range 3 {
			<-time.After(45 * time.Second)
			ask()
			require.Equal(t, 1, e.earlier.Kept())
			require.EqualValues(t, 1, e.earlier.Moved())
		}
		<-time.After(61 * time.Second)
		synctest.Wait()
		require.Zero(t, e.earlier.Kept())
		ask()
		require.EqualValues(t, 2, e.earlier.Moved())
	})
}

// BenchmarkEarlier asks about a dataplane among 10,000, with 10,000 policies: now, at one
// earlier revision again and again, at another each time, and the first time.
func BenchmarkEarlier(b *testing.B) {
	e := newEarlierStates(b, store.DefaultRetention(), 1)
	const many, services, writes = 10_000, 200, 1_000
	timeout := func(i, edition int) store.Op {
		return put(b, "Timeout", "m", fmt.Sprintf("p%d", i), fmt.Sprintf(
			`{"sources":[{"match":{"kuma.io/service":"service-%d","version":"v1"}}],"destinations":[{"match":{"kuma.io/service":"service-%d"}}],"conf":{"connectTimeout":"%ds"}}`,
			i%services, i/3%services, edition+1))
	}
	ops := []store.Op{put(b, "Mesh", "", "m", "{}")}
	var dataplanes []store.Op
	for i := range many {
		ops = append(ops, timeout(i, 0))
		dataplanes = append(dataplanes, put(b, resource.KindDataplane, "m", fmt.Sprintf("dp-%d", i), fmt.Sprintf(
			`{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"service-%d","version":"v1"}}],"outbound":[{"port":81,"tags":{"kuma.io/service":"service-%d"}}]}}`,
			i%services, (i+1)%services)))
	}
	write(b, e.replica, ops...)
	write(b, e.local, dataplanes...)
	first := e.replica.Revision()
	for i := range writes {
		write(b, e.replica, timeout(i, 1))
	}
	ask := func(from Source) {
		_, err := Answer(Dataplane{"dp-7"}, from, At{Mesh: "m"})
		require.NoError(b, err)
	}
	b.Run("now", func(b *testing.B) {
		for b.Loop() {
			ask(e.live)
		}
	})
	b.Run("same", func(b *testing.B) {
		for b.Loop() {
			ask(e.earlier.At(context.Background(), e.state(b, first)))
		}
	})
	b.Run("next", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			ask(e.earlier.At(context.Background(), e.state(b, first+resource.Revision(i%writes)))) //nolint:gosec // not negative
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			ask(livematch.NewEarlier(func() (*policy.Matcher, livematch.State) {
				return e.live.Fork(engines.Followers(e.compiler)...)
			}).At(context.Background(), e.state(b, first)))
		}
	})
	b.Run("anew", func(b *testing.B) {
		for b.Loop() {
			m := engines.NewMatcher(e.compiler)
			m.Reset(e.state(b, first).View)
			ask(Fixed{m})
		}
	})
}
