package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/raftnet/raftnettest"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// TestRestartKeepsEverything covers §7.1 and §7.2 for one server.
func TestRestartKeepsEverything(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n, st := open(t, cfg)
	epoch := st.View().Epoch()
	require.Equal(t, n.ClusterID(), epoch.ClusterID)
	require.EqualValues(t, 1, epoch.Incarnation)

	first := propose(t, n, put("a", 1), put("b", 1))
	second := propose(t, n, put("a", 2))
	require.Greater(t, second.Revision, first.Revision)
	require.EqualValues(t, n.Status().Last, second.Revision, "the revision is the raft index")
	before := st.View()
	require.NoError(t, n.Close())

	n, st = open(t, cfg)
	view := st.View()
	require.Equal(t, before.DigestOf(nil), view.DigestOf(nil))
	require.Equal(t, epoch, view.Epoch())
	value, version := stored(t, view, "a")
	require.Equal(t, 2, value)
	require.EqualValues(t, 2, version)
	res, ok := view.Get(key("a"))
	require.True(t, ok)
	require.Equal(t, second.Revision, res.Meta().Revision)
	require.Greater(t, propose(t, n, put("a", 3)).Revision, second.Revision)
}

func TestRefusalsAreErrorsAndChangeNothing(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	_, err := n.proposer.Propose(context.Background(), store.Txn{
		Ops:           []store.Op{put("a", 1), put("b", 1)},
		Preconditions: []store.Precondition{{Key: key("b"), Version: 4}},
	})
	var conflict *store.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, 0, st.View().Len())
}

// TestReadSeesEveryAcknowledgedWrite: a view taken after Read holds what was
// acknowledged before it.
func TestReadSeesEveryAcknowledgedWrite(t *testing.T) {
	n, st := open(t, testConfig(t.TempDir()))
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for w := range 4 {
		wg.Go(func() {
			for i := 1; i <= 50; i++ {
				result, err := n.proposer.Propose(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprint("w", w), i)}})
				if err != nil {
					errs <- err
					return
				}
				rev, err := n.reader.Read(context.Background())
				if err != nil || rev < result.Revision || st.View().Revision() < rev {
					errs <- errors.Join(err, fmt.Errorf("read at %d after a write at %d", rev, result.Revision))
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
	for w := range 4 {
		value, _ := stored(t, st.View(), fmt.Sprint("w", w))
		require.Equal(t, 50, value)
	}
}

func TestEndedContexts(t *testing.T) {
	n, _ := open(t, testConfig(t.TempDir()))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := n.proposer.Propose(ctx, store.Txn{Ops: []store.Op{put("a", 1)}})
	require.ErrorIs(t, err, ErrUnavailable, "it was not sent")
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, n.Close())
	_, err = n.proposer.Propose(context.Background(), store.Txn{})
	require.ErrorIs(t, err, ErrClosed)
	_, err = n.reader.Read(context.Background())
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, n.Snapshot(), ErrClosed)
	require.NoError(t, n.Close())
}

// TestCloseAnswersWhatIsUnderWay: every proposal gets an answer, and what was
// acknowledged is there afterwards.
func TestCloseAnswersWhatIsUnderWay(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n, _ := open(t, cfg)
	const writers = 16
	acked := make([]int, writers)
	var wg sync.WaitGroup
	started := make(chan struct{}, writers)
	for w := range writers {
		wg.Go(func() {
			for i := 1; ; i++ {
				_, err := n.proposer.Propose(context.Background(), store.Txn{Ops: []store.Op{put(fmt.Sprint("w", w), i)}})
				if err != nil {
					return
				}
				if acked[w] = i; i == 1 {
					started <- struct{}{}
				}
			}
		})
	}
	for range writers {
		<-started
	}
	require.NoError(t, n.Close())
	wg.Wait()
	_, st := open(t, cfg)
	for w := range writers {
		value, _ := stored(t, st.View(), fmt.Sprint("w", w))
		require.Equal(t, acked[w], value, "nothing was in doubt at a clean stop")
	}
}

func TestLeaderEvents(t *testing.T) {
	cfg := testConfig(t.TempDir())
	var mu sync.Mutex
	var seen []bool
	cfg.Events.LeaderChanged = func(leading bool) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, leading)
	}
	n, _ := open(t, cfg)
	require.True(t, n.IsLeader())
	id, _ := n.Leader()
	require.Equal(t, "one", id)
	require.Equal(t, "leader", n.Status().State)
	require.NoError(t, n.Close())
	require.Equal(t, []bool{true, false}, seen)
}

// cutConfig takes a snapshot only when told to, and keeps as little of the log
// as it may.
func cutConfig(dir string) Config {
	cfg := testConfig(dir)
	cfg.Snapshots.TrailingLogs = 1
	cfg.Snapshots.Interval = time.Hour
	return cfg
}

