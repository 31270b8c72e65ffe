package zone

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLearnedServersAreKept(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	given := []string{"a:1"}
	require.Empty(t, loadServers(dir, given, log))
	require.NoError(t, saveServers(dir, given, []string{"b:1", "c:1"}))
	require.Equal(t, []string{"b:1", "c:1"}, loadServers(dir, given, log))
	require.Empty(t, loadServers(dir, []string{"other:1"}, log), "it may be another global's")
	require.NoError(t, os.WriteFile(filepath.Join(dir, serversFile), []byte("{"), 0o600))
	require.Empty(t, loadServers(dir, given, log), "a damaged file holds nothing back")
}
