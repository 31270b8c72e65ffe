package raftlog

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"meridian/internal/atrest"
)

// volatileJournal is the file of a journal on a disk that may lose power: of what was
// not synced, any sectors may be there. A transaction of bbolt counts as synced as soon as
// it is in bbolt's file.
type volatileJournal struct {
	t   *testing.T
	rng *rand.Rand
	// synced is what is on the disk for certain, unsynced are the sectors that were
	// written since, by their offset.
	synced   []byte
	unsynced map[int][]byte
	// full has the next write end before it is complete, for lack of space, and cut the
	// power fail in the next sync.
	full, cut bool
	// point is called after each write and each sync.
	point func()
}

var errNoPower = errors.New("the power failed")

// beneath has a log use the disk.
func (v *volatileJournal) beneath(log *Log) {
	file := journaledOf(v.t, log)
	require.NoError(v.t, file.begin())
	j := file.journal
	data, err := os.ReadFile(j.file.Name())
	require.NoError(v.t, err)
	v.synced, v.unsynced = data, map[int][]byte{}
	j.disk = journalDisk{
		writeAt: func(f *os.File, b []byte, offset int64) error {
			end := len(b)
			if v.full {
				// The last page has a sector of the record at least.
				end = journalPage * v.rng.IntN(len(b)/journalPage)
			}
			for at := 0; at < end; at += sectorSize {
				v.unsynced[int(offset)+at] = bytes.Clone(b[at : at+sectorSize])
			}
			_, err := f.WriteAt(b[:end], offset)
			if v.full {
				v.full = false
				err = &fs.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
			}
			v.point()
			return err
		},
		sync: func(*os.File) error {
			if v.cut {
				v.cut = false
				return errNoPower
			}
			v.synced = v.left(func() bool { return true })
			v.unsynced = map[int][]byte{}
			v.point()
			return nil
		},
	}
}

// left is the content of the file with some of the sectors that were not synced.
func (v *volatileJournal) left(is func() bool) []byte {
	data := bytes.Clone(v.synced)
	for offset, sector := range v.unsynced {
		if is() {
			copy(data[offset:], sector)
		}
	}
	return data
}

// survivors are contents that a loss of power may leave.
func (v *volatileJournal) survivors() [][]byte {
	out := [][]byte{v.synced}
	if len(v.unsynced) == 0 {
		return out
	}
	out = append(out, v.left(func() bool { return true }))
	for _, of := range []int{2, 8} {
		out = append(out, v.left(func() bool { return v.rng.IntN(of) == 0 }), v.left(func() bool { return v.rng.IntN(of) != 0 }))
	}
	lost, n := v.rng.IntN(len(v.unsynced)), 0
	return append(out, v.left(func() bool { n++; return n-1 != lost }))
}

// readJournaled returns each entry in short that a start would find.
func readJournaled(t *testing.T, bolt *boltFile, journal []byte) (read []string) {
	t.Helper()
	content, err := decodeJournal(journal)
	require.NoError(t, err)
	file, err := withJournal(*bolt, content.entries)
	require.NoError(t, err)
	_, err = verifyLog(file, func(entry *raft.Log) { read = append(read, inShort(entry)) })
	require.NoError(t, err)
	return read
}

