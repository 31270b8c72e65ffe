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
	"meridian/internal/controlplane"
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

// A rotation that the store has lost continues from what the servers have of it.
func TestARotationContinuesWithoutItsState(t *testing.T) {
	g := &global{
		Base:  &controlplane.Base{Name: "a", Log: slog.New(slog.DiscardHandler), Now: time.Now},
		peers: authority(t, t.TempDir()),
	}
	g.Store = store.New(store.DefaultOptions())
	begin := func(phase pki.Phase) pki.Rotation {
		t.Helper()
		batch, err := g.nextPhase(t.Context(), phase, true)
		require.NoError(t, err)
		require.Len(t, batch.Ops, 1)
		require.NoError(t, g.Store.Apply(g.Store.Revision()+1, batch.Txn).Err)
		r, _, err := storedRotation(g.Store.View())
		require.NoError(t, err)
		require.Equal(t, phase, r.Phase)
		_, err = g.peers.Follow(*r)
		require.NoError(t, err)
		return *r
	}
	lose := func() {
		require.NoError(t, g.Store.Apply(g.Store.Revision()+1, store.Txn{Ops: []store.Op{store.Delete(token.AuthorityKey)}}).Err)
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
