package store_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

const manyResources = 100_000

// filled returns a store of 100,000 resources of 256 bytes and the next
// revision.
func filled(b *testing.B) (*store.Store, resource.Revision) {
	b.Helper()
	snap := &store.Snapshot{Revision: 1, Resources: []*resource.Resource{mesh("default")}}
	for i := range manyResources {
		snap.Resources = append(snap.Resources, sized(i, 0).WithMeta(resource.Meta{Key: sized(i, 0).Key(), Version: 1, Revision: 1}))
	}
	s := store.New(store.DefaultOptions())
	require.NoError(b, s.Reset(snap))
	return s, 2
}

func sized(i, content int) *resource.Resource {
	spec := fmt.Appendf(nil, `{"n":%d,"pad":"%s"}`, content, bytes.Repeat([]byte("x"), 240))
	return resource.New(resource.Meta{Key: retryKey("default", fmt.Sprintf("policy-%06d", i))}, nil, spec)
}

// Target: at most 15 µs.
func BenchmarkApply(b *testing.B) {
	s, rev := filled(b)
	txns := make([]store.Txn, 4096)
	for i := range txns {
		txns[i] = puts(sized(i*24391%manyResources, i+1))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i > 0 && i%len(txns) == 0 {
			b.StopTimer()
			for j := range txns {
				txns[j] = puts(sized(j*24391%manyResources, i+j+1))
			}
			b.StartTimer()
		}
		if result := s.Apply(rev, txns[i%len(txns)]); result.Err != nil {
			b.Fatal(result.Err)
		}
		rev++
	}
}

func BenchmarkView(b *testing.B) {
	s, _ := filled(b)
	b.ReportAllocs()
	for b.Loop() {
		if s.View() == nil {
			b.Fatal("no view")
		}
	}
}

func BenchmarkViewAt(b *testing.B) {
	s, rev := filled(b)
	for i := range 1000 {
		s.Apply(rev+resource.Revision(i), puts(sized(i, 1)))
	}
	for b.Loop() {
		if _, err := s.ViewAt(500); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList100k(b *testing.B) {
	s, _ := filled(b)
	v := s.View()
	for b.Loop() {
		n := 0
		for range v.List("Retry", "default") {
			n++
		}
		if n != manyResources {
			b.Fatal(n)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s, _ := filled(b)
	v, key := s.View(), sized(77_777, 0).Key()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := v.Get(key); !ok {
			b.Fatal("missing")
		}
	}
}

func BenchmarkBuckets(b *testing.B) {
	s, _ := filled(b)
	v := s.View()
	for b.Loop() {
		_ = v.Buckets(nil)
	}
}

// No writer waits for this: what a snapshot costs the writer is BenchmarkView.
func BenchmarkWriteSnapshot100k(b *testing.B) {
	s, _ := filled(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.WriteSnapshot(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRestore100k(b *testing.B) {
	s, _ := filled(b)
	var buf bytes.Buffer
	require.NoError(b, s.WriteSnapshot(&buf))
	b.SetBytes(int64(buf.Len()))
	for b.Loop() {
		snap, err := store.ReadSnapshot(bytes.NewReader(buf.Bytes()))
		if err != nil {
			b.Fatal(err)
		}
		if err := store.New(store.DefaultOptions()).Reset(snap); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCommand(b *testing.B) {
	txn := puts(sized(1, 1))
	txn.RequestID, txn.Time = "0123456789abcdef", clock(1)
	b.ReportAllocs()
	for b.Loop() {
		data, err := store.EncodeCommand(txn)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := store.DecodeCommand(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkApplyHistory is what keeping contents adds to a write, in time and, as
// bytes/revision, in space.
func BenchmarkApplyHistory(b *testing.B) {
	for name, retention := range map[string]store.Retention{"off": {}, "on": store.DefaultRetention()} {
		b.Run(name, func(b *testing.B) {
			s, rev := filled(b)
			s.Apply(rev, keeping(retention))
			rev++
			b.ReportAllocs()
			for b.Loop() {
				s.Apply(rev, puts(sized(int(rev)%manyResources, int(rev))))
				rev++
			}
			if batches, bytes := s.PastSize(); batches > 0 {
				b.ReportMetric(float64(bytes)/float64(batches), "bytes/revision")
			}
		})
	}
}

// BenchmarkGetPast reads a resource as it was 10,000 revisions ago; BenchmarkGet as it is.
func BenchmarkGetPast(b *testing.B) {
	s, rev := filled(b)
	s.Apply(rev, keeping(store.DefaultRetention()))
	at := rev
	for i := range resource.Revision(10_000) {
		s.Apply(rev+1+i, puts(sized(int(i), 1)))
	}
	key := sized(77, 0).Key()
	for b.Loop() {
		past, err := s.StateAt(at)
		if err != nil {
			b.Fatal(err)
		}
		if _, ok := past.Get(key); !ok {
			b.Fatal("missing")
		}
	}
}

// BenchmarkWriteSnapshotHistory is what a snapshot takes of the contents of 64 MiB of old
// revisions, one resource each, besides 1,000 resources.
func BenchmarkWriteSnapshotHistory(b *testing.B) {
	for name, retention := range map[string]store.Retention{"off": {}, "on": store.DefaultRetention()} {
		b.Run(name, func(b *testing.B) {
			options := store.DefaultOptions()
			options.History.MaxBatches = 1
			s := store.New(options)
			require.NoError(b, s.Apply(1, keeping(retention)).Err)
			require.NoError(b, s.Apply(2, puts(mesh("default"))).Err)
			for rev := resource.Revision(3); rev < 100_000; rev++ {
				s.Apply(rev, puts(sized(int(rev)%1000, int(rev))))
			}
			batches, _ := s.PastSize()
			b.ReportAllocs()
			for b.Loop() {
				if err := s.WriteSnapshot(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(batches), "revisions")
		})
	}
}
