package raftlog

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// newDamageable writes a log of some size below a directory, and returns it open, with
// what it holds.
func newDamageable(t *testing.T, dir string) (*Log, []*raft.Log) {
	t.Helper()
	log := openTestLog(t, dir)
	want := entries(1, 300)
	for i, entry := range want {
		entry.Data = bytes.Repeat(entry.Data, 30)
		if i%20 == 19 {
			require.NoError(t, log.StoreLogs(want[i-19:i+1]))
		}
	}
	require.NoError(t, log.SetUint64(keyCurrentTerm, 9))
	require.NoError(t, log.SetUint64(keyLastVoteTerm, 9))
	require.NoError(t, log.Set(keyLastVoteCandidate, []byte("one")))
	return log, want
}

// checkAnswers checks that a log answers with what was written or reports that it is
// damaged, and nothing else. It returns how much of it is damaged.
func checkAnswers(t *testing.T, log *Log, want []*raft.Log, what string) (damaged int) {
	t.Helper()
	for _, entry := range want {
		var got raft.Log
		err := log.GetLog(entry.Index, &got)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt, what)
			damaged++
			continue
		}
		got.AppendedAt = entry.AppendedAt
		require.Equal(t, *entry, got, what)
	}
	for key, value := range map[string]string{
		string(keyCurrentTerm): "\x00\x00\x00\x00\x00\x00\x00\x09", string(keyLastVoteTerm): "\x00\x00\x00\x00\x00\x00\x00\x09",
		string(keyLastVoteCandidate): "one",
	} {
		got, err := log.Get([]byte(key))
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt, what)
			damaged++
			continue
		}
		require.Equal(t, value, string(got), what)
	}
	return damaged
}

// TestRootPages: no flipped bit makes the log go back by a transaction, which
// would take back a vote or an acknowledged entry.
func TestRootPages(t *testing.T) {
	dir := t.TempDir()
	log, want := newDamageable(t, dir)
	require.NoError(t, log.Close())
	pristine, err := os.ReadFile(log.path)
	require.NoError(t, err)
	refused := 0
	for _, page := range []int{0, os.Getpagesize()} {
		for at := range 80 {
			damaged := bytes.Clone(pristine)
			damaged[page+at] ^= 1 << (at % 8)
			require.NoError(t, os.WriteFile(log.path, damaged, 0o600))
			log, err := OpenLog(begunDir(dir), nil)
			if err != nil {
				require.ErrorIs(t, err, ErrCorrupt)
				refused++
				continue
			}
			require.Zero(t, checkAnswers(t, log, want, "root page"))
			require.NoError(t, log.Close())
		}
	}
	require.GreaterOrEqual(t, refused, 2*64, "everything behind the header of a root page counts")
}

// TestCorruptionWhileOpen: a bit that flips on the disk below a log in use changes
// nothing or is told, whatever is done with the log then.
func TestCorruptionWhileOpen(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	found := 0
	const rounds = 100
	log, all := newDamageable(t, t.TempDir())
	require.NoError(t, log.Close())
	pristine, err := os.ReadFile(log.path)
	require.NoError(t, err)
	dir := t.TempDir()
	path := filepath.Join(dir, raftDir, logFile)
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	for range rounds {
		require.NoError(t, os.WriteFile(path, pristine, 0o600))
		log, want := openTestLog(t, dir), all
		file, err := os.OpenFile(log.path, os.O_RDWR, 0)
		require.NoError(t, err)
		info, err := file.Stat()
		require.NoError(t, err)
		at := rng.Int64N(min(info.Size(), 40*4096)) // most of the rest is not in use
		one := make([]byte, 1)
		_, err = file.ReadAt(one, at)
		require.NoError(t, err)
		one[0] ^= 1 << rng.IntN(8)
		_, err = file.WriteAt(one, at)
		require.NoError(t, err)
		require.NoError(t, file.Close())

		damaged := checkAnswers(t, log, want, "before a write")
		entry := &raft.Log{Index: 301, Term: 40, Data: []byte("more")}
		if err := log.StoreLog(entry); err == nil {
			want = append(want[:len(want):len(want)], entry)
		} else {
			require.ErrorIs(t, err, ErrCorrupt)
			damaged++
		}
		damaged += checkAnswers(t, log, want, "after a write")
		if damaged > 0 {
			found++
		}
		_ = log.file.Close()
	}
	t.Logf("%d of %d flips mattered, and were reported", found, rounds)
	require.Greater(t, found, rounds/10)
}

