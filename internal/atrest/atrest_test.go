package atrest

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func line(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, keyLen)) + "\n"
}

func keys(t testing.TB, lines ...string) *Keys {
	t.Helper()
	k, err := Parse([]byte(strings.Join(lines, "")))
	require.NoError(t, err)
	return k
}

func TestKeyFiles(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty":     {"", "the file holds no key"},
		"comment":   {"# key\n\n", "the file holds no key"},
		"short":     {"AAAA\n", "line 1 is not a key"},
		"long":      {line(1) + base64.StdEncoding.EncodeToString(make([]byte, 33)), "line 2 is not a key"},
		"text":      {line(1) + "hunter2\n", "line 2 is not a key"},
		"twice":     {line(1) + line(1), "line 2 repeats a key"},
		"late none": {line(1) + "none\n", "line 2 is not a key"},
		"too many":  {strings.Repeat("x", maxKeyFile+1), "no file of keys"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tc.text))
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
	k := keys(t, "# first\n", line(1), "\n", line(2))
	first, ok := k.First()
	require.True(t, ok)
	for _, text := range []string{k.String(), fmt.Sprintf("%v %+v %#v", k, k, k)} {
		require.Contains(t, text, first.String())
		require.NotContains(t, text, "1 1 1")
	}
	_, ok = keys(t, "none\n", line(1)).First()
	require.False(t, ok)

	path := filepath.Join(t.TempDir(), "keys")
	_, err := Load(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	_, err = Load(path)
	require.ErrorContains(t, err, path+": line 1 is not a key")
	none, err := Load("")
	require.NoError(t, err)
	_, ok = none.First()
	require.False(t, ok)
}

// What is sealed is read with every file that has its key, and with no other.
func TestSealAndOpen(t *testing.T) {
	old, rotated, other, off := keys(t, line(1)), keys(t, line(2), line(1)), keys(t, line(3)), keys(t, "none\n", line(1))
	var none *Keys
	for _, size := range []int{1, 2, 100, partLen - 1, partLen, partLen + 1, 3*partLen + 7} {
		data := make([]byte, size)
		_, _ = rand.Read(data)
		sealed, err := old.Seal(data)
		require.NoError(t, err)
		again, err := old.Seal(data)
		require.NoError(t, err)
		require.NotEqual(t, sealed, again)
		if size > 8 {
			require.NotContains(t, string(sealed), string(data[:8]))
		}
		plain, err := Size(sealed, int64(len(sealed)))
		require.NoError(t, err)
		require.EqualValues(t, size, plain)
		for _, k := range []*Keys{old, rotated, off} {
			opened, err := k.Open(sealed)
			require.NoError(t, err)
			require.Equal(t, data, opened)
			require.NoError(t, k.Fits(sealed))
			require.Equal(t, k == old, k.Current(sealed))
		}
		for _, k := range []*Keys{other, none, {}} {
			_, err := k.Open(sealed)
			require.ErrorIs(t, err, ErrNoKey)
			require.ErrorIs(t, k.Fits(sealed), ErrNoKey)
			id, _ := old.First()
			require.ErrorContains(t, err, "key "+id.String())
		}
		id, err := Complete(iotest.OneByteReader(bytes.NewReader(sealed[:min(len(sealed), 1<<30)])))
		require.NoError(t, err)
		require.Equal(t, old.first.id, id)
	}
	for _, k := range []*Keys{none, off} {
		as, err := k.Seal([]byte("open"))
		require.NoError(t, err)
		require.Equal(t, "open", string(as))
		require.True(t, k.Current(as))
	}
	opened, err := old.Open([]byte("open"))
	require.NoError(t, err)
	require.Equal(t, "open", string(opened))
	require.False(t, old.Current([]byte("open")))
}

// Every byte counts: nothing that was altered, cut off or extended is read.
func TestDamageIsFound(t *testing.T) {
	k := keys(t, line(1))
	data := bytes.Repeat([]byte("0123456789abcdef"), 5000) // two parts
	sealed, err := k.Seal(data)
	require.NoError(t, err)
	for i := 0; i < len(sealed); i += max(1, min(997, i-200)) {
		altered := bytes.Clone(sealed)
		altered[i] ^= 1 << (i % 8)
		opened, err := k.Open(altered)
		if i < len(mark) {
			require.NotEqual(t, data, opened, "byte %d", i) // data that is not encrypted
			continue
		}
		require.ErrorIs(t, err, ErrDamaged, "byte %d", i)
		_, err = k.Open(sealed[:i])
		require.ErrorIs(t, err, ErrDamaged, "cut at %d", i)
		_, err = Complete(bytes.NewReader(sealed[:i]))
		require.ErrorIs(t, err, ErrDamaged, "cut at %d", i)
	}
	second := HeaderLen + partLen + partOverhead
	_, err = k.Open(sealed[:second])
	require.ErrorIs(t, err, ErrDamaged, "without its last part")
	_, err = k.Open(append(bytes.Clone(sealed), sealed[second:]...))
	require.ErrorIs(t, err, ErrDamaged, "with its last part twice")
	_, err = Complete(bytes.NewReader(append(bytes.Clone(sealed), 0)))
	require.ErrorIs(t, err, ErrDamaged)
	_, err = Complete(strings.NewReader("type: Mesh"))
	require.EqualError(t, err, "it is not encrypted")

	broken := errors.New("disk on fire")
	_, err = k.Reader(iotest.ErrReader(broken))
	require.ErrorIs(t, err, broken)
	r, err := k.Reader(io.MultiReader(bytes.NewReader(sealed[:HeaderLen+100]), iotest.ErrReader(broken)))
	require.NoError(t, err)
	_, err = io.ReadAll(r)
	require.ErrorIs(t, err, broken)
}

func BenchmarkSeal(b *testing.B) {
	k := keys(b, line(1))
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			data := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := k.Seal(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
