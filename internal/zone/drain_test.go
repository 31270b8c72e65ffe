package zone

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDrainIsKept(t *testing.T) {
	dir := t.TempDir()
	draining, err := loadDrain(dir)
	require.NoError(t, err)
	require.False(t, draining)
	for _, want := range []bool{true, false, true} {
		require.NoError(t, saveDrain(dir, want))
		draining, err = loadDrain(dir)
		require.NoError(t, err)
		require.Equal(t, want, draining)
	}
	for _, broken := range []string{"", "{", `{"formatVersion":2}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, drainFile), []byte(broken), 0o600))
		_, err = loadDrain(dir)
		require.ErrorContains(t, err, "delete the file")
	}
}
