package pki

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/atrest"
)

func encryptionKey(t *testing.T, b byte) *atrest.Keys {
	t.Helper()
	keys, err := atrest.Parse([]byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))))
	require.NoError(t, err)
	return keys
}

// requireNoPrivateKey fails when a file of a directory shows a private key.
func requireNoPrivateKey(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		require.NotContains(t, string(data), "PRIVATE KEY", e.Name())
	}
}

// No private key is written in plain text, from the first start to the end of a
// rotation, and without the key nothing is made anew in place of what cannot be read.
func TestPrivateKeysAreEncrypted(t *testing.T) {
	dir := t.TempDir()
	config := testPKI(t, dir, noon)
	config.Encryption = encryptionKey(t, 1)
	p := openPKI(t, config)
	requireNoPrivateKey(t, filepath.Join(dir, pkiDir))

	r, err := NewRotation(p.CA(), noon)
	require.NoError(t, err)
	for range 3 {
		_, err := p.Follow(r)
		require.NoError(t, err)
		requireNoPrivateKey(t, filepath.Join(dir, pkiDir))
		again := openPKI(t, config)
		require.Equal(t, p.CAPEM(), again.CAPEM())
		require.Equal(t, p.Expires(), again.Expires())
		r = r.Next()
	}

	before, err := os.ReadFile(filepath.Join(dir, pkiDir, serverFile))
	require.NoError(t, err)
	for _, keys := range []*atrest.Keys{nil, encryptionKey(t, 2)} {
		config.Encryption = keys
		_, err := Open(config)
		require.ErrorIs(t, err, atrest.ErrNoKey)
	}
	after, err := os.ReadFile(filepath.Join(dir, pkiDir, serverFile))
	require.NoError(t, err)
	require.Equal(t, before, after)

	for _, path := range SecretFiles(dir)[:2] {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, atrest.IsEncrypted(data), path)
	}
}

// What a joining server is handed is encrypted as what it makes itself.
func TestImportsAreEncrypted(t *testing.T) {
	ca, err := NewCA(noon)
	require.NoError(t, err)
	key, err := ca.KeyPEM()
	require.NoError(t, err)
	rotation, err := NewRotation(ca, noon)
	require.NoError(t, err)
	data, err := rotation.Encode()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, ImportCA(dir, encryptionKey(t, 1), ca.CertificatePEM(), key))
	require.NoError(t, ImportRotation(dir, encryptionKey(t, 1), data))
	requireNoPrivateKey(t, filepath.Join(dir, pkiDir))
	config := testPKI(t, dir, noon)
	config.Encryption = encryptionKey(t, 1)
	require.Equal(t, rotation.Trusted(), openPKI(t, config).CAPEM())
}
