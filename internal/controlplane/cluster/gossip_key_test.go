package cluster

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/gossip"
	"meridian/internal/server"
)

// TestGossipKeyFile: a key is made once and read again; a file given by flag may
// hold several, so that keys can be rotated.
func TestGossipKeyFile(t *testing.T) {
	var cfg Config
	cfg.DataDir = t.TempDir()
	made, err := gossipKeys(cfg, nil)
	require.NoError(t, err)
	require.Len(t, made, 1)
	again, err := gossipKeys(cfg, nil)
	require.NoError(t, err)
	require.Equal(t, made, again)

	one, two := bytes.Repeat([]byte{1}, gossip.KeyBytes), bytes.Repeat([]byte{2}, gossip.KeyBytes)
	line := base64.StdEncoding.EncodeToString
	cfg.GossipKeyFile = filepath.Join(t.TempDir(), "keys")
	for content, want := range map[string][][]byte{
		line(one): {one},
		"# new\n" + line(two) + "\n\n" + line(one): {two, one},
		"":                           nil,
		"# nothing\n":                nil,
		line(one) + "\nnonsense":     nil,
		line([]byte("short")) + "\n": nil,
	} {
		require.NoError(t, os.WriteFile(cfg.GossipKeyFile, []byte(content), 0o600))
		keys, err := gossipKeys(cfg, nil)
		if want == nil {
			var usage *server.UsageError
			require.ErrorAs(t, err, &usage, "%q", content)
			require.ErrorContains(t, err, "32 bytes in base64", "%q", content)
			continue
		}
		require.NoError(t, err, "%q", content)
		require.Equal(t, want, keys, "%q", content)
	}
}
