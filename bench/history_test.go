package bench

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	meridianv1 "meridian/api/meridian/v1"
)

// BenchmarkHistoryCost compares writes to a global that keeps the contents of old revisions
// with writes to one that keeps none, in turns within one run. With one server, which has
// less to do for a write than three, that is the larger part.
func BenchmarkHistoryCost(b *testing.B) {
	system(b)
	procfs(b)
	with := startGlobal(b, b.TempDir())
	without := startGlobal(b, b.TempDir(), "--history-bytes", "0")
	for _, clients := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			kept, none := &measured{global: with}, &measured{global: without}
			for b.Loop() {
				for i := range 2 * rounds { // in another order each time
					first, second := kept, none
					if i%2 == 1 {
						first, second = second, first
					}
					first.write(b, clients)
					second.write(b, clients)
				}
			}
			report(b, "writes/s", kept.rate())
			report(b, "without-writes/s", none.rate())
			target(b, "cost-%", 100*(1-kept.rate()/none.rate()), 10)
			report(b, "cpu-µs/write", kept.processorEach())
			target(b, "cpu-cost-%", 100*(kept.processorEach()/none.processorEach()-1), 10)
		})
	}
}

// measured is a global and the writes to it.
type measured struct {
	*global
	turns
	used time.Duration
}

func (m *measured) write(b *testing.B, clients int) {
	b.Helper()
	before := m.processor(b)
	m.run(b, clients, func(i int) func(context.Context) error { return ourWrite(b, m.global, i) })
	m.used += m.processor(b) - before
}

// processorEach is the processor time of a write, in microseconds.
func (m *measured) processorEach() float64 {
	return float64(m.used.Microseconds()) / float64(len(m.times))
}

const (
	// heavy is the size of a write that fills the history soon, in bytes.
	heavy = 16 << 10
	// filling is how many of them are written in each of the three parts: more than the
	// history, the log and its snapshots hold together.
	filling = 20_000
	// settling is how long a global has to take its snapshots after them.
	settling = 40 * time.Second
)

// BenchmarkHistoryBounds writes until everything that a global keeps of the past is full,
// by the bounds that it has by default, and as much twice again: neither its disk nor its
// memory grows any more.
func BenchmarkHistoryBounds(b *testing.B) {
	system(b)
	procfs(b)
	g := startGlobal(b, b.TempDir())
	var disk, memory [3]float64
	for b.Loop() {
		for part := range disk {
			disk[part], memory[part] = g.fill(b)
		}
	}
	target(b, "history-MB", g.metric(b, "meridian_history_bytes")/1e6, float64(64<<20)/1e6)
	report(b, "revisions", g.metric(b, "meridian_history_revisions"))
	target(b, "snapshot/history", g.snapshot(b)/g.metric(b, "meridian_history_bytes"), 1.6)
	for part, name := range []string{"first", "second", "third"} {
		report(b, name+"-disk-MB", disk[part])
		report(b, name+"-MB", memory[part])
	}
	target(b, "disk-growth", disk[2]/disk[1], 1.1)
	target(b, "growth", memory[2]/memory[1], 1.1)
}

// fill writes a part, and returns the most that the data directory held meanwhile and the
// memory of the global that is not of files when its snapshots are taken, both in MB.
func (g *global) fill(b *testing.B) (disk, memory float64) {
	b.Helper()
	spec := func() []byte {
		return fmt.Appendf(nil, `{"logging":{"backends":[{"name":"%0*d","type":"file","conf":{"path":"/dev/stdout"}}]}}`, heavy, editions.Add(1))
	}
	var left atomic.Int64
	left.Store(filling)
	group, ctx := errgroup.WithContext(b.Context())
	for i := range writers {
		name := fmt.Sprintf("heavy-%d", i)
		g.api.apply(b, []*meridianv1.Resource{{Kind: "Mesh", Name: name, Spec: spec()}})
		group.Go(func() error {
			for left.Add(-1) >= 0 {
				if _, err := g.api.put(ctx, &meridianv1.Resource{Kind: "Mesh", Name: name, Spec: spec()}, false); err != nil {
					return err
				}
			}
			return nil
		})
	}
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	until := make(<-chan time.Time)
	for {
		select {
		case err := <-done:
			require.NoError(b, err)
			until = time.After(settling)
		case <-until:
			return disk, g.memory(b, "RssAnon")
		case <-tick.C:
			total, _ := sizes(g.dir)
			disk = max(disk, total/1e6)
		}
	}
}

// sizes returns what a data directory has in all, and in its largest snapshot, in bytes.
// Files come and go meanwhile.
func sizes(dir string) (total, snapshot float64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // it has gone
		}
		if info, err := d.Info(); err == nil {
			total += float64(info.Size())
			if strings.Contains(path, "/snapshots/") {
				snapshot = max(snapshot, float64(info.Size()))
			}
		}
		return nil
	})
	return total, snapshot
}

// snapshot is the size of the largest snapshot, in bytes.
func (g *global) snapshot(b *testing.B) float64 {
	b.Helper()
	_, size := sizes(g.dir)
	require.NotZero(b, size, "no snapshot was taken")
	return size
}

// metric returns the value of a metric without labels.
func (g *global) metric(b *testing.B, name string) float64 {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+g.ready(b).HTTP+"/metrics", nil)
	require.NoError(b, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(b, err)
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			number, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			return number
		}
	}
	require.Fail(b, "no such metric", name)
	return 0
}