// TestPowerLossAndTheJournal: wherever the power goes, and whatever sectors of that which
// was not synced are lost, the next start finds a log with all that was acknowledged and
// nothing that was removed, and of the append under way everything or nothing. So it does
// after the next loss.
func TestPowerLossAndTheJournal(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			log := openTestLog(t, dir)
			v := &volatileJournal{t: t, rng: rng, point: func() {}}
			v.beneath(log)
			var held []*raft.Log
			var before, after []string
			term, step := uint64(1), ""
			v.point = func() {
				for _, left := range v.survivors() {
					read := readJournaled(t, boltOf(t, log), left)
					if !slices.Equal(after, read) {
						require.Equal(t, before, read, step)
					}
				}
			}
			// crash ends the process and loses the power, and starts again.
			crash := func() {
				images := v.survivors()
				kill(t, log)
				require.NoError(t, os.WriteFile(filepath.Join(dir, raftDir, journalFile), images[rng.IntN(len(images))], 0o600))
				log = openTestLog(t, dir)
				v.beneath(log)
			}
			do := func(name string, next []*raft.Log, change func() error) {
				t.Helper()
				step, after = name, nil
				for _, entry := range next {
					after = append(after, inShort(entry))
				}
				err := change()
				if v.cut = false; errors.Is(err, errNoPower) {
					crash()
					v.point()
					if read := readJournaled(t, boltOf(t, log), v.synced); !slices.Equal(after, read) {
						next, after = held, before
					}
					err = nil
				}
				require.NoError(t, err, name)
				before, held = after, next
				v.point()
			}
			next := func() (logs []*raft.Log) {
				index := uint64(1 + rng.IntN(9))
				if len(held) > 0 {
					index = held[len(held)-1].Index + 1
				}
				size := []int{1, 700, 5000, 120_000, journalRecord}[rng.IntN(5)]
				for range 1 + rng.IntN(3) {
					entry := &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: make([]byte, size/2+rng.IntN(size))}
					for i := range entry.Data {
						entry.Data[i] = byte(rng.Uint32())
					}
					logs, index = append(logs, entry), index+1
				}
				return logs
			}
			for range 60 {
				v.cut = rng.IntN(4) == 0
				switch what := rng.IntN(20); {
				case what < 13:
					logs := next()
					do("append", slices.Concat(held, logs), func() error { return log.StoreLogs(logs) })
				case what == 13 && len(held) > 0:
					logs := next()
					v.full, v.cut, after = true, false, nil
					step = "append without space"
					if err := log.StoreLogs(logs); err != nil {
						require.ErrorIs(t, err, ErrDiskFull)
						v.point()
					} else { // it went into the bbolt file
						before, held = nil, slices.Concat(held, logs)
						for _, entry := range held {
							before = append(before, inShort(entry))
						}
					}
					v.full = false
				case what == 14 && len(held) > 0:
					at := rng.IntN(len(held))
					term++
					do("cut the end off", held[:at], func() error { return log.DeleteRange(held[at].Index, held[len(held)-1].Index) })
				case what < 17 && len(held) > 0:
					at := rng.IntN(len(held))
					do("cut the beginning off", held[at+1:], func() error { return log.DeleteRange(held[0].Index, held[at].Index) })
				case what == 17:
					do("close", held, func() error {
						err := log.Close()
						if err == nil {
							log = openTestLog(t, dir)
							v.beneath(log)
						}
						return err
					})
				default:
					do("lose power", held, func() error { crash(); return nil })
				}
			}
		})
	}
}

// kill ends the use of a log as the end of its process does.
func kill(t *testing.T, log *Log) {
	t.Helper()
	require.NoError(t, journaledOf(t, log).Close())
	log.failure = errNoPower // nothing more is written
}

// newJournal writes a log of which a part is in the journal only, in several records.
// It returns it open, with what it holds in short.
func newJournal(t *testing.T, dir string) (log *Log, held []string) {
	t.Helper()
	log = openTestLog(t, dir)
	next := uint64(1)
	for _, size := range []int{10, 10, 3000, 9000, 10, 20_000, 10} {
		logs := entries(next, next+2)
		for _, entry := range logs {
			entry.Data = bytes.Repeat([]byte{byte(entry.Index)}, size)
			held = append(held, inShort(entry))
		}
		require.NoError(t, log.StoreLogs(logs))
		next += 3
	}
	return log, held
}

// TestDamagedJournal: every flipped bit of a journal is found, and every record but the
// newest of which a sector is missing. The newest may have been cut short by a crash.
func TestDamagedJournal(t *testing.T) {
	dir := t.TempDir()
	log, held := newJournal(t, dir)
	path := journaledOf(t, log).journal.file.Name()
	pristine, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, held, readJournaled(t, boltOf(t, log), pristine))

	used := journaledOf(t, log).journal.page * journalPage
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		damaged := bytes.Clone(pristine)
		damaged[rng.IntN(used+2*journalPage)] ^= 1 << rng.IntN(8)
		_, err := decodeJournal(damaged)
		require.ErrorContains(t, err, "checksum mismatch")
	}

	_, newest, _ := readRecord(pristine, used/journalPage-1)
	for at := 0; at < used; at += sectorSize {
		record := journalSector(pristine, at).number()
		damaged := bytes.Clone(pristine)
		sealSector(damaged[at:], at, 0, 0) // as when it was made
		found, err := decodeJournal(damaged)
		if record == newest {
			require.NoError(t, err)
			require.Len(t, found.entries, len(held)-3-3, "without the newest, and what began the log")
			continue
		}
		require.ErrorContains(t, err, "is missing or incomplete")
	}

	_, err = decodeJournal(make([]byte, journalSize))
	require.ErrorContains(t, err, "checksum mismatch")
	for _, size := range []int{0, journalPage, journalSize - 1, journalSize + 1} {
		_, err := decodeJournal(append(bytes.Clone(pristine), 0)[:size])
		require.ErrorContains(t, err, "bytes, not")
	}

	// A start says so, and changes nothing.
	kill(t, log)
	damaged := bytes.Clone(pristine)
	damaged[sectorHead+recordHead+entryHead] ^= 1
	require.NoError(t, os.WriteFile(path, damaged, 0o600))
	bolt, err := os.ReadFile(log.path)
	require.NoError(t, err)
	_, err = OpenLog(begunDir(dir), nil)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, path)
	for name, want := range map[string][]byte{path: damaged, log.path: bolt} {
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), name)
	}
}

