package consensus

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/raftnet/raftnettest"
	"meridian/internal/store"
)

func openError(t *testing.T, cfg Config) error {
	t.Helper()
	n, err := Open(context.Background(), cfg, store.New(store.DefaultOptions()))
	if err == nil {
		require.NoError(t, n.Close())
	}
	require.Error(t, err)
	require.NotContains(t, err.Error(), "\n", "one line")
	return err
}

func TestDataDirInUse(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n, _ := open(t, cfg)
	require.ErrorIs(t, openError(t, cfg), raftlog.ErrDataDirInUse)
	propose(t, n, put("a", 1))
	require.NoError(t, n.Close())
	open(t, cfg)
}

func TestForeignDataDir(t *testing.T) {
	cfg := testConfig(t.TempDir())
	n, _ := open(t, cfg)
	require.NoError(t, n.Close())
	for name, change := range map[string]func(*Config){
		`of a global, not of a zone`:             func(c *Config) { c.Role = RoleZone },
		`the name "one", not "two"`:              func(c *Config) { c.NodeID = "two" },
		`cluster "` + n.ClusterID() + `", not "`: func(c *Config) { c.ClusterID = "other" },
	} {
		other := cfg
		change(&other)
		err := openError(t, other)
		require.ErrorIs(t, err, raftlog.ErrForeignDataDir)
		require.ErrorContains(t, err, name)
	}
	cfg.ClusterID = n.ClusterID()
	n, _ = open(t, cfg)
	require.NoError(t, n.Close())

	identityPath := filepath.Join(cfg.DataDir, "identity.json")
	data, err := os.ReadFile(identityPath)
	require.NoError(t, err)
	newer := strings.Replace(string(data), `"formatVersion": 1`, `"formatVersion": 3`, 1)
	require.NoError(t, os.WriteFile(identityPath, []byte(newer), 0o600))
	require.ErrorIs(t, openError(t, cfg), raftlog.ErrForeignDataDir)
	require.NoError(t, os.WriteFile(identityPath, data[:20], 0o600))
	require.ErrorIs(t, openError(t, cfg), raftlog.ErrCorrupt)
	require.NoError(t, os.Remove(identityPath))
	require.ErrorIs(t, openError(t, cfg), raftlog.ErrForeignDataDir)
}

func TestChosenClusterID(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.ClusterID = "chosen"
	n, st := open(t, cfg)
	require.Equal(t, "chosen", n.ClusterID())
	require.Equal(t, "chosen", st.View().Epoch().ClusterID)
}

func TestDataDirIsAFile(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, os.WriteFile(cfg.DataDir, []byte("x"), 0o600))
	require.ErrorContains(t, openError(t, cfg), cfg.DataDir)
	data, err := os.ReadFile(cfg.DataDir)
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
}

// TestOtherFilesStay: a failed first start removes what it made and nothing
// else.
func TestOtherFilesStay(t *testing.T) {
	cfg := testConfig(t.TempDir())
	other := filepath.Join(cfg.DataDir, "ca.pem")
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	cfg.Transport = raftnet.Config{Addr: "127.0.0.1:port", TLS: raftnettest.NewAuthority(t).Config(t, "one")}
	openError(t, cfg)
	names, err := filepath.Glob(filepath.Join(cfg.DataDir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{other}, names)
}

func TestConfigSaysWhatIsMissing(t *testing.T) {
	cfg := DefaultConfig("")
	cfg.Transport.Addr = "0.0.0.0:1"
	err := cfg.Validate()
	for _, part := range []string{"data directory", "node id", "role", "TLS"} {
		require.ErrorContains(t, err, part)
	}
	cfg = testConfig("d")
	cfg.Timing.Lease = 2 * cfg.Timing.Heartbeat
	require.Error(t, cfg.Validate())
	require.NoError(t, testConfig("d").Validate())
}
