package audit

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/pki"
)

// sample returns the lines of a log of n records, and its head.
func sample(tb testing.TB, n int) ([][]byte, Head) {
	tb.Helper()
	dir := tb.TempDir()
	l, err := Open(config(dir))
	require.NoError(tb, err)
	for i := range n {
		l.Write(write(fmt.Sprintf("name-%d", i)))
	}
	require.NoError(tb, l.Close())
	data, err := os.ReadFile(filepath.Join(dir, CurrentFile))
	require.NoError(tb, err)
	return bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")), Head{Mark: Mark{Seq: l.Head().Seq, Hash: l.Head().Hash}}
}

func heads(head *Head) []Head {
	if head == nil {
		return nil
	}
	return []Head{*head}
}

func verifyLines(tb testing.TB, lines [][]byte, head *Head) Report {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "x.log")
	data := bytes.Join(lines, nil)
	if !bytes.HasSuffix(data, []byte("\n")) && len(data) > 0 {
		data = append(data, '\n')
	}
	require.NoError(tb, os.WriteFile(path, data, 0o600))
	report, err := Verify([]string{path}, heads(head)...)
	require.NoError(tb, err)
	return report
}

// rehash gives an altered line a hash that fits, as an attacker would.
func rehash(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	body := line[:len(line)-len(hashField)-hashText-len(lineTail)]
	sum := sha256.Sum256(body)
	return []byte(string(body) + hashField + hex.EncodeToString(sum[:]) + lineTail + "\n")
}

func TestVerifySaysWhere(t *testing.T) {
	lines, head := sample(t, 6)
	without := func(i, j int) [][]byte { return slices.Concat(lines[:i], lines[j:]) }
	swapped := slices.Clone(lines)
	swapped[2], swapped[3] = lines[3], lines[2]
	altered := slices.Clone(lines)
	altered[2] = bytes.Replace(lines[2], []byte("bob"), []byte("eve"), 1)
	forged := slices.Clone(altered)
	forged[2] = rehash(altered[2])
	torn := slices.Clone(lines)
	torn[2] = append(bytes.Clone(lines[2][:40]), '\n')
	doubled := slices.Concat(lines[:3], lines[2:])
	lastForged := slices.Clone(lines)
	lastForged[5] = rehash(bytes.Replace(append(bytes.Clone(lines[5]), '\n'), []byte("bob"), []byte("eve"), 1))
	begun := slices.Clone(lines)
	begun[0] = rehash(bytes.Replace(lines[0], []byte(zeroHash), []byte(head.Hash), 1))

	for name, tc := range map[string]struct {
		lines [][]byte
		want  []string // "line: what"
	}{
		"untouched":               {lines, nil},
		"removed":                 {without(2, 3), []string{"3: record 3 is missing before record 4"}},
		"several removed":         {without(1, 4), []string{"2: records 2 to 4 are missing before record 5"}},
		"reordered":               {swapped, []string{"3: record 3 is missing before record 4", "4: record 3 stands after record 4: it was moved, copied or inserted"}},
		"altered":                 {altered, []string{"3: its hash does not fit: it was altered"}},
		"altered with its hash":   {forged, []string{"4: record 4 does not follow from the one before it: that one was altered or replaced"}},
		"truncated in the middle": {torn, []string{"3: it is not a record"}},
		"copied":                  {doubled, []string{"4: record 3 stands after record 3: it was moved, copied or inserted"}},
		"cut off at the end":      {lines[:4], []string{"0: records 5 to 6 are missing at the end, by the checkpoint"}},
		"last one forged":         {lastForged, []string{"6: record 6 is not the one that the checkpoint was made of: the log was written anew"}},
		"everything removed":      {nil, []string{"0: records 1 to 6 are missing at the end, by the checkpoint"}},
		"another beginning":       {begun, []string{"1: record 1 does not begin a log", "2: record 2 does not follow from the one before it: that one was altered or replaced"}},
		"not a log":               {[][]byte{[]byte("hello\n")}, []string{"1: it is not a record", "0: records 1 to 6 are missing at the end, by the checkpoint"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range verifyLines(t, tc.lines, &head).Problems {
				got = append(got, fmt.Sprintf("%d: %s", p.Line, p.What))
			}
			require.Equal(t, tc.want, got)
		})
	}
	require.Empty(t, verifyLines(t, lines[2:], &head).Problems, "the oldest records are removed in time")
	require.Empty(t, verifyLines(t, lines[:4], nil).Problems, "without a checkpoint a truncated end is not detected")
	old := Head{Mark: Mark{Seq: 3, Hash: rehashOf(lines[2])}}
	require.Empty(t, verifyLines(t, lines, &old).Problems, "an older checkpoint lies within")
	old.Hash = head.Hash
	require.Len(t, verifyLines(t, lines, &old).Problems, 1)
	ahead := verifyLines(t, lines[4:], &Head{Mark: Mark{Seq: 2, Hash: head.Hash}})
	require.Empty(t, ahead.Problems)
	require.Contains(t, ahead.Notes[1], "the checkpoint is of record 2 of audit, before these files")
}

