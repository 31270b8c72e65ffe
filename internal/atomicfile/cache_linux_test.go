package atomicfile_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"meridian/internal/atomicfile"
)

// resident counts the pages of a file that are in the kernel's memory.
func resident(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	require.NoError(t, err)
	pages, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { _ = unix.Munmap(pages) }()
	in := make([]byte, (len(pages)+os.Getpagesize()-1)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&pages[0])), uintptr(len(pages)), uintptr(unsafe.Pointer(&in[0])))
	require.Zero(t, errno)
	return len(in) - len(slices.DeleteFunc(in, func(b byte) bool { return b&1 == 1 }))
}

func TestDropCacheReadsFromTheDisk(t *testing.T) {
	require.ErrorIs(t, atomicfile.DropCache(filepath.Join(t.TempDir(), "absent")), fs.ErrNotExist)
	path := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("content"), 100_000)
	require.NoError(t, atomicfile.Write(path, content, 0o600))
	var fsys unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &fsys))
	if fsys.Type == unix.TMPFS_MAGIC || fsys.Type == unix.OVERLAYFS_SUPER_MAGIC {
		t.Skip("this file system is not on a disk of its own")
	}
	require.NotZero(t, resident(t, path))
	require.NoError(t, atomicfile.DropCache(path))
	require.Zero(t, resident(t, path))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, data)
}