func snapshotDirs(t *testing.T, cfg Config) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(cfg.DataDir, "raft", "snapshots", "*-*-*"))
	require.NoError(t, err)
	return dirs // oldest first, while term and index have the same number of digits
}

func TestSnapshotAndTruncation(t *testing.T) {
	cfg := cutConfig(t.TempDir())
	n, st := open(t, cfg)
	last := 0
	for range 5 {
		last = fill(t, n, last+1, 30)
		require.NoError(t, n.Snapshot())
	}
	require.NoError(t, n.Snapshot(), "nothing new to write is no error")
	require.Len(t, snapshotDirs(t, cfg), 3)
	first, _, err := n.log.Bounds()
	require.NoError(t, err)
	require.Greater(t, first, uint64(60), "the log is cut")
	last = fill(t, n, last+1, 5)
	want := st.View()
	require.NoError(t, n.Close())

	// What a crash in the middle of a snapshot leaves is removed.
	stray := filepath.Join(cfg.DataDir, "raft", "snapshots", "9-9-9.tmp")
	require.NoError(t, os.Mkdir(stray, 0o700))
	_, st = open(t, cfg)
	require.NoDirExists(t, stray)
	value, version := stored(t, st.View(), "k")
	require.Equal(t, last, value)
	require.EqualValues(t, last, version)
	require.Equal(t, want.DigestOf(nil), st.View().DigestOf(nil))
}

func damageFile(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[len(data)/2] ^= 4
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// TestDamagedSnapshots: one damaged snapshot costs nothing, since the log goes
// back to the oldest; when all are damaged the server says so.
func TestDamagedSnapshots(t *testing.T) {
	cfg := cutConfig(t.TempDir())
	n, st := open(t, cfg)
	last := 0
	for range 3 {
		last = fill(t, n, last+1, 100)
		require.NoError(t, n.Snapshot())
	}
	want := st.View().DigestOf(nil)
	require.NoError(t, n.Close())

	dirs := snapshotDirs(t, cfg)
	require.Len(t, dirs, 3)
	for i := 2; i > 0; i-- {
		damageFile(t, filepath.Join(dirs[i], "state.bin"))
		n, st := open(t, cfg)
		value, _ := stored(t, st.View(), "k")
		require.Equal(t, last, value)
		require.Equal(t, want, st.View().DigestOf(nil))
		require.NoError(t, n.Close())
	}
	damageFile(t, filepath.Join(dirs[0], "state.bin"))
	_, err := Open(context.Background(), cfg, store.New(store.DefaultOptions()))
	require.ErrorIs(t, err, raftlog.ErrCorrupt)
	require.ErrorContains(t, err, "snapshots")
	require.DirExists(t, dirs[0], "evidence is kept")
}

// TestSnapshotWithoutItsLog: an older snapshot is not used when the log does
// not continue it, because acknowledged writes would be missing.
func TestSnapshotWithoutItsLog(t *testing.T) {
	cfg := cutConfig(t.TempDir())
	n, _ := open(t, cfg)
	last := fill(t, n, 1, 20)
	require.NoError(t, n.Snapshot())
	fill(t, n, last+1, 20)
	require.NoError(t, n.Snapshot())
	require.NoError(t, n.Close())
	log, err := raftlog.OpenLog(n.dir, nil)
	require.NoError(t, err)
	_, end, err := log.Bounds()
	require.NoError(t, err)
	require.NoError(t, log.DeleteRange(1, end-1))
	require.NoError(t, log.Close())

	damageFile(t, filepath.Join(snapshotDirs(t, cfg)[1], "state.bin"))
	_, err = Open(context.Background(), cfg, store.New(store.DefaultOptions()))
	require.ErrorIs(t, err, raftlog.ErrCorrupt)
}

func TestLostLog(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n, _ := open(t, cfg)
	fill(t, n, 1, 3)
	require.NoError(t, n.Snapshot())
	require.NoError(t, n.Close())
	require.NoError(t, os.Remove(n.log.Path()))
	_, err := Open(context.Background(), cfg, store.New(store.DefaultOptions()))
	require.ErrorIs(t, err, raftlog.ErrCorrupt, "an empty log is not a new cluster")
}

// TestHalfBegun: a crash between any two steps of the first start is no
// obstacle to the next.
func TestHalfBegun(t *testing.T) {
	steps := map[string]func(*Node){
		"identity": func(*Node) {},
		"log file": func(n *Node) { requireLog(t, n) },
		"half a log file": func(n *Node) {
			require.NoError(t, os.MkdirAll(filepath.Join(n.cfg.DataDir, "raft"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(n.cfg.DataDir, "raft", "log.db"), make([]byte, 5000), 0o600))
		},
		"term": func(n *Node) {
			requireLog(t, n)
			require.NoError(t, n.log.SetCurrentTerm(1))
		},
		"first entry": func(n *Node) {
			requireLog(t, n)
			snapshots, err := raftlog.OpenSnapshots(n.dir, n.log, n.cfg.Snapshots.Retain, raftnet.NewLogger(n.cfg.Logger))
			require.NoError(t, err)
			require.NoError(t, n.bootstrap(snapshots))
			require.NoError(t, n.dir.Change(func(id *raftlog.Identity) { id.Bootstrapped = false }))
		},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			var err error
			n := newNode(cfg, nil)
			n.dir, err = openDataDir(cfg)
			require.NoError(t, err)
			n.transport = raftnet.Loopback(cfg.NodeID)
			require.NoError(t, n.dir.Claim(cfg.owner()))
			n.id = n.dir.ID().ServerID()
			step(n)
			if n.log != nil {
				require.NoError(t, n.log.Close())
			}
			n.dir.Close()

			started, _ := open(t, cfg)
			require.Equal(t, n.dir.ID().ClusterID, started.ClusterID())
			propose(t, started, put("a", 1))
		})
	}
}

