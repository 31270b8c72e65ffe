package zone

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"meridian/internal/clientconfig"
	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/server"
)

func TestSettingsThatContradictEachOther(t *testing.T) {
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"no name":                {func(c *Config) { c.Name = "" }, "--name is required"},
		"name":                   {func(c *Config) { c.Name = "East!" }, `--name "East!" cannot be the name of a zone`},
		"bundle and address":     {func(c *Config) { c.JoinBundle, c.GlobalAddrs = "b", []string{"x:1"} }, "--join-bundle already holds"},
		"address without token":  {func(c *Config) { c.GlobalAddrs = []string{"x:1"} }, "--global-addr and --token-file go together"},
		"servers without a port": {func(c *Config) { c.Servers.Name = "one" }, "--server-name is for a zone of several servers: say with --raft-addr"},
		"bundle without a port":  {func(c *Config) { c.Servers.JoinBundle = "b" }, "--server-bundle is for a zone of several servers"},
		"gossip without a port":  {func(c *Config) { c.Servers.GossipAddr = "a:1" }, "--gossip-addr is for a zone of several servers: say with --raft-addr"},
		"names without a port":   {func(c *Config) { c.Servers.PeerNames = []string{"south"} }, "--peer-names is for a zone of several servers"},
		"two ways to join": {func(c *Config) {
			c.Servers.RaftAddr, c.Servers.JoinBundle, c.Servers.Join = "a:1", "b", []string{"c:1"}
		}, "--server-bundle already holds what --join says"},
		"name of a server":      {func(c *Config) { c.Servers.RaftAddr, c.Servers.Name = "a:1", "a b" }, "--server-name: \"a b\" cannot be"},
		"grace":                 {func(c *Config) { c.DataplaneGrace = -1 }, "--dataplane-grace -1ns: a time is not negative"},
		"token without address": {func(c *Config) { c.TokenFile = "t" }, "--global-addr and --token-file go together"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &Config{}
			c.Bind(pflag.NewFlagSet("zone", pflag.ContinueOnError))
			c.DataDir, c.Name = "d", "east"
			require.NoError(t, c.Validate())
			tt.change(c)
			err := c.Validate()
			var usage *server.UsageError
			require.ErrorAs(t, err, &usage)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestGlobalGivenByFlags(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	c := &Config{Name: "east", GlobalAddrs: []string{"a:1", "b:2"}, TokenFile: token}
	_, err := c.bundle()
	require.ErrorContains(t, err, "--token-file")
	require.NoError(t, os.WriteFile(token, []byte("\n"), 0o600))
	_, err = c.bundle()
	require.ErrorContains(t, err, "the file is empty")
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	bundle, err := c.bundle()
	require.NoError(t, err)
	require.Equal(t, "secret", bundle.Token)
	require.Equal(t, []string{"a:1", "b:2"}, bundle.Addresses)
}

// A token is renewed by writing the next one where the last one was.
func TestTokenIsReadAnew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	c := Config{Name: "east", GlobalAddrs: []string{"a:1"}, TokenFile: file}
	var said strings.Builder
	token := tokenSource(func(context.Context) (clientconfig.ZoneBundle, error) { return c.readBundle() }, "first", slog.New(slog.NewTextHandler(&said, nil)))
	is := func(want string) {
		t.Helper()
		got, err := token(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	is("first")
	is("first")
	require.Equal(t, 1, strings.Count(said.String(), "cannot be read again"), "said once: %s", said.String())
	require.NoError(t, os.WriteFile(file, []byte("second\n"), 0o600))
	is("second")
	require.NoError(t, os.WriteFile(file, nil, 0o600)) // as it is being written
	is("second")
	require.Equal(t, 2, strings.Count(said.String(), "cannot be read again"))
	require.NotContains(t, said.String(), "second")
}

// §1.3: a data directory is standalone or federated for life.
func TestModeIsForLife(t *testing.T) {
	dir := t.TempDir()
	east := mode{FormatVersion: 1, Name: "east", Federated: true}
	require.NoError(t, checkMode(dir, east))
	require.NoError(t, checkMode(dir, east), "the same again is fine")
	require.ErrorContains(t, checkMode(dir, mode{FormatVersion: 1, Name: "west", Federated: true}), `belongs to zone "east", not "west"`)
	require.ErrorContains(t, checkMode(dir, mode{FormatVersion: 1, Name: "east"}), "belongs to a zone of a global, and would now be used for a standalone zone; that never changes: start it with --join-bundle or --global-addr")
	path := filepath.Join(dir, modeFile)
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.ErrorContains(t, checkMode(dir, east), "is damaged")
	require.NoError(t, os.WriteFile(path, []byte(`{"formatVersion": 2, "name": "east", "federated": true}`), 0o600))
	require.ErrorContains(t, checkMode(dir, east), "newer release")
}

// A server of a zone of several that is started without --raft-addr is told so, whatever
// its name.
func TestAServerOfSeveralNeedsItsPort(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, checkMode(dir, mode{FormatVersion: 1, Name: "east"}))
	owner := raftlog.Owner{Role: string(consensus.RoleZone), NodeID: "two"}
	of, err := raftlog.OpenDataDir(raftlog.Files(dir), owner)
	require.NoError(t, err)
	require.NoError(t, of.Claim(owner))
	of.Keep()
	of.Close()

	for zone, want := range map[string]string{
		"east": `it is of one of several servers of zone "east": say with --raft-addr HOST:PORT`,
		"west": `is of a server with the name "two", not "west"`,
	} {
		err := Run(t.Context(), Config{
			Options: server.Options{DataDir: dir, GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"}, Name: zone,
		}, slog.New(slog.DiscardHandler), nil)
		require.ErrorContains(t, err, want)
	}
}