func rehashOf(line []byte) string {
	_, hash, _ := decodeRecord(bytes.TrimSuffix(line, []byte("\n")))
	return hash
}

// Whatever is done to the lines of a log, other than removing the oldest ones,
// is found, with the checkpoint of its end.
func TestAnyChangeIsFound(t *testing.T) {
	lines, head := sample(t, 12)
	whole := bytes.Join(lines, nil)
	rapid.Check(t, func(rt *rapid.T) {
		var changed [][]byte
		i := rapid.IntRange(0, len(lines)-1).Draw(rt, "i")
		j := rapid.IntRange(0, len(lines)-1).Draw(rt, "j")
		switch rapid.SampledFrom([]string{"byte", "remove", "swap", "copy", "cut"}).Draw(rt, "change") {
		case "byte":
			data := bytes.Clone(whole)
			at := rapid.IntRange(0, len(data)-1).Draw(rt, "at")
			data[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "xor"))
			changed = [][]byte{data}
		case "remove":
			changed = slices.Concat(lines[:max(i, 1)], lines[max(i, 1)+1:])
		case "swap":
			if i == j {
				rt.Skip()
			}
			changed = slices.Clone(lines)
			changed[i], changed[j] = lines[j], lines[i]
			if max(i, j) == len(lines)-1 { // that one has no newline
				changed[min(i, j)] = append(bytes.Clone(changed[min(i, j)]), '\n')
			}
		case "copy":
			changed = slices.Insert(slices.Clone(lines), i, append(bytes.Clone(bytes.TrimSuffix(lines[j], []byte("\n"))), '\n'))
		case "cut":
			changed = [][]byte{whole[:rapid.IntRange(0, len(whole)-1).Draw(rt, "length")]}
		}
		if report := verifyLines(t, changed, &head); len(report.Problems) == 0 {
			rt.Fatalf("not found: %+v", report)
		}
	})
}

func TestVerifyNeedsFiles(t *testing.T) {
	_, _, err := Files(t.TempDir())
	require.ErrorContains(t, err, "holds no audit log")
	bad := filepath.Join(t.TempDir(), HeadFile)
	require.NoError(t, os.WriteFile(bad, []byte("{}"), 0o600))
	_, err = ReadHead(bad)
	require.ErrorContains(t, err, "is not a checkpoint")
}

