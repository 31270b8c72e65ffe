package atomicfile

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALargeFileIsSyncedWhileItIsWritten: however it is written, there are never more than
// SyncEvery bytes, and what one call writes, that are not on disk.
func TestALargeFileIsSyncedWhileItIsWritten(t *testing.T) {
	part := bytes.Repeat([]byte("x"), 1<<20)
	for name, write := range map[string]func(*File) error{
		"write": func(f *File) error {
			for range 20 {
				if _, err := f.Write(part); err != nil {
					return err
				}
			}
			return nil
		},
		"string": func(f *File) error {
			for range 20 {
				if _, err := f.WriteString(string(part)); err != nil {
					return err
				}
			}
			return nil
		},
		"copy": func(f *File) error {
			_, err := io.Copy(f, io.LimitReader(endless{}, 20<<20))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			f, err := Create(path, 0o600)
			require.NoError(t, err)
			var synced []int64
			f.sync = func() error {
				info, err := f.Stat()
				require.NoError(t, err)
				synced = append(synced, info.Size())
				return f.Sync()
			}
			require.NoError(t, write(f))
			require.NoError(t, f.Commit())
			require.Equal(t, []int64{4 << 20, 8 << 20, 12 << 20, 16 << 20, 20 << 20, 20 << 20}, synced)
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.EqualValues(t, 20<<20, info.Size())
		})
	}
}

// endless has bytes without end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
