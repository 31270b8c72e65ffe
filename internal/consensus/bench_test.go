package consensus

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// BenchmarkPropose measures acknowledged writes of 1 KiB on a real disk, one
// resource each, by a number of callers who wait for one another's disk writes.
func BenchmarkPropose(b *testing.B) {
	for _, clients := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			n, _ := open(b, testConfig(b.TempDir()))
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if _, err := n.proposer.Propose(context.Background(), store.Txn{Ops: []store.Op{kilobyte(i)}}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}

func kilobyte(i int64) store.Op {
	data := string(bytes.Repeat([]byte("A"), 1000))
	name := fmt.Sprintf("k%d", i%1000)
	return store.Put(resource.New(
		resource.Meta{Key: key(name), Labels: map[string]string{"i": fmt.Sprint(i)}},
		&resource.Secret{Data: data}, fmt.Appendf(nil, `{"data":%q}`, data),
	))
}

// BenchmarkRead measures a linearizable read point.
func BenchmarkRead(b *testing.B) {
	n, _ := open(b, testConfig(b.TempDir()))
	fill(b, n, 1, 1)
	for b.Loop() {
		_, err := n.reader.Read(context.Background())
		require.NoError(b, err)
	}
}

// BenchmarkReopen measures a restart with a log of 20,000 entries of 1 KiB to
// verify and replay.
func BenchmarkReopen(b *testing.B) {
	cfg := testConfig(b.TempDir())
	cfg.Snapshots.Threshold = 1 << 30
	n, _ := open(b, cfg)
	var wg sync.WaitGroup
	for c := range int64(64) {
		wg.Go(func() {
			for i := c; i < 20_000; i += 64 {
				if _, err := n.proposer.Propose(context.Background(), store.Txn{Ops: []store.Op{kilobyte(i)}}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(b, n.Close())
	for b.Loop() {
		n, _ := open(b, cfg)
		require.NoError(b, n.Close())
	}
}