func FuzzDecodeRecord(f *testing.F) {
	lines, _ := sample(f, 2)
	for _, line := range lines {
		f.Add(bytes.TrimSuffix(line, []byte("\n")))
		f.Add(bytes.TrimSuffix(rehash(bytes.Replace(append(bytes.TrimSuffix(line, []byte("\n")), '\n'), []byte("seq"), []byte("sex"), 1)), []byte("\n")))
	}
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, hash, err := decodeRecord(line)
		if err != nil {
			return
		}
		// Nothing is accepted whose hash is not that of what stands before it.
		require.Equal(t, string(rehash(append(bytes.Clone(line), '\n'))), string(line)+"\n")
		require.Len(t, hash, hashText)
		require.NotEmpty(t, r)
	})
}

func BenchmarkWrite(b *testing.B) {
	l, err := Open(config(b.TempDir()))
	require.NoError(b, err)
	defer func() { require.NoError(b, l.Close()) }()
	for b.Loop() {
		l.Write(write("a"))
	}
}

// filled returns the directory of a log with all chains, in several files.
func filled(t *testing.T, sign Signer) string {
	t.Helper()
	c, forward := movable(t.TempDir())
	c.MaxBytes, c.MaxFiles, c.RefusalBytes, c.Sign = 2000, 3, 1500, sign
	l, err := Open(c)
	require.NoError(t, err)
	for i := range 20 {
		l.Write(write(fmt.Sprint("w-", i)))
		l.Write(denial(fmt.Sprint("user-", i), "192.0.2.7:1"))
		l.Write(refusal(fmt.Sprintf("192.0.2.%d:1", i), "unknown", "TOKEN_REFUSED"))
		forward(SyncEvery)
		l.flush()
	}
	require.NoError(t, l.Close())
	return c.Dir
}

// Whatever is done to the files of any chain is found, and said with the place.
func TestTamperingIsFound(t *testing.T) {
	lines := func(path string) [][]byte {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return bytes.SplitAfter(data, []byte("\n"))
	}
	put := func(path string, lines ...[]byte) {
		require.NoError(t, os.WriteFile(path, bytes.Join(lines, nil), 0o600))
	}
	sound := filled(t, nil)
	require.Empty(t, verifyDir(t, sound).Problems)
	again := func(t *testing.T) string {
		dir := filepath.Join(t.TempDir(), "audit")
		require.NoError(t, os.CopyFS(dir, os.DirFS(sound)))
		return dir
	}
	for _, chain := range []string{"audit", "denied", "refused"} {
		for name, tc := range map[string]struct {
			change func(oldest, current string)
			want   string
		}{
			"the tail is cut off": {func(_, current string) {
				put(current, lines(current)[:1]...)
			}, "missing at the end, by the checkpoint"},
			"the current file is removed": {func(_, current string) {
				require.NoError(t, os.Remove(current))
			}, chain + ".log: the file is missing"},
			"the oldest file is removed": {func(oldest, _ string) {
				require.NoError(t, os.Remove(oldest))
			}, "missing at the beginning, by the checkpoint"},
			"the oldest file is emptied": {func(oldest, _ string) {
				put(oldest)
			}, "missing at the beginning, by the checkpoint"},
			"a record is removed": {func(oldest, _ string) {
				all := lines(oldest)
				put(oldest, slices.Delete(all, 1, 2)...)
			}, "is missing before record"},
			"records are reordered": {func(oldest, _ string) {
				all := lines(oldest)
				all[0], all[1] = all[1], all[0]
				put(oldest, all...)
			}, "it was moved, copied or inserted"},
			"a record is replaced": {func(oldest, _ string) {
				all := lines(oldest)
				all[0] = rehash(bytes.Replace(all[0], []byte(`"method":"m`), []byte(`"method":"x`), 1))
				put(oldest, all...)
			}, "that one was altered or replaced"},
			"a record is altered": {func(oldest, _ string) {
				all := lines(oldest)
				all[0] = bytes.Replace(all[0], []byte(`"method":"m`), []byte(`"method":"x`), 1)
				put(oldest, all...)
			}, ":1: its hash does not fit: it was altered"},
			"a file is replaced by another": {func(oldest, current string) {
				put(oldest, lines(current)...)
			}, "it was moved, copied or inserted"},
			"the file within is cut": {func(oldest, _ string) {
				all := bytes.Join(lines(oldest), nil)
				put(oldest, all[:len(all)-10])
			}, "the file ends within a record"},
		} {
			t.Run(chain+": "+name, func(t *testing.T) {
				dir := again(t)
				files, err := rotated(dir, chain)
				require.NoError(t, err)
				tc.change(files[0], filepath.Join(dir, chain+".log"))
				problems := ""
				for _, p := range verifyDir(t, dir).Problems {
					problems += p.String() + "\n"
				}
				require.Contains(t, problems, tc.want)
			})
		}
	}
	t.Run("a record is moved to another chain", func(t *testing.T) {
		dir := again(t)
		current := filepath.Join(dir, "denied.log")
		put(filepath.Join(dir, "refused.log"), append(lines(filepath.Join(dir, "refused.log")), lines(current)[0])...)
		require.Contains(t, verifyDir(t, dir).Problems[0].What, "stands among those of refused: it was moved or copied")
	})
	t.Run("a record is appended", func(t *testing.T) {
		dir := again(t)
		current := filepath.Join(dir, CurrentFile)
		all := lines(current)
		put(current, append(all, rehash(bytes.Replace(all[len(all)-2], []byte(`"seq":20`), []byte(`"seq":21`), 1)))...)
		require.Contains(t, verifyDir(t, dir).Problems[0].What, "record 21 does not follow from the one before it")
	})
}

