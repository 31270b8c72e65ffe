package bench

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

const (
	// apart is by how many writes the earlier revisions are earlier.
	apart = 1_000
	// pairs is how often each question is asked in turn.
	pairs = 300
)

// BenchmarkPast reads what was beside what is, in turns: a resource, a list of 3,333, a
// dataplane's policies from its zone and through the global. 1,000 policies of 10,000 were
// changed in between.
func BenchmarkPast(b *testing.B) {
	system(b)
	g := newGlobal(b, many)
	z := newZone(b, g, g.grpcAddr)
	earlier := g.api.write(b, policy(0, 2), true)
	for i := 1; i < apart; i++ {
		g.api.write(b, policy(i, 1), i == apart-1)
	}
	at := func(rev uint64) *meridianv1.PointInTime {
		return &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: rev}}
	}
	key := &meridianv1.ResourceKey{Kind: kinds[0], Mesh: "default", Name: policy(0, 0).GetName()}
	get := func(ctx context.Context, when *meridianv1.PointInTime) (uint64, error) {
		r, err := g.api.Get(ctx, &meridianv1.GetRequest{Key: key, At: when})
		return r.GetAtRevision(), err
	}
	list := func(ctx context.Context, when *meridianv1.PointInTime) (uint64, error) {
		stream, err := g.api.List(ctx, &meridianv1.ListRequest{Kinds: kinds[:1], At: when})
		for n := 0; err == nil; {
			var part *meridianv1.ListResponse
			if part, err = stream.Recv(); errors.Is(err, io.EOF) && n == (many+2)/3 {
				return when.GetRevision(), nil
			}
			n += len(part.GetResources())
		}
		return 0, err
	}
	inspect := func(from *client) func(context.Context, *meridianv1.PointInTime) (uint64, error) {
		return func(ctx context.Context, when *meridianv1.PointInTime) (uint64, error) {
			r, err := from.inspect.Inspect(ctx, &meridianv1.InspectRequest{
				Mesh: "default", At: when,
				Question: &meridianv1.InspectRequest_Dataplane{Dataplane: &meridianv1.DataplaneQuestion{Name: "dataplane-007"}},
			})
			return r.GetAtRevision(), err
		}
	}
	for _, c := range []struct {
		name  string
		rev   uint64
		pairs int
		ask   func(context.Context, *meridianv1.PointInTime) (uint64, error)
	}{
		{"get", earlier, 10 * pairs, get},
		{"list", earlier, pairs / 3, list},
		{"zone", earlier, pairs, inspect(z.api)},
		{"global", earlier, pairs, inspect(g.api)},
		{"global-near", earlier + apart - 10, pairs, inspect(g.api)},
	} {
		b.Run(c.name, func(b *testing.B) {
			once := func(when *meridianv1.PointInTime) time.Duration {
				begun := time.Now()
				rev, err := c.ask(b.Context(), when)
				took := time.Since(begun)
				require.NoError(b, err)
				require.Equal(b, when.GetRevision(), rev)
				return took
			}
			var now, then, moved samples
			var first time.Duration
			for b.Loop() {
				once(nil)
				first = once(at(c.rev))
				for range c.pairs {
					now.add(once(nil))
					then.add(once(at(c.rev)))
				}
				for i := range uint64(pairs / 10) {
					moved.add(once(at(c.rev + i%10)))
				}
			}
			report(b, "now-p50-ms", now.p50())
			report(b, "then-p50-ms", then.p50())
			target(b, "then/now", then.p50()/now.p50(), 1.1)
			report(b, "then/now-p99", then.p99()/now.p99())
			report(b, "other-p50-ms", moved.p50())
			report(b, "first-ms", milliseconds(first))
		})
	}
}
