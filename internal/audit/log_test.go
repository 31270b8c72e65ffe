package audit

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func clock() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC) }

func config(dir string) Config {
	return Config{Dir: dir, Now: clock, Logger: slog.New(slog.DiscardHandler)}
}

func open(t *testing.T, c Config) *Log {
	t.Helper()
	l, err := Open(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// write is a record of a write of one resource.
func write(name string) Record {
	return Record{
		Who: Who{Name: "bob", Groups: []string{"team-a"}, Source: "token", Token: "id-1"}, From: "192.0.2.7:4000",
		Method: "meridian.v1.AdminService/Apply", Decision: Allowed, Rule: `rules[0] of AccessRole "admin"`,
		Targets: []Target{{Action: "create", Kind: "Timeout", Mesh: "default", Name: name, Version: 1}}, Revision: 7, Request: "r-" + name,
	}
}

func denial(name, from string) Record {
	return Record{Who: Who{Name: name, Source: "token"}, From: from, Method: "m", Decision: Denied, Rule: "ACCESS_DENIED", Message: "Access Denied"}
}

func lineCount(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return bytes.Count(data, []byte("\n"))
}

func verifyDir(t *testing.T, dir string) Report {
	t.Helper()
	files, checkpoints, err := Files(dir)
	require.NoError(t, err)
	report, err := Verify(files, checkpoints...)
	require.NoError(t, err)
	return report
}

func TestRecordsAreLinesOfJSONInAChain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, config(dir))
	l.Write(write("a"))
	l.Write(write("b"))
	l.flush()
	data, err := os.ReadFile(filepath.Join(dir, CurrentFile))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	require.Len(t, lines, 2)
	first, hash, err := decodeRecord([]byte(lines[0]))
	require.NoError(t, err)
	require.Equal(t, uint64(1), first.Seq)
	require.Equal(t, zeroHash, first.Prev)
	second, _, err := decodeRecord([]byte(lines[1]))
	require.NoError(t, err)
	require.Equal(t, hash, second.Prev)
	want := write("b")
	want.Seq, want.Time, want.Prev = 2, clock(), hash
	require.Equal(t, want, second)
	require.Contains(t, lines[0], `{"seq":1,"time":"2026-01-02T03:04:05.000000006Z","who":{"name":"bob","groups":["team-a"],"source":"token","token":"id-1"},"from":"192.0.2.7:4000"`)

	report := verifyDir(t, dir)
	require.Empty(t, report.Problems)
	require.Equal(t, l.Head().Hash, report.Chains[0].Hash)
	for _, name := range []string{CurrentFile, HeadFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
}

func TestTheChainContinuesAcrossRestartsAndFiles(t *testing.T) {
	dir := t.TempDir()
	c := config(dir)
	c.MaxBytes = 2000
	c.MaxFiles = 3
	for i := range 40 {
		l, err := Open(c)
		require.NoError(t, err)
		l.Write(write(fmt.Sprintf("n-%d", i)))
		require.NoError(t, l.Close())
	}
	files, _, err := Files(dir)
	require.NoError(t, err)
	files = files[:len(files)-len(chainNames)+1] // without those of refusals
	require.Len(t, files, 3, "old files are removed")
	for _, file := range files {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), c.MaxBytes)
	}
	report := verifyDir(t, dir)
	require.Empty(t, report.Problems)
	require.Equal(t, uint64(40), report.Chains[0].Last)
	require.Contains(t, report.Notes[0], "those before it have been removed")

	reversed, err := Verify([]string{files[2], files[0], files[1]})
	require.NoError(t, err)
	require.Empty(t, reversed.Problems, "files may be given in any order")
	without, err := Verify([]string{files[0], files[2]})
	require.NoError(t, err)
	require.Len(t, without.Problems, 1)
	require.Contains(t, without.Problems[0].String(), "missing before record")
	require.Equal(t, files[2], without.Problems[0].File)
}

func TestAWriteOfManyResourcesHasSeveralRecords(t *testing.T) {
	dir := t.TempDir()
	l := open(t, config(dir))
	r := write("x")
	r.Targets = nil
	for i := range 2*maxTargets + 1 {
		r.Targets = append(r.Targets, Target{Action: "create", Kind: "Timeout", Name: fmt.Sprint(i)})
	}
	l.Write(r)
	require.Equal(t, 3, lineCount(t, filepath.Join(dir, CurrentFile)))
	data, err := os.ReadFile(filepath.Join(dir, CurrentFile))
	require.NoError(t, err)
	named := 0
	for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		got, _, err := decodeRecord([]byte(line))
		require.NoError(t, err)
		require.Equal(t, i+1, got.Part)
		require.Equal(t, r.Request, got.Request)
		named += len(got.Targets)
	}
	require.Equal(t, len(r.Targets), named)
}

