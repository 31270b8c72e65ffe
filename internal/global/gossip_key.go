package global

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"meridian/internal/consensus"
	"meridian/internal/server"
)

// gossipKeyFile is the generated key, below the data directory.
const gossipKeyFile = "pki/gossip.key"

// gossipKey reads the key that gossip is encrypted with, from the file that the
// configuration names or from the data directory, where it is made on the first
// start.
func gossipKey(cfg Config) ([]byte, error) {
	if cfg.GossipKeyFile != "" {
		key, err := readGossipKey(cfg.GossipKeyFile)
		if err != nil {
			return nil, &server.UsageError{Err: fmt.Errorf("--gossip-key-file: %w", err)}
		}
		return key, nil
	}
	path := filepath.Join(cfg.DataDir, gossipKeyFile)
	key, err := readGossipKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = make([]byte, consensus.GossipKeyBytes)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a gossip key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make a gossip key: %w", err)
	}
	return key, server.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600)
}

func readGossipKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != consensus.GossipKeyBytes {
		return nil, fmt.Errorf("%s does not hold %d bytes in base64; make one with: head -c %d /dev/urandom | base64", path, consensus.GossipKeyBytes, consensus.GossipKeyBytes)
	}
	return key, nil
}
