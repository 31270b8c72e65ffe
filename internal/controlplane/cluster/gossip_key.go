package cluster

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"meridian/internal/atrest"
	"meridian/internal/gossip"
	"meridian/internal/pki"
	"meridian/internal/server"
)

// gossipKeyFile is the generated key, below the data directory.
const gossipKeyFile = "pki/gossip.key"

// gossipKeys reads the keys that gossip is encrypted with, from the file that
// the configuration names or from the data directory, where one is made on the
// first start. The file holds a key a line: the first is used for what is sent,
// every one for what is received.
func gossipKeys(cfg Config, encryption *atrest.Keys) ([][]byte, error) {
	if cfg.GossipKeyFile != "" {
		keys, err := readGossipKeys(cfg.GossipKeyFile, nil)
		if err != nil {
			return nil, &server.UsageError{Err: fmt.Errorf("--gossip-key-file: %w", err)}
		}
		return keys, nil
	}
	path := filepath.Join(cfg.DataDir, gossipKeyFile)
	keys, err := readGossipKeys(path, encryption)
	if !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	key := make([]byte, gossip.KeyBytes)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a gossip key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make a gossip key: %w", err)
	}
	return [][]byte{key}, encryption.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(key)+"\n"))
}

func readGossipKeys(path string, encryption *atrest.Keys) ([][]byte, error) {
	text, err := encryption.ReadFile(path, pki.MaxSecretBytes)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(key) != gossip.KeyBytes {
			return nil, gossipKeyError(path)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, gossipKeyError(path)
	}
	return keys, nil
}

// reloadGossipKeys reads the keys again, so that they can be replaced while every
// server runs.
func (c *Server) reloadGossipKeys() {
	keys, err := gossipKeys(c.cfg, c.Encryption)
	if err == nil {
		err = c.gossip.Load().SetKeys(keys)
	}
	if err != nil {
		c.Log.Error("cannot reload the keys of gossip: those in use stay", "error", err)
		return
	}
	c.Log.Info("reloaded the keys of gossip", "keys", len(keys))
}

// writeGossipKeys keeps the keys that gossip of the cluster is encrypted with in
// place of one of this server's own.
func writeGossipKeys(dir string, encryption *atrest.Keys, keys [][]byte) error {
	var text strings.Builder
	for _, key := range keys {
		text.WriteString(base64.StdEncoding.EncodeToString(key) + "\n")
	}
	path := filepath.Join(dir, gossipKeyFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the gossip keys: %w", err)
	}
	return encryption.WriteFile(path, []byte(text.String()))
}

func gossipKeyError(path string) error {
	return fmt.Errorf("%s does not hold %d bytes in base64 on each line; make a key with: head -c %d /dev/urandom | base64",
		path, gossip.KeyBytes, gossip.KeyBytes)
}
