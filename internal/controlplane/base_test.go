package controlplane

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/server"
)

// Encryption keys that every user of the host can read are warned about; those of the
// server's user, or its group, are not.
func TestEncryptionKeysThatOthersCanRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 0o600))
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true, 0o604: true} {
		require.NoError(t, os.Chmod(file, mode))
		var log bytes.Buffer
		b := &Base{Options: server.Options{DataDir: t.TempDir(), EncryptionKeyFile: file}, Log: slog.New(slog.NewTextHandler(&log, nil))}
		require.NoError(t, b.loadKeys())
		require.True(t, b.Encrypts())
		require.Equal(t, warned, bytes.Contains(log.Bytes(), []byte("every user of this host can read the encryption keys")), mode)
	}
	b := &Base{Options: server.Options{DataDir: t.TempDir()}, Log: slog.New(slog.DiscardHandler)}
	require.NoError(t, b.loadKeys())
	require.False(t, b.Encrypts())
}
