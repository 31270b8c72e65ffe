// Package meshcatest has authorities of meshes for tests, dataplanes with certificates of
// them, and forgeries. All of it is for zone east.
package meshcatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/identity"
	"meridian/internal/meshca"
	"meridian/internal/resource"
)

// Zone is that of all authorities and dataplanes.
const Zone = "east"

// Holder is who has a key and a certificate.
type Holder struct {
	Key         *ecdsa.PrivateKey
	Certificate []byte // PEM
}

// KeyPEM returns the key in PEM.
func (h *Holder) KeyPEM(t require.TestingT) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(h.Key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Pair returns what is presented in a handshake.
func (h *Holder) Pair(t require.TestingT) tls.Certificate {
	pair, err := tls.X509KeyPair(h.Certificate, h.KeyPEM(t))
	require.NoError(t, err)
	return pair
}

// Parsed returns the certificate.
func (h *Holder) Parsed(t require.TestingT) *x509.Certificate {
	c, err := x509.ParseCertificate(h.Pair(t).Certificate[0])
	require.NoError(t, err)
	return c
}

// NewKey makes a key.
func NewKey(t require.TestingT) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// Authority makes an authority of a mesh that signs for an hour.
func Authority(t require.TestingT, mesh resource.MeshName) *meshca.Authority {
	a, err := meshca.New(Zone, mesh, "ca", time.Now())
	require.NoError(t, err)
	return a.WithLongest(time.Hour)
}

// Made is what an operator makes to provide the authority of a mesh: a certificate, which
// change may spoil before it is signed with its own key, and the key.
func Made(t require.TestingT, mesh resource.MeshName, change func(*x509.Certificate)) *Holder {
	host, err := identity.Host(Zone, mesh)
	require.NoError(t, err)
	key := NewKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an operator's authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedURIDomains: []string{host}, ExcludedDNSDomains: []string{""},
		ExcludedIPRanges: []*net.IPNet{{IP: make(net.IP, net.IPv4len), Mask: make(net.IPMask, net.IPv4len)}, {IP: make(net.IP, net.IPv6len), Mask: make(net.IPMask, net.IPv6len)}},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return &Holder{key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// Provided is an authority of a mesh that its operator has made, and that signs for an hour.
func Provided(t require.TestingT, mesh resource.MeshName) *meshca.Authority {
	made := Made(t, mesh, nil)
	m, err := meshca.ReadMaterial(Zone, mesh, append(made.KeyPEM(t), made.Certificate...), time.Now())
	require.NoError(t, err)
	return meshca.Provide(Zone, mesh, "ca", m, time.Now()).WithLongest(time.Hour)
}

// Issue makes a certificate for a dataplane with tags, of which that of the zone is added.
func Issue(t require.TestingT, a *meshca.Authority, mesh resource.MeshName, dataplane string, sets ...resource.Tags) *Holder {
	return IssueOn(t, a, mesh, dataplane, "", sets...)
}

// IssueOn is Issue for a dataplane whose proxy presented the token of an ID; without one,
// no token is told by the certificate.
func IssueOn(t require.TestingT, a *meshca.Authority, mesh resource.MeshName, dataplane, token string, sets ...resource.Tags) *Holder {
	for _, tags := range sets {
		tags[resource.ZoneTag] = Zone
	}
	name, err := identity.Of(Zone, mesh, dataplane, sets)
	require.NoError(t, err)
	if token != "" {
		name = identity.WithCredential(name, identity.Credential(token))
	}
	h := &Holder{Key: NewKey(t)}
	signed, err := a.Sign(&h.Key.PublicKey, name, time.Hour, time.Now())
	require.NoError(t, err)
	h.Certificate = signed.PEM
	return h
}

// Forgeries are what servers of a mesh that trusts ca refuse from a client that holds a
// certificate of it, by what is wrong with each.
func Forgeries(t require.TestingT, ca *meshca.Authority, mesh resource.MeshName, mine *Holder) map[string]tls.Certificate {
	web := resource.Tags{resource.ServiceTag: "web"}
	parent := mine.Parsed(t)
	uri, err := url.Parse("spiffe://" + Zone + "." + string(mesh) + "/dp/admin/_/kuma.io_2Fservice/admin")
	require.NoError(t, err)
	forged := NewKey(t)
	// A dataplane signs with its own key the certificate of another one.
	signed, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: parent.NotBefore, NotAfter: parent.NotAfter, URIs: []*url.URL{uri},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: parent.ExtKeyUsage,
	}, parent, &forged.PublicKey, mine.Key)
	require.NoError(t, err)
	alone := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: parent.NotBefore, NotAfter: parent.NotAfter, URIs: parent.URIs,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: parent.ExtKeyUsage, IsCA: true, BasicConstraintsValid: true,
	}
	self, err := x509.CreateCertificate(rand.Reader, alone, alone, &forged.PublicKey, forged)
	require.NoError(t, err)
	stolen := mine.Pair(t)
	stolen.PrivateKey = forged
	root, _ := pem.Decode(ca.Roots())
	require.NotNil(t, root)
	return map[string]tls.Certificate{
		"of another mesh":                Issue(t, Authority(t, mesh+"n"), mesh+"n", "web-1", web).Pair(t),
		"of another authority":           Issue(t, Authority(t, mesh), mesh, "web-1", web).Pair(t),
		"signed by a dataplane":          {Certificate: [][]byte{signed, parent.Raw}, PrivateKey: forged},
		"signed by itself":               {Certificate: [][]byte{self}, PrivateKey: forged},
		"without its key":                stolen,
		"no certificate":                 {},
		"of the authority's certificate": {Certificate: [][]byte{root.Bytes}, PrivateKey: forged},
	}
}
