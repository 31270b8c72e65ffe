package consensus

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"meridian/internal/raftlog"
)

// TestReadOnlyDataDir runs without the right to override permissions, which the
// superuser has.
func TestReadOnlyDataDir(t *testing.T) {
	parent := t.TempDir()
	require.NoError(t, os.Chmod(parent, 0o500))
	defer func() { require.NoError(t, os.Chmod(parent, 0o700)) }()
	outcome := make(chan error, 3)
	go func() {
		defer close(outcome)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := dropOverride(); err != nil {
			return
		}
		for _, dir := range []string{parent, filepath.Join(parent, "data")} {
			_, err := openDataDir(testConfig(dir))
			outcome <- err
		}
	}()
	opened := 0
	for err := range outcome {
		require.ErrorIs(t, err, raftlog.ErrDataDirReadOnly)
		opened++
	}
	if opened == 0 {
		t.Skip("this system does not let a thread give up capabilities")
	}
	names, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Empty(t, names)
}

// dropOverride gives up, for this thread, the capability to ignore permissions.
func dropOverride() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_DAC_OVERRIDE
	return unix.Capset(&header, &data[0])
}
