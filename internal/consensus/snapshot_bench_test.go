package consensus

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// manyResources is the size of state that the figures are about.
const manyResources = 100_000

// openMany returns a node that holds many resources of 256 bytes, given to it by
// a restore, and the backup that they came from.
func openMany(b *testing.B, cfg Config) (*Node, []byte) {
	b.Helper()
	st := store.New(store.DefaultOptions())
	txn := store.Txn{}
	for i := range manyResources {
		txn.Ops = append(txn.Ops, store.Put(resource.New(resource.Meta{Key: key(fmt.Sprintf("r-%06d", i))}, nil,
			fmt.Appendf(nil, `{"data":"%d%s"}`, i, bytes.Repeat([]byte("x"), 240)))))
	}
	require.NoError(b, st.Apply(1, txn).Err)
	var file bytes.Buffer
	require.NoError(b, st.View().WriteBackup(&file, nil))
	n, _ := open(b, cfg)
	_, err := n.restorer.Restore(b.Context(), bytes.NewReader(file.Bytes()), false)
	require.NoError(b, err)
	return n, file.Bytes()
}

// BenchmarkSnapshotPause100k measures what a snapshot of 100,000 resources costs
// concurrent writes. docs/figures.md has the target: the state machine is held up
// for at most 1 ms.
func BenchmarkSnapshotPause100k(b *testing.B) {
	n, _ := openMany(b, testConfig(b.TempDir()))
	var held, alone, during []time.Duration
	write := func(into *[]time.Duration) {
		began := time.Now()
		propose(b, n, put("k", len(*into)))
		*into = append(*into, time.Since(began))
	}
	for b.Loop() {
		began := time.Now()
		_, err := fsm{st: n.st}.Snapshot()
		held = append(held, time.Since(began))
		require.NoError(b, err)
		for range 300 {
			write(&alone)
		}
		done := make(chan error)
		go func() { done <- n.Snapshot() }()
		for running := true; running; {
			select {
			case err := <-done:
				require.NoError(b, err)
				running = false
			default:
				write(&during)
			}
		}
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(slices.Max(held)), "held-max-ms")
	b.ReportMetric(ms(percentile(alone, 50)), "write-p50-ms")
	b.ReportMetric(ms(percentile(alone, 99)), "write-p99-ms")
	b.ReportMetric(ms(percentile(during, 50)), "write-during-p50-ms")
	b.ReportMetric(ms(percentile(during, 99)), "write-during-p99-ms")
}

func percentile(times []time.Duration, p int) time.Duration {
	slices.Sort(times)
	return times[(len(times)-1)*p/100]
}

// BenchmarkReopen100k measures a start on a snapshot of 100,000 resources, until
// the server serves.
func BenchmarkReopen100k(b *testing.B) {
	cfg := testConfig(b.TempDir())
	n, _ := openMany(b, cfg)
	require.NoError(b, n.Snapshot())
	require.NoError(b, n.Close())
	for b.Loop() {
		n, _ := open(b, cfg)
		require.NoError(b, n.Close())
	}
}

// BenchmarkBackup100k measures saving and restoring 100,000 resources.
func BenchmarkBackup100k(b *testing.B) {
	n, file := openMany(b, testConfig(b.TempDir()))
	b.Run("save", func(b *testing.B) {
		b.SetBytes(int64(len(file)))
		for b.Loop() {
			var out bytes.Buffer
			_, err := n.SaveBackup(context.Background(), &out, false)
			require.NoError(b, err)
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.SetBytes(int64(len(file)))
		for b.Loop() {
			_, err := n.restorer.Restore(context.Background(), bytes.NewReader(file), false)
			require.NoError(b, err)
		}
	})
}