// authority returns a server's certificate and its CA.
func authority(t *testing.T) (*pki.PKI, *x509.CertPool) {
	t.Helper()
	p, err := pki.Open(pki.Config{DataDir: t.TempDir(), Name: "global-1", Hosts: []string{"localhost"}, Now: clock, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(p.CAPEM()))
	return p, roots
}

// A checkpoint that an attacker made fits the log, and is not signed by the server.
func TestTheCheckpointIsSigned(t *testing.T) {
	server, roots := authority(t)
	other, _ := authority(t)
	head := func(dir string) Head {
		h, err := ReadHead(filepath.Join(dir, HeadFile))
		require.NoError(t, err)
		return h
	}
	dir := filled(t, server.Sign)
	good := head(dir)
	signer, err := good.CheckSignature(roots)
	require.NoError(t, err)
	require.Equal(t, "global-1", signer)

	shorter := good
	shorter.Seq--
	_, err = shorter.CheckSignature(nil)
	require.EqualError(t, err, "its signature is not by the key of its certificate: it was altered")
	refusals := good
	refusals.Refusals = map[string]Mark{}
	_, err = refusals.CheckSignature(nil)
	require.Error(t, err, "every chain is signed")
	foreign := head(filled(t, other.Sign))
	_, err = foreign.CheckSignature(nil)
	require.NoError(t, err)
	_, err = foreign.CheckSignature(roots)
	require.ErrorContains(t, err, "its certificate is not one of the CA")
	unsigned := head(filled(t, nil))
	_, err = unsigned.CheckSignature(nil)
	require.ErrorIs(t, err, ErrUnsigned)

	// The server notices a checkpoint that it did not sign, or that is gone.
	c := config(dir)
	c.Sign, c.Roots = server.Sign, roots
	for note, change := range map[string]func(){
		"the checkpoint: its certificate is not one of the CA": func() {
			data, err := json.Marshal(foreign)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, HeadFile), data, 0o600))
		},
		"the checkpoint is missing": func() { require.NoError(t, os.Remove(filepath.Join(dir, HeadFile))) },
	} {
		change()
		l, err := Open(c)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		all := records(t, dir)
		require.True(t, slices.ContainsFunc(all, func(r Record) bool { return r.Decision == Noted && strings.Contains(r.Message, note) }), note)
		again := head(dir)
		_, err = again.CheckSignature(roots)
		require.NoError(t, err, "what it writes next is signed")
	}
}
