package zone

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/atrest"
	"meridian/internal/clientconfig"
	"meridian/internal/controlplane"
	"meridian/internal/server"
)

// A server takes its way to the global from the others where they follow one and it is not
// told: when it joins, and from then on. What it is told wins.
func TestWhoInheritsTheWayToTheGlobal(t *testing.T) {
	write := func(federated bool) string {
		data, err := clientconfig.ServerBundle{Zone: "east", Federated: federated, Cluster: "c", Addresses: []string{"a:1"}, Token: "t"}.Encode()
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "two.bundle")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		return path
	}
	dir := t.TempDir()
	config := func(bundle string) *Config {
		c := &Config{Options: server.Options{DataDir: dir}, Name: "east"}
		c.Servers.RaftAddr, c.Servers.JoinBundle = "a:1", bundle
		return c
	}
	federated := write(true)
	require.True(t, config(federated).inherits())
	require.False(t, config(write(false)).inherits(), "the zone is standalone")
	require.False(t, config("").inherits())
	require.False(t, config("absent").inherits(), "joining says what is wrong")
	told := config(federated)
	told.JoinBundle = "b"
	require.False(t, told.inherits())
	told = config(federated)
	told.GlobalAddrs = []string{"g:1"}
	require.False(t, told.inherits())

	require.NoError(t, os.WriteFile(filepath.Join(dir, wayFile), nil, 0o600))
	require.True(t, config("").inherits(), "it has it")
	alone := config("")
	alone.Servers.RaftAddr = ""
	require.False(t, alone.inherits())
	require.False(t, told.inherits())
}

// What is kept is a secret, and is read again for every connection.
func TestTheInheritedWayIsKept(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keyFile, []byte("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"), 0o600))
	keys, err := atrest.Load(keyFile)
	require.NoError(t, err)
	z := &zone{Base: &controlplane.Base{Encryption: keys}, cfg: Config{Options: server.Options{DataDir: t.TempDir()}, Name: "east", inherited: true}}
	path := filepath.Join(z.cfg.DataDir, wayFile)

	err = z.openWay()
	var usage *server.UsageError
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "is missing, which says how this server reaches the global: say it with --join-bundle")
	require.NoError(t, z.keepWay(&meridianv1.GlobalAccess{Addresses: []string{"g:1"}, Token: "first"}))
	require.NoError(t, z.openWay())
	require.Equal(t, clientconfig.ZoneBundle{Zone: "east", Addresses: []string{"g:1"}, Token: "first"}, z.bundle)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(data), "first", "it is encrypted")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	require.NoError(t, z.keepWay(&meridianv1.GlobalAccess{Addresses: []string{"g:1"}, Token: "second"}))
	way, err := z.readWay()
	require.NoError(t, err)
	require.Equal(t, "second", way.Token)
	require.Error(t, z.keepWay(&meridianv1.GlobalAccess{Token: "third"}), "a way without an address is none")

	z.cfg.Name = "west"
	_, err = z.readWay()
	require.ErrorIs(t, err, clientconfig.ErrBundleZone)
	require.ErrorContains(t, err, "delete it, and say it with --join-bundle")
}
