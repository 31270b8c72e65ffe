package cluster

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/server"
	"meridian/internal/store"
)

// A server keeps the name that its data directory was first used with, whatever
// its host is called meanwhile.
func TestServerNameOutlivesTheHosts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	host, err := os.Hostname()
	require.NoError(t, err)
	c := &Config{Kind: Global, Options: server.Options{DataDir: dir}}
	require.Equal(t, host, c.ServerName())

	used := consensus.DefaultConfig(dir)
	used.NodeID, used.Role, used.Logger = "first-name", consensus.RoleGlobal, slog.New(slog.DiscardHandler)
	node, err := consensus.Open(t.Context(), used, store.New(store.DefaultOptions()))
	require.NoError(t, err)
	require.NoError(t, node.Close())
	require.Equal(t, "first-name", c.ServerName())
	c.Name = "given"
	require.Equal(t, "given", c.ServerName(), "a name that is given is checked, not replaced")
}
