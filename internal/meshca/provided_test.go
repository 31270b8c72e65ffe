package meshca_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/meshca"
	"meridian/internal/meshca/meshcatest"
)

// What an operator provides has to be an authority of the mesh in the zone alone, with its
// key, and valid now; else it is said what is wrong, without what was read.
func TestProvidedAuthoritiesThatAreRefused(t *testing.T) {
	now := time.Now()
	read := func(data []byte) error {
		m, err := meshca.ReadMaterial(meshcatest.Zone, "m", data, now)
		if err == nil {
			require.NotContains(t, fmt.Sprintf("%v %+v %#v", m, m, m), "0x")
		}
		return err
	}
	good := meshcatest.Made(t, "m", nil)
	both := append(good.Certificate, good.KeyPEM(t)...)
	require.NoError(t, read(both))
	require.NoError(t, read(append(good.KeyPEM(t), good.Certificate...)), "in either order")
	ec, err := x509.MarshalECPrivateKey(good.Key)
	require.NoError(t, err)
	require.NoError(t, read(append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: ec}), good.Certificate...)), "as openssl ecparam writes keys")

	spoiled := func(change func(*x509.Certificate)) []byte {
		made := meshcatest.Made(t, "m", change)
		return append(made.Certificate, made.KeyPEM(t)...)
	}
	slow, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(slow)
	require.NoError(t, err)
	foreign, other := meshcatest.Made(t, "n", nil), meshcatest.Made(t, "m", nil)
	for what, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":               {nil, "there is no certificate"},
		"no PEM":                {[]byte("certificate"), "there is no certificate"},
		"no key":                {good.Certificate, "there is no key"},
		"no certificate":        {good.KeyPEM(t), "there is no certificate"},
		"a broken certificate":  {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), "cannot be read"},
		"a broken key":          {append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), good.Certificate...), "no ECDSA key"},
		"an RSA key":            {append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), good.Certificate...), "no ECDSA key"},
		"two certificates":      {append(bytes.Clone(both), other.Certificate...), "several certificates"},
		"two keys":              {append(bytes.Clone(both), other.KeyPEM(t)...), "several keys"},
		"another key":           {append(bytes.Clone(good.Certificate), other.KeyPEM(t)...), "the key is not that of the certificate"},
		"of another mesh":       {append(foreign.Certificate, foreign.KeyPEM(t)...), "not constrained to the URIs of east.m"},
		"expired":               {spoiled(func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }), "expired at"},
		"not valid yet":         {spoiled(func(c *x509.Certificate) { c.NotBefore = now.Add(time.Hour) }), "is valid from"},
		"no authority":          {spoiled(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature }), "not the certificate of an authority"},
		"no constraint":         {spoiled(func(c *x509.Certificate) { c.PermittedURIDomains = nil }), "not constrained"},
		"constraint not strict": {spoiled(func(c *x509.Certificate) { c.PermittedDNSDomainsCritical = false }), "not constrained"},
		"host names too":        {spoiled(func(c *x509.Certificate) { c.ExcludedDNSDomains = nil }), "does not exclude"},
	} {
		err := read(c.data)
		require.ErrorContains(t, err, c.want, what)
		require.NotContains(t, err.Error(), "PRIVATE KEY-----")
	}

	// One that another authority signed is no root.
	parent := meshcatest.Made(t, "m", nil)
	template := meshcatest.Made(t, "m", nil).Parsed(t)
	key := meshcatest.NewKey(t)
	der, err = x509.CreateCertificate(rand.Reader, template, parent.Parsed(t), key.Public(), parent.Key)
	require.NoError(t, err)
	child := &meshcatest.Holder{Key: key, Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	require.ErrorContains(t, read(append(child.Certificate, child.KeyPEM(t)...)), "not signed with its own key")
}

// A root that is provided replaces that of the zone in the same steps, and is replaced when
// another one is provided, or none; storage keeps what it is.
func TestProvidedRootsAreReplacedInSteps(t *testing.T) {
	now := time.Now()
	material := func() *meshca.Material {
		made := meshcatest.Made(t, "m", nil)
		m, err := meshca.ReadMaterial(meshcatest.Zone, "m", append(made.Certificate, made.KeyPEM(t)...), now)
		require.NoError(t, err)
		return m
	}
	first, second := material(), material()
	a := meshcatest.Authority(t, "m")
	for i, wanted := range []*meshca.Material{first, second, nil} {
		before := a.Roots()
		published, err := a.Step("ca", wanted, false, now)
		require.NoError(t, err)
		require.Equal(t, meshca.Publishing, published.Phase(), i)
		require.True(t, bytes.HasPrefix(published.Roots(), before), "%d: the last root still signs", i)
		signs, err := published.Step("ca", wanted, true, now)
		require.NoError(t, err)
		require.Equal(t, meshca.Retiring, signs.Phase(), i)
		require.Equal(t, wanted != nil, signs.Status()[0].Provided, i)
		data, err := signs.Marshal()
		require.NoError(t, err)
		a, err = meshca.Parse(meshcatest.Zone, "m", data)
		require.NoError(t, err)
		same, err := a.Step("ca", wanted, true, now)
		require.NoError(t, err)
		require.Same(t, a, same, "nothing is due")
		now = now.Add(2 * time.Hour)
		a, err = a.Step("ca", wanted, true, now)
		require.NoError(t, err)
		require.Equal(t, meshca.Stable, a.Phase(), i)
		a = a.WithLongest(time.Hour)
	}
}
