package atomicfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/atomicfile"
)

// holds checks what a path holds, its permissions, and that nothing else is left
// in its directory.
func holds(t *testing.T, path, content string, perm fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, perm, info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestWriteReplacesContentAndPermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, atomicfile.Write(path, []byte("old"), 0o644))
	holds(t, path, "old", 0o644)
	require.NoError(t, atomicfile.Write(path, []byte("new"), 0o600))
	holds(t, path, "new", 0o600)
}

func TestAReaderKeepsTheOldContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, atomicfile.Write(path, []byte("old"), 0o600))
	reader, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = reader.Close() }()
	require.NoError(t, atomicfile.Write(path, []byte("new"), 0o600))
	data := make([]byte, 3)
	_, err = reader.Read(data)
	require.NoError(t, err)
	require.Equal(t, "old", string(data))
}

func TestAFailedWriteLeavesNothingBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "taken")
	require.NoError(t, os.Mkdir(path, 0o700))
	require.ErrorContains(t, atomicfile.Write(path, []byte("new"), 0o600), "write "+path)
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Error(t, atomicfile.Write(filepath.Join(path, "absent", "file"), nil, 0o600))
}

func TestCommitNewNeverReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for i, want := range []error{nil, fs.ErrExist} {
		f, err := atomicfile.Create(path, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString([]string{"first", "second"}[i])
		require.NoError(t, err)
		require.ErrorIs(t, f.CommitNew(), want)
		holds(t, path, "first", 0o600)
	}
}

func TestDiscard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := atomicfile.Create(path, 0o600)
	require.NoError(t, err)
	f.Discard()
	require.NoFileExists(t, f.Name())
	require.NoFileExists(t, path)
}