func TestTextsOfUnauthenticatedClientsAreBounded(t *testing.T) {
	dir := t.TempDir()
	l := open(t, config(dir))
	r := denial(strings.Repeat("é", 5000), "192.0.2.7:1")
	r.Message, r.Request = strings.Repeat("x", 1<<20), "\x00\xff\n\"}"
	l.Write(r)
	info, err := os.Stat(filepath.Join(dir, "denied.log"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(4*maxText))
	l.flush()
	require.Empty(t, verifyDir(t, dir).Problems)
}

// A line is never longer than its reader takes, and what is left out is marked.
func TestRecordsAreBounded(t *testing.T) {
	worst := strings.Repeat("\x00\xff\"", 1<<20)
	var groups []string
	var targets []Target
	for i := range 5000 {
		groups = append(groups, worst[:i*3])
		targets = append(targets, Target{Action: "apply", Kind: worst[:3*i], Mesh: worst[:3*i], Name: worst[:3*i]})
	}
	for _, decision := range []Decision{Allowed, Denied, Refused, Unknown} {
		t.Run(string(decision), func(t *testing.T) {
			c := config(t.TempDir())
			l := open(t, c)
			l.Write(Record{
				Who: Who{Name: worst, Groups: groups, Source: "kubernetes", Token: worst}, From: worst, Method: worst, Decision: decision,
				Rule: worst, Message: worst, Targets: targets, Request: worst,
			})
			require.NoError(t, l.Err())
			require.NoError(t, l.Close())
			verifyDir(t, c.Dir)
			files, _, err := Files(c.Dir)
			require.NoError(t, err)
			var data []byte
			for _, file := range files {
				one, err := os.ReadFile(file)
				require.NoError(t, err)
				data = append(data, one...)
			}
			for line := range bytes.Lines(data) {
				require.Less(t, len(line), maxLine)
			}
			require.Contains(t, string(data), `… (4968 more)"`, "groups")
			if decision == Denied || decision == Refused {
				require.Equal(t, 1, bytes.Count(data, []byte("\n")), "a refusal is one line")
				require.Less(t, len(data), 32<<10)
				require.Contains(t, string(data), `… (4992 more)"`, "targets")
			}
		})
	}
}

func TestATornRecordIsCutOff(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(config(dir))
	require.NoError(t, err)
	l.Write(write("a"))
	require.NoError(t, l.Close())
	f, err := os.OpenFile(filepath.Join(dir, CurrentFile), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"seq":2,"ti`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Contains(t, verifyDir(t, dir).Notes[0], "not complete")

	l = open(t, config(dir))
	l.Write(write("b"))
	l.flush()
	report := verifyDir(t, dir)
	require.Empty(t, report.Problems)
	require.Equal(t, uint64(3), report.Chains[0].Last, "a, the note about the torn one, b")
	data, err := os.ReadFile(filepath.Join(dir, CurrentFile))
	require.NoError(t, err)
	require.Contains(t, string(data), "a torn record of 12 bytes was cut off")
}

// A log whose end was tampered with does not keep a server from starting, and
// does not become sound by it.
func TestADamagedEndIsSetAside(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(config(dir))
	require.NoError(t, err)
	l.Write(write("a"))
	l.Write(write("b"))
	require.NoError(t, l.Close())
	path := filepath.Join(dir, CurrentFile)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(data, []byte(`"name":"b"`), []byte(`"name":"c"`), 1), 0o600))

	l = open(t, config(dir))
	l.Write(write("d"))
	l.flush()
	report := verifyDir(t, dir)
	require.NotEmpty(t, report.Problems)
	require.Contains(t, report.Problems[0].What, "its hash does not fit: it was altered")
	require.Equal(t, 2, report.Problems[0].Line)
}

func TestAMissingEndIsNoticedByTheNextStart(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(config(dir))
	require.NoError(t, err)
	for i := range 5 {
		l.Write(write(fmt.Sprint(i)))
	}
	require.NoError(t, l.Close())
	path := filepath.Join(dir, CurrentFile)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := bytes.SplitAfter(data, []byte("\n"))
	require.NoError(t, os.WriteFile(path, bytes.Join(lines[:3], nil), 0o600))
	require.Contains(t, verifyDir(t, dir).Problems[0].String(), "records 4 to 5 are missing at the end, by the checkpoint")

	l = open(t, config(dir))
	l.flush()
	report := verifyDir(t, dir)
	require.Len(t, report.Problems, 1)
	require.Contains(t, report.Problems[0].String(), "records 4 to 5 are missing before record 6")
}

