// Package raftlog compares the log stores of raft that this product could use:
// raft-boltdb, which it uses, and raft-wal. It has a module of its own, so that the
// product does not depend on the other. README.md says how to run it.
package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

type logStore interface {
	raft.LogStore
	Close() error
}

func openBolt(dir string) (logStore, error) {
	return boltdb.New(boltdb.Options{
		Path:        filepath.Join(dir, "raft.db"),
		BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}, // as the product does
	})
}

// segmentSize is that of raft-wal by default; smallSegments that of tests which copy
// them.
const segmentSize, smallSegments = 64 << 20, 256 << 10

func openWAL(dir string, vfs types.VFS, size int) (logStore, error) {
	return wal.Open(dir, wal.WithLogger(hclog.NewNullLogger()), wal.WithSegmentFiler(segment.NewFiler(dir, vfs)), wal.WithSegmentSize(size))
}

func stores() map[string]func(dir string) (logStore, error) {
	return map[string]func(dir string) (logStore, error){
		"bolt": openBolt,
		"wal":  func(dir string) (logStore, error) { return openWAL(dir, fs.New(), segmentSize) },
	}
}

func entries(from uint64, n, size int) []*raft.Log {
	out := make([]*raft.Log, n)
	for i := range out {
		data := bytes.Repeat([]byte{byte(from) + byte(i)}, size)
		out[i] = &raft.Log{Index: from + uint64(i), Term: 1, Type: raft.LogCommand, Data: data}
	}
	return out
}

// BenchmarkStore is one write of raft's: some entries, on the disk when it returns.
func BenchmarkStore(b *testing.B) {
	for _, name := range []string{"bolt", "wal"} {
		for _, c := range []struct{ n, size int }{{1, 1 << 10}, {64, 1 << 10}, {1, 1 << 20}, {1, 15 << 20}} {
			b.Run(fmt.Sprintf("%s/%dx%d", name, c.n, c.size), func(b *testing.B) {
				store, err := stores()[name](b.TempDir())
				require.NoError(b, err)
				next, kept := uint64(1), 256<<20/(c.n*c.size)
				b.SetBytes(int64(c.n * c.size))
				for i := 0; b.Loop(); i++ {
					require.NoError(b, store.StoreLogs(entries(next, c.n, c.size)))
					next += uint64(c.n)
					if i%kept == kept-1 { // as after a snapshot
						b.StopTimer()
						first, err := store.FirstIndex()
						require.NoError(b, err)
						require.NoError(b, store.DeleteRange(first, next-uint64(c.n)-1))
						b.StartTimer()
					}
				}
				b.StopTimer()
				require.NoError(b, store.Close())
			})
		}
	}
}

// BenchmarkOpen opens a log of 128 MiB and reads its first and last entry.
func BenchmarkOpen(b *testing.B) {
	for _, name := range []string{"bolt", "wal"} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			store, err := stores()[name](dir)
			require.NoError(b, err)
			for i := range 2048 {
				require.NoError(b, store.StoreLogs(entries(uint64(i*64+1), 64, 1<<10)))
			}
			require.NoError(b, store.Close())
			for b.Loop() {
				store, err := stores()[name](dir)
				require.NoError(b, err)
				var log raft.Log
				require.NoError(b, store.GetLog(1, &log))
				require.NoError(b, store.GetLog(2048*64, &log))
				require.NoError(b, store.Close())
			}
		})
	}
}

// volatile is a file system of which a loss of power keeps, of what was written since
// a file's last sync, any sectors and no others.
type volatile struct {
	types.VFS
	dir string

	mu    sync.Mutex
	files map[string]*volatileFile
	// failing says how many of the next syncs fail, full how many of the next writes
	// find no space for their second half.
	failing, full int
}

type volatileFile struct {
	types.WritableFile
	fs      *volatile
	name    string
	durable []byte
}

const sector = 512

func newVolatile(dir string) *volatile {
	return &volatile{VFS: fs.New(), dir: dir, files: map[string]*volatileFile{}}
}

func (v *volatile) opened(name string, f types.WritableFile) (types.WritableFile, error) {
	data, err := os.ReadFile(filepath.Join(v.dir, name))
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out := &volatileFile{WritableFile: f, fs: v, name: name, durable: data}
	v.files[name] = out
	return out, nil
}

func (v *volatile) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := v.VFS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	return v.opened(name, f)
}

func (v *volatile) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := v.VFS.OpenWriter(dir, name)
	if err != nil {
		return nil, err
	}
	return v.opened(name, f)
}

func (v *volatile) Delete(dir, name string) error {
	v.mu.Lock()
	delete(v.files, name)
	v.mu.Unlock()
	return v.VFS.Delete(dir, name)
}

var errIO = errors.New("input/output error")

func (f *volatileFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.failing > 0 {
		f.fs.failing--
		return errIO // what was written is visible, and may be lost
	}
	data, err := os.ReadFile(filepath.Join(f.fs.dir, f.name))
	f.durable = data
	return err
}

func (f *volatileFile) WriteAt(b []byte, at int64) (int, error) {
	f.fs.mu.Lock()
	full := f.fs.full > 0
	if full {
		f.fs.full--
	}
	f.fs.mu.Unlock()
	if !full {
		return f.WritableFile.WriteAt(b, at)
	}
	n, _ := f.WritableFile.WriteAt(b[:len(b)/2], at)
	return n, syscall.ENOSPC
}

