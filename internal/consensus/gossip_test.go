package consensus

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func openGossip(t *testing.T, name, cluster string, key byte) *Gossip {
	t.Helper()
	secret := make([]byte, GossipKeyBytes)
	secret[0] = key
	g, err := OpenGossip(GossipConfig{
		Addr: "127.0.0.1:0", Self: Member{Name: name, GRPC: name + ":1", Raft: name + ":2"},
		ClusterID: cluster, Key: secret, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

func TestGossipSpreadsAddresses(t *testing.T) {
	a, b := openGossip(t, "a", "cluster", 1), openGossip(t, "b", "cluster", 1)
	require.Equal(t, []Member{{"a", "a:1", "a:2"}}, a.Members())
	_, err := b.list.Join([]string{a.Addr()})
	require.NoError(t, err)
	both := []Member{{"a", "a:1", "a:2"}, {"b", "b:1", "b:2"}}
	require.Equal(t, both, b.Members())
	require.Eventually(t, func() bool { return len(a.Members()) == 2 }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, both, a.Members())
}

func TestGossipHearsNobodyElse(t *testing.T) {
	a := openGossip(t, "a", "cluster", 1)
	for name, stranger := range map[string]*Gossip{
		"other key":     openGossip(t, "b", "cluster", 2),
		"other cluster": openGossip(t, "c", "elsewhere", 1),
	} {
		_, err := stranger.list.Join([]string{a.Addr()})
		require.Error(t, err, name)
		require.Len(t, a.Members(), 1, name)
	}
}

func TestGossipAddressInUse(t *testing.T) {
	a := openGossip(t, "a", "cluster", 1)
	_, err := OpenGossip(GossipConfig{Addr: a.Addr(), Self: Member{Name: "b"}, Key: make([]byte, GossipKeyBytes), Logger: slog.New(slog.DiscardHandler)})
	require.ErrorIs(t, err, ErrAddrInUse)
	_, err = OpenGossip(GossipConfig{Addr: "nonsense", Key: make([]byte, GossipKeyBytes)})
	require.ErrorContains(t, err, "gossip address")
	_, err = OpenGossip(GossipConfig{Addr: "127.0.0.1:0", Key: []byte("short")})
	require.ErrorContains(t, err, "32 bytes")
}