func requireLog(t *testing.T, n *Node) {
	var err error
	n.log, err = raftlog.OpenLog(n.dir, nil)
	require.NoError(t, err)
}

// TestDeterminism: the same log makes the same state, on every server, with or
// without a snapshot in between.
func TestDeterminism(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 30).Draw(t, "entries")
		cut := rapid.IntRange(0, count-1).Draw(t, "cut")
		a, b := store.New(store.DefaultOptions()), store.New(store.DefaultOptions())
		begin, err := store.EncodeCommand(store.Txn{SetEpoch: &store.Epoch{ClusterID: "c", Incarnation: 1}})
		require.NoError(t, err)
		require.Equal(t, fsm{st: a}.Apply(&raft.Log{Index: 3, Data: begin}), fsm{st: b}.Apply(&raft.Log{Index: 3, Data: begin}))
		for i := range count {
			txn := store.Txn{
				RequestID: rapid.SampledFrom([]string{"", "r1", "r2", "r3"}).Draw(t, "request"),
				Time:      time.Unix(int64(rapid.IntRange(0, 100).Draw(t, "time")), 0),
			}
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 3, rapid.ID).Draw(t, "names") {
				if rapid.Bool().Draw(t, "delete") {
					txn.Ops = append(txn.Ops, store.Delete(key(name)))
				} else {
					txn.Ops = append(txn.Ops, put(name, rapid.IntRange(0, 9).Draw(t, "value")))
				}
			}
			if rapid.Bool().Draw(t, "guarded") {
				txn.Preconditions = []store.Precondition{{Key: key("a"), Version: rapid.Uint64Range(0, 3).Draw(t, "version")}}
			}
			command, err := store.EncodeCommand(txn)
			require.NoError(t, err)
			entry := &raft.Log{Index: uint64(2*i + 5), Data: command}
			require.Equal(t, fsm{st: a}.Apply(entry), fsm{st: b}.Apply(entry))
			require.Equal(t, a.View().DigestOf(nil), b.View().DigestOf(nil))
			require.Equal(t, envelopes(a), envelopes(b), "times too are the same everywhere (§1.1)")
			require.Equal(t, resource.Revision(entry.Index), b.Revision())
			if i == cut {
				b = throughSnapshot(t, b)
			}
		}
	})
}

// envelopes are the metadata of every resource.
func envelopes(st *store.Store) (all []resource.Meta) {
	for _, kind := range st.View().Kinds() {
		for r := range st.View().List(kind, "") {
			all = append(all, r.Meta())
		}
	}
	return all
}

// throughSnapshot returns a new store restored from a snapshot of st.
func throughSnapshot(t require.TestingT, st *store.Store) *store.Store {
	snapshots := raft.NewInmemSnapshotStore()
	_, trans := raft.NewInmemTransport("x")
	sink, err := snapshots.Create(1, 1, 1, raft.Configuration{}, 1, trans)
	require.NoError(t, err)
	snap, err := fsm{st: st}.Snapshot()
	require.NoError(t, err)
	require.NoError(t, snap.Persist(sink))
	snap.Release()
	_, source, err := snapshots.Open(sink.ID())
	require.NoError(t, err)
	restored := store.New(store.DefaultOptions())
	require.NoError(t, fsm{st: restored}.Restore(source))
	return restored
}

