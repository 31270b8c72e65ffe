package zonesync

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// filled is a global and a settled zone with some resources, one in quarantine.
func filled(t tester, dir string, n int) (*globalSim, *zoneSim) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, dir)
	var ops []store.Op
	for i := range n {
		ops = append(ops, put(policyKey(fmt.Sprintf("p-%d", i)), fmt.Sprintf(`{"n":%d}`, i)))
	}
	g.write(ops...)
	g.write(put(policyKey("p-0"), unusable), put(policyKey("q"), unusable))
	z.settle()
	z.close()
	z.cut()
	return g, z
}

// flip changes one bit of the replica file.
func flip(t tester, dir string, offset int, bit uint) {
	path := filepath.Join(dir, replicaFile)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw[offset] ^= 1 << bit
	require.NoError(t, os.WriteFile(path, raw, 0o600))
}

// TestFlippedRecord: a damaged record is never served; the rest is, with a word
// about it, until the global repairs the replica.
func TestFlippedRecord(t *testing.T) {
	dir := t.TempDir()
	g, z := filled(t, dir, 20)
	db, err := bolt.Open(filepath.Join(dir, replicaFile), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(recordsBucket)
		v := append([]byte(nil), b.Get(diskKey(policyKey("p-7")))...)
		v[len(v)-1] ^= 4
		return b.Put(diskKey(policyKey("p-7")), v)
	}))
	require.NoError(t, db.Close())

	z.open()
	s := z.replica.Status()
	require.Len(t, s.Damage, 1)
	require.Contains(t, s.Damage[0], "p-7")
	require.Contains(t, s.Problem, "damaged")
	_, served := z.store.View().Get(policyKey("p-7"))
	require.False(t, served)
	_, served = z.store.View().Get(policyKey("p-8"))
	require.True(t, served)

	z.crash() // still known after another restart
	require.NotEmpty(t, z.replica.Status().Problem)
	follower := z.store.Follow(z.store.View())
	require.Equal(t, syncv1.Mode_MODE_DIFF, reconnect(z))
	z.settle()
	require.Empty(t, z.replica.Status().Damage)
	require.Empty(t, z.replica.Status().Problem)
	_, served = z.store.View().Get(policyKey("p-7"))
	require.True(t, served)
	_, err = follower.Next(done())
	require.ErrorIs(t, err, store.ErrCompacted, "readers of the feed must read again")
	require.Equal(t, g.applied, z.acked)
	z.close()
}

// TestAnyDamageIsSurvived: whatever bit of the file flips, wherever it is cut
// off, the zone starts, serves nothing that the global did not write, and is
// repaired by it.
func TestAnyDamageIsSurvived(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		g, z := filled(rt, dir, rapid.SampledFrom([]int{3, 300}).Draw(rt, "resources"))
		path := filepath.Join(dir, replicaFile)
		info, err := os.Stat(path)
		require.NoError(rt, err)
		for range rapid.IntRange(1, 3).Draw(rt, "flips") {
			flip(rt, dir, rapid.IntRange(0, int(info.Size())-1).Draw(rt, "offset"), uint(rapid.IntRange(0, 7).Draw(rt, "bit")))
		}
		if rapid.Bool().Draw(rt, "truncate") {
			require.NoError(rt, os.Truncate(path, int64(rapid.IntRange(0, int(info.Size())).Draw(rt, "size"))))
		}
		z.open()
		now := imageOf(g.store.View())
		for key, got := range imageOf(z.store.View()) {
			if key != policyKey("p-0") { // serves its last good version
				require.Equal(rt, now[key], got)
			}
		}
		z.settle()
		want, got := imageOf(g.store.View()), imageOf(z.store.View())
		for _, key := range []resource.Key{policyKey("p-0"), policyKey("q")} {
			delete(want, key)
			delete(got, key)
		}
		require.Equal(rt, want, got)
		z.close()
	})
}

// A replica with very many records, which are read on all processors, serves what it
// served before, whatever it has in quarantine.
func TestManyRecordsAreRead(t *testing.T) {
	dir := t.TempDir()
	_, z := filled(t, dir, 3*readAtOnce/2)
	before, quarantined := z.store.View(), z.replica.Status().Quarantined
	z.open()
	after := z.store.View()
	require.Greater(t, after.Len(), readAtOnce)
	require.Equal(t, before.DigestOf(nil), after.DigestOf(nil))
	require.Equal(t, quarantined, z.replica.Status().Quarantined)
	require.Empty(t, z.replica.Status().Damage)
	require.NoError(t, z.replica.verify())
}

func TestReplicaInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the wait for the lock is virtual
		dir := t.TempDir()
		_, z := filled(t, dir, 1)
		z.open()
		_, err := OpenReplica(ReplicaConfig{Dir: dir, Zone: "east", Decode: decodeOld, Store: store.New(memory())})
		require.ErrorIs(t, err, ErrReplicaInUse)
		require.ErrorContains(t, err, dir)
		z.close()
	})
}

func TestReplicaOfAnotherZone(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir, 1)
	_, err := OpenReplica(ReplicaConfig{Dir: dir, Zone: "west", Decode: decodeOld, Store: store.New(memory())})
	require.ErrorIs(t, err, ErrOtherZone)
	require.ErrorContains(t, err, `"east"`)
	_, err = OpenReplica(ReplicaConfig{Dir: filepath.Join(dir, "missing"), Zone: "west", Decode: decodeOld, Store: store.New(memory())})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestLeasesRise over connections and restarts.
func TestLeasesRise(t *testing.T) {
	_, z := filled(t, t.TempDir(), 1)
	z.open()
	a, b := z.replica.nextLease(), z.replica.nextLease()
	instance := z.replica.machine.instance
	z.crash()
	c := z.replica.nextLease()
	require.Less(t, a, b)
	require.Less(t, b, c)
	require.Equal(t, instance, z.replica.machine.instance)
	z.close()
}

// memoryStorage is a storage in memory.
type memoryStorage map[string]Entry

func (m memoryStorage) Write(entries []Entry) error {
	for _, e := range entries {
		at := e.Bucket + "\x00" + string(e.Key)
		delete(m, at)
		if e.Value != nil {
			m[at] = e
		}
	}
	return nil
}

func (m memoryStorage) Read(visit func(bucket string, key, value []byte)) error {
	for _, e := range m {
		visit(e.Bucket, e.Key, e.Value)
	}
	return nil
}

func (m memoryStorage) Close() error { return nil }

// TestGivenMedium: a replica that is kept elsewhere comes back from there, and
// what its storage damaged is detected and repaired.
func TestGivenMedium(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	z.close()
	m := memoryStorage{}
	z.storage = m
	z.open()
	for i := range 5 {
		g.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
	}
	z.settle()
	z.crash()
	require.Equal(t, 5, z.store.View().Len())

	at := string(recordsBucket) + "\x00" + string(diskKey(policyKey("p-3")))
	m[at].Value[len(m[at].Value)-1] ^= 1
	z.crash()
	require.Equal(t, 4, z.store.View().Len())
	require.Len(t, z.replica.Status().Damage, 1)
	require.NotContains(t, m, at, "what is damaged is removed")
	z.settle()
	require.Equal(t, 5, z.store.View().Len())
	require.Empty(t, z.replica.Status().Damage)
	z.close()
}
