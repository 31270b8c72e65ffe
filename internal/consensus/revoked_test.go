package consensus_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/raftnet/raftnettest"
	"meridian/internal/rpcerr"
)

// keys is a register in memory.
type keys struct {
	mu      sync.Mutex
	removed []string            // guarded by mu
	holders map[string][]string // by key, guarded by mu
}

var _ consensus.Register = (*keys)(nil)

// Removed implements consensus.Register.
func (k *keys) Removed(server string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.removed, server)
}

// Removing implements consensus.Register.
func (k *keys) Removing(_ context.Context, server, _ string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removed = append(k.removed, server)
	return nil
}

// Holders implements consensus.Register.
func (k *keys) Holders(key string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.holders[key])
}

// Record implements consensus.Register.
func (k *keys) Record(_ context.Context, server, key string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.holders[key] = append(k.holders[key], server)
	return nil
}

// A server that asks to be added is known by the key that it proves to have, whatever
// it says, and by what a member says only where that passes the request on.
func TestARevokedKeyJoinsInNoWay(t *testing.T) {
	const gone, good, other = "key of gone", "key of good", "key of other"
	c := overTLS(t, consensus.DefaultConfig("").Timing)
	ca := raftnettest.NewAuthority(t)
	register := &keys{removed: []string{"gone#1"}, holders: map[string][]string{gone: {"gone#1"}}}
	c.also(func(_ *server, cfg *consensus.Config) {
		cfg.Register, cfg.Transport.TLS = register, ca.Config(t, "a")
		cfg.Transport.PeerKey = func(s tls.ConnectionState) string { return "key of " + s.PeerCertificates[0].DNSNames[0] }
	})
	a := c.start("a", nil)
	c.ready(a)
	leader := raft.ServerID(a.node.Servers()[0].ID)

	for name, tc := range map[string]struct {
		// certificate is the caller's, as what it says to be.
		certificate string
		as          raft.ServerID
		forwarded   bool
		key         string
		reason      string
		// recorded is the key that is recorded for the server which was added.
		recorded string
	}{
		"it asks":                                {certificate: "gone", reason: consensus.ReasonCertificateRevoked},
		"it says that it passes on":              {certificate: "gone", forwarded: true, reason: consensus.ReasonCertificateRevoked},
		"it says so, with another key":           {certificate: "gone", forwarded: true, key: good, reason: consensus.ReasonCertificateRevoked},
		"it says that it is a member":            {certificate: "gone", as: leader, forwarded: true, key: good, reason: raftnet.ReasonNotMember},
		"a member passes on what it asked":       {certificate: "good", as: leader, forwarded: true, key: gone, reason: consensus.ReasonCertificateRevoked},
		"a member passes on what another asked":  {certificate: "good", as: leader, forwarded: true, key: other, recorded: other},
		"one that is no member passes it on":     {certificate: "good", as: "unknown#1", forwarded: true, key: other, reason: raftnet.ReasonNotMember},
		"another server asks":                    {certificate: "good", recorded: good},
		"another asks, and names a third's key":  {certificate: "good", forwarded: true, key: other, recorded: good},
		"another asks, and names a revoked one":  {certificate: "good", forwarded: true, key: gone, recorded: good},
		"another asks, and says nothing of keys": {certificate: "good", forwarded: true, recorded: good},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(a.node.Servers())
			asks := raftlog.ServerID(fmt.Sprintf("server%d", before), "1")
			as := tc.as
			if as == "" {
				as = asks
			}
			calling, err := raftnet.Listen(t.Context(), raftnet.Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, tc.certificate)}, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			peers := raftnet.NewPeers(calling, func() string { return "" }, func() raft.ServerID { return as })
			t.Cleanup(func() {
				peers.Close()
				require.NoError(t, calling.Close())
			})
			_, err = peerv1.NewRaftServiceClient(peers.To(a.node.RaftAddr())).AddMember(t.Context(), &peerv1.AddMemberRequest{
				Name: raftlog.NameOf(asks), Disk: raftlog.DiskOf(asks), Raft: fmt.Sprintf("127.0.0.1:%d", before), Fresh: true, CommandFormat: 9,
				Forwarded: tc.forwarded, Key: tc.key,
			})
			if tc.reason != "" {
				require.True(t, rpcerr.HasReason(err, tc.reason), "%v", err)
				require.Len(t, a.node.Servers(), before)
				return
			}
			require.NoError(t, err)
			require.Contains(t, register.Holders(tc.recorded), string(asks))
			require.Len(t, a.node.Servers(), before+1)
		})
	}
}
