package global

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
func rotating(t *testing.T) (g *global, begin func(pki.Phase) pki.Rotation) {
	t.Helper()
	g = startable(t, simnet.NewNetwork(), "a", nil, 0, nil)
	g.servers.global, g.peers = g, authority(t, t.TempDir())
	g.opened.Store(true)
	t.Cleanup(func() {
		require.NoError(t, g.Node.Close())
		require.NoError(t, g.Audit.Log.Close())
	})
	<-g.Node.Ready()
	return g, func(phase pki.Phase) pki.Rotation {
		t.Helper()
		batch, err := g.nextPhase(t.Context(), phase, true)
		require.NoError(t, err)
		require.NotEmpty(t, batch.Ops)
		_, err = g.Node.Propose(t.Context(), batch.Txn)
		require.NoError(t, err)
		r, _, err := storedRotation(g.Store.View())
		require.NoError(t, err)
		require.Equal(t, phase, r.Phase)
		_, err = g.peers.Follow(*r)
		require.NoError(t, err)
		return *r
	}
}

// A rotation that the store has lost continues from what the servers have of it.
func TestARotationContinuesWithoutItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, begin := rotating(t)
		lose := func() {
			_, err := g.Node.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Delete(token.AuthorityKey)}})
			require.NoError(t, err)
		}
		_, err := g.nextPhase(t.Context(), pki.PhaseSwitch, true)
		require.True(t, rpcerr.HasReason(err, reasonRotation), "%v", err)
		begun := begin(pki.PhaseTrust)
		lose()
		require.Equal(t, begun.New, begin(pki.PhaseTrust).New, "the same again")
		batch, err := g.nextPhase(t.Context(), pki.PhaseTrust, true)
		require.NoError(t, err)
		require.Empty(t, batch.Ops)
		lose()
		require.Equal(t, begun.New, begin(pki.PhaseSwitch).New)
		lose()
		_, err = g.nextPhase(t.Context(), pki.PhaseTrust, true)
		require.True(t, rpcerr.HasReason(err, reasonRotation), "no server goes back: %v", err)
		require.Equal(t, begun.New, begin(pki.PhaseFinish).New)
		require.Equal(t, begun.New, string(g.peers.CAPEM()))
	})
}

// A removed server is named as one that knows the authority until a rotation that began
// after its removal is finished.
func TestARemovedServerKnowsTheAuthorityUntilItIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, begin := rotating(t)
		rotate := func(between func()) {
			t.Helper()
			begin(pki.PhaseTrust)
			between()
			begin(pki.PhaseSwitch)
			require.NotEmpty(t, g.knowAuthority())
			begin(pki.PhaseFinish)
		}
		remove := func(server string) { require.NoError(t, g.servers.Removing(t.Context(), server, "")) }
		require.Empty(t, g.knowAuthority())
		remove("gone#1")
		require.Equal(t, []string{"gone"}, g.knowAuthority())
		rotate(func() { remove("late#1") })
		require.Equal(t, []string{"late"}, g.knowAuthority(), "it had the key that was being brought in")
		status, err := g.rotationStatus(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"late"}, status.GetAuthorityKnownTo())
		rotate(func() {})
		require.Empty(t, g.knowAuthority())
		remove("again#1")
		require.Equal(t, []string{"again"}, g.knowAuthority())

		// With certificates of the operator's, servers have no key of the authority.
		dir := t.TempDir()
		authority(t, dir)
		given := filepath.Join(dir, "pki")
		g.peers, err = pki.Open(pki.Config{
			CertFile: filepath.Join(given, "server.pem"), KeyFile: filepath.Join(given, "server-key.pem"), CAFile: filepath.Join(given, "ca.pem"),
			Now: time.Now, Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		require.Empty(t, g.knowAuthority())
	})
}

// What a server could not write of a phase it writes when that is possible again,
// and so it does the client context.
func TestAServerTriesToFollowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := startable(t, simnet.NewNetwork(), "a", nil, 0, nil)
		defer func() {
			require.NoError(t, g.Node.Close())
			require.NoError(t, g.Audit.Log.Close())
		}()
		g.Options.DataDir, g.Addresses.GRPC = t.TempDir(), "127.0.0.1:5685"
		g.peers = authority(t, g.Options.DataDir)
		g.PKI = g.peers
		<-g.Node.Ready()
		require.NoError(t, g.awaitBootstrap(t.Context()))
		require.NoError(t, g.WriteAdminContext())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.followAuthority(ctx) }()

		// A directory in place of a file cannot be replaced by one.
		block := func(name string) (path string) {
			path = filepath.Join(g.Options.DataDir, name)
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.MkdirAll(filepath.Join(path, "full"), 0o700))
			return path
		}
		settle := func() {
			<-time.After(2 * rotationRetry)
			synctest.Wait()
		}
		rotation, admin := block("pki/rotation.json"), block(server.AdminContextFile)
		batch, err := g.nextPhase(ctx, pki.PhaseTrust, false)
		require.NoError(t, err)
		_, err = g.Node.Propose(ctx, batch.Txn)
		require.NoError(t, err)
		secrets := g.Store.View().Digest(resource.KindGlobalSecret)
		settle()
		require.Nil(t, g.peers.Rotation())

		require.NoError(t, os.RemoveAll(rotation))
		settle()
		require.NotNil(t, g.peers.Rotation())

		require.NoError(t, os.RemoveAll(admin))
		require.NoError(t, os.WriteFile(admin, []byte("{}\n"), 0o600))
		settle()
		contexts, err := clientconfig.LoadContexts(admin)
		require.NoError(t, err)
		entry, err := contexts.Get("a")
		require.NoError(t, err)
		require.Equal(t, string(g.peers.CAPEM()), entry.CA)
		require.Equal(t, secrets, g.Store.View().Digest(resource.KindGlobalSecret), "nothing else has changed")
		stop()
		require.NoError(t, <-ended)
	})
}