// TestJournalOfAnotherLog: a journal and a bbolt file that do not belong together are
// damage, whichever of the two was replaced.
func TestJournalOfAnotherLog(t *testing.T) {
	var path string
	reopen := func(t *testing.T, change func(bolt string, dir *DataDir)) error {
		t.Helper()
		dir := t.TempDir()
		log, _ := newJournal(t, dir)
		kill(t, log)
		path = log.path
		change(path, begunDir(dir))
		_, err := OpenLog(begunDir(dir), nil)
		return err
	}
	replace := func(logs ...*raft.Log) func(string, *DataDir) {
		return func(path string, dir *DataDir) {
			require.NoError(t, os.Remove(path))
			bolt, err := openBolt(path, nil)
			require.NoError(t, err)
			require.NoError(t, bolt.StoreLogs(seal(logs)))
			require.NoError(t, bolt.Close())
		}
	}
	for name, c := range map[string]struct {
		change func(string, *DataDir)
		says   string
	}{
		"without a journal": {func(path string, _ *DataDir) {
			require.NoError(t, os.Remove(filepath.Join(filepath.Dir(path), journalFile)))
		}, "it is missing, and the last entries of the log may be nowhere else"},
		"removed":        {func(path string, _ *DataDir) { require.NoError(t, os.Remove(path)) }, "it is missing, and the journal beside it has entries 4 to 21"},
		"emptied":        {replace(), "it ends at entry 0, and the journal beside it begins at entry 4"},
		"shorter":        {replace(entries(1, 2)...), "it ends at entry 2, and the journal beside it begins at entry 4"},
		"of other terms": {replace(&raft.Log{Index: 3, Term: 7}, &raft.Log{Index: 4, Term: 7}), "entry 4 has the term 7, and 1 in the journal beside it"},
	} {
		t.Run(name, func(t *testing.T) {
			err := reopen(t, c.change)
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, filepath.Dir(path))
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestJournalIsFlushed: entries go into the bbolt file together when the journal is full,
// and all of them when the log is closed. Reads find them wherever they are.
func TestJournalIsFlushed(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	j := journaledOf(t, log)
	const count = 3 * journalSize / journalPage
	flushes, stored := 0, uint64(0)
	for _, entry := range entries(1, count) {
		require.NoError(t, log.StoreLog(entry))
		last, err := j.boltFile.LastIndex()
		require.NoError(t, err)
		if last != stored {
			flushes, stored = flushes+1, last
		}
		if entry.Index%100 == 0 {
			first, last, err := log.Bounds()
			require.NoError(t, err)
			require.Equal(t, [2]uint64{1, entry.Index}, [2]uint64{first, last})
			for _, index := range []uint64{1, stored, min(stored+1, last), last} {
				var got raft.Log
				require.NoError(t, j.GetLog(index, &got))
				require.Equal(t, index, got.Index)
			}
			require.ErrorIs(t, j.GetLog(last+1, new(raft.Log)), raft.ErrLogNotFound)
		}
	}
	require.Equal(t, 1+2, flushes, "the first entry, and two full journals")
	require.NoError(t, log.Close())
	bolt, err := openBolt(log.path, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, bolt.Close()) }()
	last, err := bolt.LastIndex()
	require.NoError(t, err)
	require.EqualValues(t, count, last)
	require.NoFileExists(t, filepath.Join(dir, raftDir, journalFile))
}

// smallDisk is a file system of some size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	small := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", small).CombinedOutput(); err != nil {
		t.Skipf("a small file system cannot be made here: %s", out)
	}
	t.Cleanup(func() { require.NoError(t, exec.Command("umount", small).Run()) })
	return small
}

// fill takes what space is left on a file system, until the file is removed.
func fill(t *testing.T, disk string) (filler string) {
	t.Helper()
	filler = filepath.Join(disk, "filler")
	f, err := os.Create(filler)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, journalPage))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	return filler
}