// goneBack is a log file that returns to an earlier state, as bbolt does when its
// newer root page is damaged.
type goneBack struct {
	LogFile
	value []byte
	last  uint64
}

func (f *goneBack) Get(key []byte) ([]byte, error) {
	if f.value != nil {
		return f.value, nil
	}
	return f.LogFile.Get(key)
}

func (f *goneBack) LastIndex() (uint64, error) {
	if f.last != 0 {
		return f.last, nil
	}
	return f.LogFile.LastIndex()
}

// TestLogThatGoesBack: a vote or an entry that was there and is not any more is
// damage, though what is there is intact.
func TestLogThatGoesBack(t *testing.T) {
	begin := func() (*Log, *goneBack) {
		log := openTestLog(t, t.TempDir())
		file := &goneBack{LogFile: log.file}
		log.file = file
		return log, file
	}
	log, file := begin()
	require.NoError(t, log.Set(keyLastVoteCandidate, []byte("one")))
	before, err := file.LogFile.Get(keyLastVoteCandidate)
	require.NoError(t, err)
	require.NoError(t, log.Set(keyLastVoteCandidate, []byte("two")))
	file.value = before
	_, err = log.Get(keyLastVoteCandidate)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "older")

	log, file = begin()
	require.NoError(t, log.StoreLogs(entries(1, 10)))
	file.last = 9
	require.ErrorIs(t, log.StoreLogs(entries(11, 11)), ErrCorrupt)
	file.last = 0
	require.ErrorIs(t, log.StoreLogs(entries(11, 11)), ErrCorrupt, "there is no way back")

	log, _ = begin()
	require.NoError(t, log.StoreLogs(entries(1, 10)))
	require.ErrorIs(t, log.StoreLogs(entries(12, 12)), ErrCorrupt, "a gap")
}

// TestCorruptIdentity: no flipped bit makes a directory another server's, or one
// that has not been begun.
func TestCorruptIdentity(t *testing.T) {
	owner := Owner{Role: "global", NodeID: "one"}
	dir := t.TempDir()
	d, err := OpenDataDir(Files(dir), owner)
	require.NoError(t, err)
	require.NoError(t, d.Claim(owner))
	require.NoError(t, d.MarkBootstrapped())
	id := d.ID()
	d.Close()
	path := filepath.Join(dir, identityFile)
	pristine, err := os.ReadFile(path)
	require.NoError(t, err)
	for bit := range 8 * len(pristine) {
		damaged := bytes.Clone(pristine)
		damaged[bit/8] ^= 1 << (bit % 8)
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		d, err := OpenDataDir(Files(dir), owner)
		if err == nil {
			require.Equal(t, id.ClusterID, d.id.ClusterID)
			require.Equal(t, id.NodeID, d.id.NodeID)
			require.True(t, d.id.Bootstrapped)
			d.Close()
			continue
		}
		if !strings.Contains(err.Error(), "has format") {
			require.ErrorIs(t, err, ErrCorrupt)
		}
	}
	// As an earlier release wrote it.
	d, err = OpenDataDir(Files(t.TempDir()), owner)
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, d.SetIdentity([]byte(`{"formatVersion": 1, "role": "global", "clusterId": "c", "nodeId": "one", "bootstrapped": true}`)))
	require.NoError(t, d.readIdentity(owner))
	require.Equal(t, "c", d.id.ClusterID)
}
