package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// authority opens the certificates of a server in a directory.
func authority(t *testing.T, dir string) *pki.PKI {
	t.Helper()
	p, err := pki.Open(pki.Config{DataDir: dir, Name: "a", Hosts: []string{"localhost"}, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return p
}

// rotating is a server that can rotate the authority, with a way to begin each phase. It
// belongs to a bubble of synctest.
func rotating(t *testing.T) (c *Server, begin func(pki.Phase) pki.Rotation) {
	t.Helper()
	c = startable(t, simnet.NewNetwork(), "a", nil, 0, nil)
	c.servers.server, c.peers = c, authority(t, t.TempDir())
	c.opened.Store(true)
	t.Cleanup(func() {
		require.NoError(t, c.Node.Close())
		require.NoError(t, c.Audit.Log.Close())
	})
	<-c.Node.Ready()
	return c, func(phase pki.Phase) pki.Rotation {
		t.Helper()
		batch, err := c.nextPhase(t.Context(), phase, true)
		require.NoError(t, err)
		require.NotEmpty(t, batch.Ops)
		_, err = c.Node.Propose(t.Context(), batch.Txn)
		require.NoError(t, err)
		r, _, err := storedRotation(c.Store.View())
		require.NoError(t, err)
		require.Equal(t, phase, r.Phase)
		_, err = c.peers.Follow(*r)
		require.NoError(t, err)
		return *r
	}
}

// A rotation that the store has lost continues from what the servers have of it.
func TestARotationContinuesWithoutItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, begin := rotating(t)
		lose := func() {
			_, err := c.Node.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Delete(token.AuthorityKey)}})
			require.NoError(t, err)
		}
		_, err := c.nextPhase(t.Context(), pki.PhaseSwitch, true)
		require.True(t, rpcerr.HasReason(err, reasonRotation), "%v", err)
		begun := begin(pki.PhaseTrust)
		lose()
		require.Equal(t, begun.New, begin(pki.PhaseTrust).New, "the same again")
		batch, err := c.nextPhase(t.Context(), pki.PhaseTrust, true)
		require.NoError(t, err)
		require.Empty(t, batch.Ops)
		lose()
		require.Equal(t, begun.New, begin(pki.PhaseSwitch).New)
		lose()
		_, err = c.nextPhase(t.Context(), pki.PhaseTrust, true)
		require.True(t, rpcerr.HasReason(err, reasonRotation), "no server goes back: %v", err)
		require.Equal(t, begun.New, begin(pki.PhaseFinish).New)
		require.Equal(t, begun.New, string(c.peers.CAPEM()))
	})
}

// A removed server is named as one that knows the authority until a rotation that began
// after its removal is finished.
func TestARemovedServerKnowsTheAuthorityUntilItIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, begin := rotating(t)
		rotate := func(between func()) {
			t.Helper()
			begin(pki.PhaseTrust)
			between()
			begin(pki.PhaseSwitch)
			require.NotEmpty(t, c.knowAuthority())
			begin(pki.PhaseFinish)
		}
		remove := func(server string) { require.NoError(t, c.servers.Removing(t.Context(), server, "")) }
		require.Empty(t, c.knowAuthority())
		remove("gone#1")
		require.Equal(t, []string{"gone"}, c.knowAuthority())
		rotate(func() { remove("late#1") })
		require.Equal(t, []string{"late"}, c.knowAuthority(), "it had the key that was being brought in")
		status, err := c.rotationStatus(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"late"}, status.GetAuthorityKnownTo())
		rotate(func() {})
		require.Empty(t, c.knowAuthority())
		remove("again#1")
		require.Equal(t, []string{"again"}, c.knowAuthority())

		// With certificates of the operator's, servers have no key of the authority.
		dir := t.TempDir()
		authority(t, dir)
		given := filepath.Join(dir, "pki")
		c.peers, err = pki.Open(pki.Config{
			CertFile: filepath.Join(given, "server.pem"), KeyFile: filepath.Join(given, "server-key.pem"), CAFile: filepath.Join(given, "ca.pem"),
			Now: time.Now, Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		require.Empty(t, c.knowAuthority())
	})
}

// What a server could not write of a phase it writes when that is possible again,
// and so it does the client context.
func TestAServerTriesToFollowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startable(t, simnet.NewNetwork(), "a", nil, 0, nil)
		defer func() {
			require.NoError(t, c.Node.Close())
			require.NoError(t, c.Audit.Log.Close())
		}()
		c.Options.DataDir, c.Addresses.GRPC = t.TempDir(), "127.0.0.1:5685"
		c.peers = authority(t, c.Options.DataDir)
		c.PKI = c.peers
		<-c.Node.Ready()
		require.NoError(t, c.awaitBootstrap(t.Context()))
		require.NoError(t, c.WriteAdminContext())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.followAuthority(ctx) }()

		// A directory in place of a file cannot be replaced by one.
		block := func(name string) (path string) {
			path = filepath.Join(c.Options.DataDir, name)
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.MkdirAll(filepath.Join(path, "full"), 0o700))
			return path
		}
		settle := func() {
			<-time.After(2 * rotationRetry)
			synctest.Wait()
		}
		rotation, admin := block("pki/rotation.json"), block(server.AdminContextFile)
		batch, err := c.nextPhase(ctx, pki.PhaseTrust, false)
		require.NoError(t, err)
		_, err = c.Node.Propose(ctx, batch.Txn)
		require.NoError(t, err)
		secrets := c.Store.View().Digest(resource.KindGlobalSecret)
		settle()
		require.Nil(t, c.peers.Rotation())

		require.NoError(t, os.RemoveAll(rotation))
		settle()
		require.NotNil(t, c.peers.Rotation())

		require.NoError(t, os.RemoveAll(admin))
		require.NoError(t, os.WriteFile(admin, []byte("{}\n"), 0o600))
		settle()
		contexts, err := clientconfig.LoadContexts(admin)
		require.NoError(t, err)
		entry, err := contexts.Get("a")
		require.NoError(t, err)
		require.Equal(t, string(c.peers.CAPEM()), entry.CA)
		require.Equal(t, secrets, c.Store.View().Digest(resource.KindGlobalSecret), "nothing else has changed")
		stop()
		require.NoError(t, <-ended)
	})
}
