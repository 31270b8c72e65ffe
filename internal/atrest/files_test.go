package atrest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file follows the keys: turned on, rotated by two keys, turned off.
func TestFilesFollowTheKeys(t *testing.T) {
	const secret = "the secret"
	path := filepath.Join(t.TempDir(), "a.key")
	require.NoError(t, os.WriteFile(path, []byte(secret), 0o644))
	for _, step := range []struct {
		name      string
		keys      *Keys
		encrypted bool
	}{
		{"never on", nil, false},
		{"turned on", keys(t, line(1)), true},
		{"the same", keys(t, line(1)), true},
		{"rotated", keys(t, line(2), line(1)), true},
		{"the old key is gone", keys(t, line(2)), true},
		{"turned off", keys(t, Off+"\n", line(2)), false},
		{"without the flag", nil, false},
	} {
		before, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, step.keys.CheckFiles(path), step.name)
		require.NoError(t, step.keys.RewriteFiles(100, path), step.name)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, step.encrypted, IsEncrypted(data), step.name)
		require.Equal(t, step.encrypted, !strings.Contains(string(data), secret), step.name)
		require.True(t, step.keys.Current(data), step.name)
		read, err := step.keys.ReadFile(path, 100)
		require.NoError(t, err)
		require.Equal(t, secret, string(read), step.name)
		after, err := os.Stat(path)
		require.NoError(t, err)
		rewritten := step.name == "turned on" || step.name == "rotated" || step.name == "turned off"
		require.Equal(t, rewritten, !os.SameFile(before, after), step.name)
		if rewritten {
			require.Equal(t, fs.FileMode(0o600), after.Mode().Perm(), step.name)
		}
	}
}

func TestFilesNameTheKeyThatIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.key")
	require.NoError(t, keys(t, line(1)).WriteFile(path, []byte("x")))
	first, _ := keys(t, line(1)).First()
	for _, k := range []*Keys{nil, keys(t, line(2))} {
		err := k.CheckFiles(filepath.Join(t.TempDir(), "none"), path)
		require.ErrorIs(t, err, ErrNoKey)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, first.String())
		_, err = k.ReadFile(path, 100)
		require.ErrorIs(t, err, ErrNoKey)
		require.ErrorIs(t, k.RewriteFiles(100, path), ErrNoKey)
	}
	_, err := keys(t, line(1)).ReadFile(path, 0)
	require.ErrorContains(t, err, "more than the 0 bytes")
}

// What a crash left of a write in plain text does not stay beside the encrypted file.
func TestLeftoversOfFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.key")
	k := keys(t, line(1))
	require.NoError(t, k.WriteFile(path, []byte("x")))
	for _, name := range []string{".a.key.123", ".a.key.", ".a.key.bak", ".b.key.123"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	require.NoError(t, k.RewriteFiles(100, path, filepath.Join(dir, "missing", "b")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{".a.key.", ".a.key.bak", ".b.key.123", "a.key"}, names)
}
