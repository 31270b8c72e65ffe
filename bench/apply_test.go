package bench

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

// writes is how many changes one round applies to each global: enough for the
// 99th percentile to be twenty of them.
const writes = 2000

// BenchmarkApplyToZone follows one change at a time from the request to the
// zone, where it is seen by a client that watches the zone's own API. A zone
// shows nothing that is not on its disk yet. The same is done with a tenth of
// the policies, in turn, to tell what the number of policies costs.
func BenchmarkApplyToZone(b *testing.B) {
	system(b)
	large, small := newPipeline(b, many), newPipeline(b, few)
	for b.Loop() {
		for range writes {
			large.change(b)
			small.change(b)
		}
	}
	target(b, "visible-p50-ms", large.visible.p50(), 5)
	target(b, "visible-p99-ms", large.visible.p99(), 20)
	report(b, "apply-p50-ms", large.applied.p50())
	report(b, "apply-p99-ms", large.applied.p99())
	target(b, "total-p50-ms", large.total.p50(), 5)
	target(b, "total-p99-ms", large.total.p99(), 20)
	report(b, "total-p50-10k/1k", large.total.p50()/small.total.p50())
	disk := syncs(b, large.global.dir)
	report(b, "fsync-p50-ms", disk.p50())
	report(b, "fsync-p99-ms", disk.p99())
	report(b, "total-p50/fsync", large.total.p50()/disk.p50())
}

// syncs measures the disk alone: how long a record of a policy's size takes to
// be durable there.
func syncs(b *testing.B, dir string) samples {
	b.Helper()
	file, err := os.CreateTemp(dir, "fsync-*")
	require.NoError(b, err)
	defer func() { _ = file.Close() }()
	var times samples
	record := make([]byte, 512)
	for range writes / 4 {
		began := time.Now()
		_, err := file.Write(record)
		require.NoError(b, err)
		require.NoError(b, file.Sync())
		times.add(time.Since(began))
	}
	return times
}

// pipeline is a global, its zone, and a client that watches the zone.
type pipeline struct {
	global  *global
	size    int
	edition int
	events  <-chan event

	// applied is from the request to its acknowledgement, visible from there to
	// the zone, total both together.
	applied, visible, total samples
}

// event is a change as seen in the zone.
type event struct {
	revision uint64
	at       time.Time
}

func newPipeline(b *testing.B, size int) *pipeline {
	b.Helper()
	g := newGlobal(b, size)
	z := newZone(b, g, g.grpcAddr)
	z.api.holds(b, size)
	return &pipeline{global: g, size: size, edition: 1, events: z.watch(b)}
}

// watch follows the zone's policies until the benchmark ends.
func (z *zone) watch(b *testing.B) <-chan event {
	b.Helper()
	info, err := z.api.Info(b.Context(), &meridianv1.InfoRequest{})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	from := info.GetRevision()
	stream, err := z.api.Watch(ctx, &meridianv1.WatchRequest{Kinds: kinds, FromRevision: &from})
	require.NoError(b, err)
	events := make(chan event)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(events)
		for {
			response, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case events <- event{response.GetRevision(), time.Now()}:
			case <-ctx.Done():
				return
			}
		}
	})
	b.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	return events
}

// change writes one policy and waits until the zone shows it.
func (p *pipeline) change(b *testing.B) {
	b.Helper()
	p.edition++
	changed := policy(p.edition*7919%p.size, p.edition) // 7919 is prime: every policy in turn
	requested := time.Now()
	revision := p.global.api.write(b, changed, false)
	acknowledged := time.Now()
	for {
		select {
		case e, ok := <-p.events:
			require.True(b, ok, "the zone ended the watch")
			if e.revision < revision {
				continue
			}
			p.applied.add(acknowledged.Sub(requested))
			p.visible.add(e.at.Sub(acknowledged)) // the zone may have been first
			p.total.add(e.at.Sub(requested))
			return
		case <-time.After(patience):
			require.Fail(b, "timeout", "revision %d does not reach the zone", revision)
		}
	}
}