func TestFailuresAreReportedAndOvercome(t *testing.T) {
	dir := t.TempDir()
	l := open(t, config(dir))
	l.Write(write("a"))
	require.NoError(t, l.Err())
	good := l.writes.file
	broken, err := os.Open(filepath.Join(dir, CurrentFile)) // cannot be written
	require.NoError(t, err)
	l.writes.file = &recordFile{File: broken, sync: broken.Sync}
	l.Write(write("late"))
	l.Write(write("later"))
	require.Error(t, l.Err())
	require.Equal(t, uint64(1), l.Head().Seq)
	l.flush()
	require.Error(t, l.Err())
	l.writes.file = good
	require.NoError(t, broken.Close())
	l.flush()
	require.NoError(t, l.Err())
	l.Write(write("b"))
	l.flush()
	require.Empty(t, verifyDir(t, dir).Problems, "the chain is whole")
	var names []string
	for _, r := range records(t, dir) {
		for _, tgt := range r.Targets {
			names = append(names, tgt.Name)
		}
		if len(r.Targets) == 0 {
			names = append(names, r.Message)
		}
	}
	require.Len(t, names, 5)
	require.Contains(t, names[1], "2 records are written late: write an audit record: ")
	names[1] = "note"
	require.Equal(t, []string{"a", "note", "late", "later", "b"}, names)
}

// A checkpoint that cannot be saved, as on a disk without space for another file, is reported
// once, not with every second, and records are written meanwhile.
func TestACheckpointThatCannotBeSaved(t *testing.T) {
	var said bytes.Buffer
	c := config(t.TempDir())
	c.Logger = slog.New(slog.NewTextHandler(&said, nil))
	l := open(t, c)
	path := l.checkpoint.path
	l.checkpoint.path = filepath.Join(c.Dir, "away", HeadFile) // where no file can be made
	for _, name := range []string{"a", "b", "c"} {
		l.Write(write(name))
		l.flush()
		require.ErrorContains(t, l.Ready(), "write the checkpoint of the audit log")
	}
	require.NoError(t, l.Storable(), "no records are required")
	l.cfg.Required = true
	require.ErrorContains(t, l.Storable(), "write the checkpoint of the audit log")
	require.ErrorContains(t, l.Ready(), "writes are refused until the log can be written (--audit-required)")
	require.Len(t, records(t, c.Dir), 3)
	l.checkpoint.path = path
	l.flush()
	require.NoError(t, l.Ready())
	require.NoError(t, l.Storable())
	var lines []string
	for _, line := range strings.Split(strings.TrimSpace(said.String()), "\n") {
		_, line, _ = strings.Cut(line, " level=")
		lines = append(lines, strings.SplitAfterN(line, `"`, 3)[0]+strings.SplitAfterN(line, `"`, 3)[1])
	}
	require.Equal(t, []string{
		`ERROR msg="the checkpoint of the audit log cannot be written"`,
		`INFO msg="the checkpoint of the audit log is written again"`,
	}, lines)
	require.Empty(t, verifyDir(t, c.Dir).Problems)
}

// What there is no space for until the log can be written is counted.
func TestRecordsThatAreTooManyAreLostAndCounted(t *testing.T) {
	dir := t.TempDir()
	l := open(t, config(dir))
	l.writes.failLocked(errors.New("no space"))
	for range maxUnwritten + 5 {
		l.Write(write("x"))
	}
	l.flush()
	require.NoError(t, l.Err())
	got := records(t, dir)
	require.Len(t, got, 1+maxUnwritten)
	require.Equal(t, "5 records were lost, and 4096 records are written late: no space", got[0].Message)
}

// TestTheDiskIsNotWaitedForToSayHowTheLogStands: health and metrics answer while a
// write hangs.
func TestTheDiskIsNotWaitedForToSayHowTheLogStands(t *testing.T) {
	l := open(t, config(t.TempDir()))
	l.Write(write("a"))
	l.writes.mu.Lock() // as a write does
	defer l.writes.mu.Unlock()
	require.NoError(t, l.Err())
	require.Equal(t, uint64(1), l.Head().Seq)
}