// lose makes a copy of the directory as a loss of power leaves it.
func (v *volatile) lose(t *testing.T, to string, rng *rand.Rand) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	all, err := os.ReadDir(v.dir)
	require.NoError(t, err)
	for _, e := range all {
		data, err := os.ReadFile(filepath.Join(v.dir, e.Name()))
		require.NoError(t, err)
		if f := v.files[e.Name()]; f != nil {
			kept := append([]byte(nil), f.durable...)
			for at := 0; at+sector <= len(data) && at+sector <= len(kept); at += sector {
				if !bytes.Equal(kept[at:at+sector], data[at:at+sector]) && rng.IntN(2) == 0 {
					copy(kept[at:], data[at:at+sector])
				}
			}
			data = kept
		}
		require.NoError(t, os.WriteFile(filepath.Join(to, e.Name()), data, 0o600))
	}
}

// TestPowerLoss writes to raft-wal, loses power in the middle of a write and opens
// what is left: acknowledged entries are there as they were written, and nothing is
// after them but the write that was under way.
func TestPowerLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	lost := map[string]int{}
	for range 300 {
		dir, left := t.TempDir(), t.TempDir()
		v := newVolatile(dir)
		store, err := openWAL(dir, v, smallSegments)
		require.NoError(t, err)
		next := uint64(1)
		for range 1 + rng.IntN(8) {
			n := 1 + rng.IntN(64)
			require.NoError(t, store.StoreLogs(entries(next, n, 100+rng.IntN(4000))))
			next += uint64(n)
		}
		v.mu.Lock()
		v.failing = 1 // the power goes before this sync ends
		v.mu.Unlock()
		torn := store.StoreLogs(entries(next, 1+rng.IntN(64), 100+rng.IntN(4000)))
		require.Error(t, torn)
		v.lose(t, left, rng)
		_ = store.Close()
		after, err := openWAL(left, newVolatile(left), smallSegments)
		if err != nil {
			lost["does not open: "+err.Error()]++
			continue
		}
		last, err := after.LastIndex()
		require.NoError(t, err)
		for i := uint64(1); i < next; i++ {
			var log raft.Log
			if err := after.GetLog(i, &log); err != nil || log.Data[0] != byte(log.Data[len(log.Data)-1]) {
				lost["an acknowledged entry is not there"]++
				break
			}
		}
		switch {
		case last+1 < next:
			lost["it ends early"]++
		case last+1 > next:
			lost["the write under way is there"]++
		default:
			lost["the write under way is gone"]++
		}
		require.NoError(t, after.Close())
	}
	t.Log(lost)
}

// TestFailedSync: what the stores say and hold after a sync that failed.
func TestFailedSync(t *testing.T) {
	dir := t.TempDir()
	v := newVolatile(dir)
	store, err := openWAL(dir, v, smallSegments)
	require.NoError(t, err)
	require.NoError(t, store.StoreLogs(entries(1, 3, 100)))
	v.mu.Lock()
	v.failing = 1
	v.mu.Unlock()
	t.Log("the write:", store.StoreLogs(entries(4, 1, 100)))
	last, err := store.LastIndex()
	t.Log("it ends at", last, err)
	t.Log("the next write of the same entry:", store.StoreLogs(entries(4, 1, 100)))
	last, err = store.LastIndex()
	t.Log("it ends at", last, err)
	left := t.TempDir()
	v.lose(t, left, rand.New(rand.NewPCG(1, 1)))
	after, err := openWAL(left, newVolatile(left), smallSegments)
	require.NoError(t, err)
	last, err = after.LastIndex()
	t.Log("after a loss of power it ends at", last, err)
}

// TestNoSpace: what raft-wal says after a write that found no space, once there is
// some again. The product has such a write repeated.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	v := newVolatile(dir)
	store, err := openWAL(dir, v, smallSegments)
	require.NoError(t, err)
	require.NoError(t, store.StoreLogs(entries(1, 3, 100)))
	v.mu.Lock()
	v.full = 1
	v.mu.Unlock()
	t.Log("the write:", store.StoreLogs(entries(4, 1, 100)))
	t.Log("the same again:", store.StoreLogs(entries(4, 1, 100)))
}

// TestFlippedBit flips one bit of the data of an entry and counts which store notices.
func TestFlippedBit(t *testing.T) {
	for name, open := range stores() {
		dir := t.TempDir()
		store, err := open(dir)
		require.NoError(t, err)
		for i := range 20 {
			require.NoError(t, store.StoreLogs(entries(uint64(10*i+1), 10, 1000)))
		}
		require.NoError(t, store.Close())
		outcome := map[string]int{}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		for round := range 200 {
			damaged := t.TempDir()
			for _, file := range files {
				data, err := os.ReadFile(file)
				require.NoError(t, err)
				if at := bytes.Index(data, bytes.Repeat([]byte{byte(1 + round)}, 900)); at >= 0 {
					data[at+round] ^= 4
				}
				require.NoError(t, os.WriteFile(filepath.Join(damaged, filepath.Base(file)), data, 0o600))
			}
			again, err := open(damaged)
			if err != nil {
				outcome["does not open"]++
				continue
			}
			var log raft.Log
			switch err := again.GetLog(uint64(1+round), &log); {
			case err != nil:
				outcome["an error"]++
			case !bytes.Equal(log.Data, bytes.Repeat([]byte{byte(1 + round)}, 1000)):
				outcome["other data, no error"]++
			default:
				outcome["as it was"]++
			}
			require.NoError(t, again.Close())
		}
		t.Log(name, outcome)
	}
}