// TestFullDiskBesideTheJournal: on a full disk the journal takes entries until it is full;
// then a write has no effect, and succeeds once there is space. Nothing that was
// acknowledged is lost meanwhile, by no end of the process and no start.
func TestFullDiskBesideTheJournal(t *testing.T) {
	disk := smallDisk(t, "8m")
	dir := filepath.Join(disk, "data")
	log := openTestLog(t, dir)
	require.NoError(t, log.StoreLogs(entries(1, 10)))
	require.NoError(t, log.StoreLogs(entries(11, 12)))
	filler := fill(t, disk)
	next := uint64(13)
	large := func() *raft.Log {
		return &raft.Log{Index: next, Term: 3, Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte(next)}, 100_000)}
	}
	for {
		err := log.StoreLog(large())
		if err != nil {
			require.ErrorIs(t, err, ErrDiskFull)
			break
		}
		next++
	}
	require.Greater(t, next, uint64(15), "the journal took some")
	require.ErrorIs(t, log.StoreLog(large()), ErrDiskFull)
	require.ErrorIs(t, log.DeleteRange(next-1, next-1), ErrDiskFull)
	for range 2 {
		require.NoError(t, log.Close())
		log = openTestLog(t, dir)
		first, last, err := log.Bounds()
		require.NoError(t, err)
		require.Equal(t, [2]uint64{1, next - 1}, [2]uint64{first, last})
		require.ErrorIs(t, log.StoreLog(large()), ErrDiskFull)
	}
	require.NoError(t, os.Remove(filler))
	require.NoError(t, log.StoreLog(large()))
	require.NoError(t, log.DeleteRange(next, next))
	require.NoError(t, log.Close())
	log = openTestLog(t, dir)
	_, last, err := log.Bounds()
	require.NoError(t, err)
	require.Equal(t, next-1, last)
	var got raft.Log
	require.NoError(t, log.GetLog(next-1, &got))
	next--
	require.Equal(t, large().Data, got.Data)
}

// TestStartOnAFullDisk: without space for a journal, and for saying that there is one, a log
// takes what the pages do that bbolt has free.
func TestStartOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, "8m")
	dir := filepath.Join(disk, "data")
	log := openTestLog(t, dir)
	logs := entries(1, 200)
	for _, entry := range logs {
		entry.Data = bytes.Repeat(entry.Data, 1000)
	}
	require.NoError(t, log.StoreLogs(logs))
	require.NoError(t, log.DeleteRange(1, 150))
	require.NoError(t, log.Close())
	fill(t, disk)
	log = openTestLog(t, dir)
	for _, entry := range entries(201, 220) {
		require.NoError(t, log.StoreLog(entry))
	}
	require.Nil(t, journaledOf(t, log).journal)
	require.False(t, begunDir(dir).Journaled())
	kill(t, log)
	log = openTestLog(t, dir)
	first, last, err := log.Bounds()
	require.NoError(t, err)
	require.Equal(t, [2]uint64{151, 220}, [2]uint64{first, last})
}

// TestNoFileForAJournal: without a file that may be opened, entries are written all the
// same, and to a journal once there is one.
func TestNoFileForAJournal(t *testing.T) {
	log := openTestLog(t, t.TempDir())
	require.NoError(t, log.StoreLogs(entries(1, 1)))
	var limit, before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	limit = before
	limit.Cur = 0
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	err := log.StoreLogs(entries(2, 2))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	require.NoError(t, err)
	require.Empty(t, journaledOf(t, log).waiting())
	require.NoError(t, log.StoreLogs(entries(3, 3)))
	require.Len(t, journaledOf(t, log).waiting(), 1)
}

// TestNothingIsWrittenAfterAFailure: a log that was closed after a failure is as the
// failure left it.
func TestNothingIsWrittenAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	log, held := newJournal(t, dir)
	bolt, err := os.ReadFile(log.path)
	require.NoError(t, err)
	journal, err := os.ReadFile(journaledOf(t, log).journalPath)
	require.NoError(t, err)
	require.ErrorIs(t, log.report(ErrCorrupt), ErrCorrupt)
	require.NoError(t, log.Close())
	for path, want := range map[string][]byte{log.path: bolt, journaledOf(t, log).journalPath: journal} {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), path)
	}
	require.Equal(t, held, readAll(t, dir, "after it"))
}