// A server that does not know what rollouts hold starts from no snapshot that has one: it
// would apply what the other servers refuse. It has changed nothing.
func TestASnapshotOfANewerReleaseIsNotRestored(t *testing.T) {
	spec := `{"stages":[{"all":true}],"changes":[{"delete":{"type":"Mesh","name":"m"},"replaces":1}],"status":{"phase":"Progressing","stage":1}}`
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindRollout, Name: "r"}}, []byte(spec))
	require.NoError(t, err)
	txn := store.Txn{Ops: []store.Op{store.Put(r)}}
	entry, err := store.EncodeCommand(txn)
	require.NoError(t, err)
	st := store.New(store.DefaultOptions())
	require.NoError(t, st.Apply(1, txn).Err)
	snap, err := fsm{st: st}.Snapshot()
	require.NoError(t, err)
	var file bytes.Buffer
	require.NoError(t, snap.(fsmSnapshot).view.WriteSnapshot(&file))

	needs := store.FormatOf(entry)
	for format, restores := range map[uint32]bool{needs - 1: false, needs: true, 0: true} {
		var unusable error
		var used atomic.Uint32
		restored := store.New(store.DefaultOptions())
		err := fsm{st: restored, format: format, used: &used, unusable: func(err error) { unusable = err }}.Restore(io.NopCloser(bytes.NewReader(file.Bytes())))
		if !restores {
			require.ErrorIs(t, err, ErrNewerLog)
			require.ErrorIs(t, unusable, ErrNewerLog, "the next start does not try it again")
			require.Zero(t, restored.View().Len())
			require.Zero(t, used.Load())
			continue
		}
		require.NoError(t, err)
		require.Equal(t, 1, restored.View().Len())
		require.Equal(t, needs, used.Load(), "a member that does not apply such entries is refused")
	}
}

// TestUndecodableEntryStops: a server never continues without an entry that its
// peers may have understood.
func TestUndecodableEntryStops(t *testing.T) {
	var told []error
	st := store.New(store.DefaultOptions())
	f := fsm{st: st, halted: &halted{tell: func(err error) { told = append(told, err) }}}
	newer := []byte{store.NewestFormat + 7, 0, 0, 0, 0, 0}
	good, err := store.EncodeCommand(store.Txn{SetEpoch: &store.Epoch{ClusterID: "c", Incarnation: 1}})
	require.NoError(t, err)
	for _, bad := range [][]byte{[]byte("nonsense"), newer, good[:len(good)-1]} {
		told = nil
		f.halted = &halted{tell: f.halted.tell}
		f.format = store.NewestFormat
		require.Error(t, f.Apply(&raft.Log{Index: 3, Data: bad}).(error))
		require.Len(t, told, 1)
		require.ErrorContains(t, told[0], "entry 3")
		// What follows is not applied either, and no snapshot says that it was.
		require.Error(t, f.Apply(&raft.Log{Index: 4, Data: good}).(error))
		f.StoreConfiguration(5, raft.Configuration{})
		require.Zero(t, st.Revision())
		_, err := f.Snapshot()
		require.ErrorIs(t, err, told[0])
		require.ErrorIs(t, f.Restore(io.NopCloser(bytes.NewReader(nil))), told[0])
		require.Len(t, told, 1)
	}
}

// TestNothingIsAppliedAfterALostEntry: after an entry that could not be brought to the disk,
// no other one is applied, whatever becomes of that.
func TestNothingIsAppliedAfterALostEntry(t *testing.T) {
	var told []error
	st := store.New(store.DefaultOptions())
	lost := errors.New("the disk is gone")
	f := fsm{
		st: st, halted: &halted{tell: func(err error) { told = append(told, err) }},
		synced: func(index uint64) error {
			if index == 3 {
				return lost
			}
			return nil
		},
	}
	command, err := store.EncodeCommand(store.Txn{SetEpoch: &store.Epoch{ClusterID: "c", Incarnation: 1}})
	require.NoError(t, err)
	require.ErrorIs(t, f.Apply(&raft.Log{Index: 3, Data: command}).(error), lost)
	require.ErrorIs(t, f.Apply(&raft.Log{Index: 4, Data: command}).(error), lost)
	require.Zero(t, st.Revision())
	require.Len(t, told, 1)
}

// TestOneServerStartsAtOnce: it does not wait for a heartbeat timeout.
func TestOneServerStartsAtOnce(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Timing.Heartbeat, cfg.Timing.Lease = time.Hour, time.Hour
	for range 2 {
		n, _ := open(t, cfg)
		require.NoError(t, n.Close())
	}
}

func TestPortInUseLeavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	cfg := testConfig(filepath.Join(t.TempDir(), "data"))
	cfg.Transport = raftnet.Config{Addr: taken.Addr().String(), TLS: raftnettest.NewAuthority(t).Config(t, "one")}
	_, err = Open(context.Background(), cfg, store.New(store.DefaultOptions()))
	require.ErrorIs(t, err, raftnet.ErrAddrInUse)
	require.ErrorContains(t, err, taken.Addr().String())
	require.NoDirExists(t, cfg.DataDir)
}
