package token

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/pki"
)

func TestKeysSurviveTheirEncodings(t *testing.T) {
	key := newKey(t, ForZone, 3)
	data, err := key.PEM()
	require.NoError(t, err)
	back, err := ParseSigningKey(key.ID(), data)
	require.NoError(t, err)
	require.Equal(t, key, back)

	der, err := key.Public().PKIX()
	require.NoError(t, err)
	public, err := ParsePublicKey(key.ID(), der)
	require.NoError(t, err)
	require.Equal(t, key.Public(), public)
}

func TestKeyIDs(t *testing.T) {
	id, err := ParseKeyID("zone-token-signing-key-12")
	require.NoError(t, err)
	require.Equal(t, KeyID{Use: ForZone, Serial: 12}, id)
	for _, bad := range []string{
		"", "1", "zone-token", "zone-token-signing-key-", "zone-token-signing-key-0", "zone-token-signing-key-01",
		"zone-token-signing-key--1", "other-token-signing-key-1", "zone-token-signing-key-99999999999999999999",
	} {
		_, err := ParseKeyID(bad)
		require.EqualError(t, err, fmt.Sprintf("%q does not name a signing key", bad))
	}
	_, err = GenerateSigningKey(KeyID{Use: "other", Serial: 1})
	require.Error(t, err)
}

func TestBadKeyMaterialIsRefused(t *testing.T) {
	id := KeyID{Use: ForZone, Serial: 1}
	ca, err := pki.NewCA(noon)
	require.NoError(t, err)
	ecdsaKey, err := ca.KeyPEM()
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		"empty":         nil,
		"certificate":   ca.CertificatePEM(),
		"ECDSA":         ecdsaKey,
		"trailing text": append(ecdsaKey, "more"...),
	} {
		_, err := ParseSigningKey(id, data)
		require.ErrorContains(t, err, "reading zone-token-signing-key-1: ", name)
	}
	_, err = ParsePublicKey(id, []byte("key"))
	require.ErrorContains(t, err, "reading the public half of zone-token-signing-key-1: ")
}

func TestSigningKeysDoNotPrint(t *testing.T) {
	key := newKey(t, ForUser, 1)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.Equal(t, "user-token-signing-key-1 (private)", fmt.Sprintf(format, key))
	}
}