// TestNoSpaceForAJournal: a log without a journal works, and has one after a start with
// space.
func TestNoSpaceForAJournal(t *testing.T) {
	disk := smallDisk(t, "700k")
	dir := filepath.Join(disk, "data")
	log := openTestLog(t, dir)
	require.Nil(t, journaledOf(t, log).journal)
	require.NoError(t, log.StoreLogs(entries(1, 10)))
	require.NoError(t, log.DeleteRange(8, 10))
	require.NoError(t, log.StoreLogs(entries(8, 9)))
	require.NoError(t, log.Close())
	left, err := filepath.Glob(filepath.Join(dir, raftDir, "*journal*"))
	require.NoError(t, err)
	require.Empty(t, left)

	require.NoError(t, exec.Command("mount", "-o", "remount,size=8m", disk).Run())
	log = openTestLog(t, dir)
	require.NoError(t, log.StoreLogs(entries(10, 11)))
	require.NotNil(t, journaledOf(t, log).journal)
	_, last, err := log.Bounds()
	require.NoError(t, err)
	require.EqualValues(t, 11, last)
	require.NoError(t, log.Close())
}

// TestFormatOfADirectoryWithAJournal: releases without a journal refuse a directory whose
// entries may be in it, and take one that was closed.
func TestFormatOfADirectoryWithAJournal(t *testing.T) {
	owner := Owner{Role: "global", NodeID: "one"}
	path := t.TempDir()
	format := func() int {
		data, err := os.ReadFile(filepath.Join(path, identityFile))
		require.NoError(t, err)
		var id struct{ FormatVersion int }
		require.NoError(t, json.Unmarshal(data, &id))
		return id.FormatVersion
	}
	open := func() (*DataDir, *Log) {
		d, err := OpenDataDir(Files(path), owner)
		require.NoError(t, err)
		require.NoError(t, d.Claim(owner))
		log, err := OpenLog(d, nil)
		require.NoError(t, err)
		return d, log
	}
	d, log := open()
	require.NoError(t, d.MarkBootstrapped())
	require.NoError(t, log.StoreLogs(entries(1, 2)))
	require.NoError(t, log.StoreLogs(entries(3, 3)))
	require.Equal(t, 2, format())
	require.NoError(t, log.Close())
	d.Close()
	require.Equal(t, 1, format())

	d, log = open()
	require.Equal(t, 1, format(), "nothing was written")
	require.NoError(t, log.StoreLogs(entries(4, 5)))
	require.Equal(t, 2, format())
	d.Close() // the process was killed
	kill(t, log)

	d, log = open()
	require.Equal(t, 2, format())
	require.NoError(t, log.Close())
	d.Close()
	require.Equal(t, 1, format())
}

// TestJournalAndKeys: when encryption is turned on after a crash, the entries of the
// journal are kept, and nothing of them is left as it was.
func TestJournalAndKeys(t *testing.T) {
	const secret = "a secret that was written in plain text"
	dir := t.TempDir()
	log := openTestLog(t, dir)
	want := entries(1, 9)
	for _, entry := range want {
		entry.Data = []byte(secret)
		require.NoError(t, log.StoreLog(entry))
	}
	kill(t, log)
	holding := func() (found []string) {
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if bytes.Contains(data, []byte(secret)) {
				found = append(found, entry.Name())
			}
			return err
		}))
		return found
	}
	require.Equal(t, []string{journalFile, logFile}, holding())

	keys, err := atrest.Parse([]byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32))))
	require.NoError(t, err)
	d := begunDir(dir)
	files := d.Storage
	d.Storage = Encrypted(unmarkable{files}, keys)
	_, err = OpenLog(d, nil)
	require.ErrorIs(t, err, syscall.ENOSPC, "the journal stays while its mark does")
	d.Storage = Encrypted(files, keys)
	log, err = OpenLog(d, nil)
	require.NoError(t, err)
	require.Empty(t, holding())
	for _, entry := range want {
		var got raft.Log
		require.NoError(t, log.GetLog(entry.Index, &got))
		require.Equal(t, secret, string(got.Data))
	}
	require.NoError(t, log.StoreLogs([]*raft.Log{{Index: 10, Term: 2, Data: []byte(secret)}}))
	require.Empty(t, holding())
	require.NoError(t, log.Close())
}

// unmarkable is a storage without space for an identity.
type unmarkable struct{ Storage }

func (u unmarkable) SetIdentity([]byte) error { return syscall.ENOSPC }

// RewriteLog implements rewriter.
func (u unmarkable) RewriteLog(change func(*raft.Log) error) error {
	return u.Storage.(rewriter).RewriteLog(change)
}

// RemoveSnapshot implements rewriter.
func (u unmarkable) RemoveSnapshot(id string) error { return u.Storage.(rewriter).RemoveSnapshot(id) }
