package pki

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNotServer means that a certificate is good, but not that of a server: it
// lacks one of the two uses that servers have for theirs. An authority that also
// signs for people and programs gives those certificates for clients only.
var ErrNotServer = errors.New("the certificate is not for use as a server and as a client")

// VerifyServer decides whether a peer with a certificate of this server's CA is
// another server: its certificate must be for use as a server and as a client, in
// whichever direction it is used now.
func VerifyServer(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the peer shows no certificate")
	}
	return checkServerUse(state.PeerCertificates[0])
}

// ErrNotNamed means that a certificate of an operator's authority names none of the
// names by which servers of the cluster are known. Such an authority signs for others
// too.
var ErrNotNamed = errors.New("the certificate does not name the cluster")

// VerifyNamed decides whether a certificate has one of some names as a subject
// alternative name: a DNS name, an IP address or a URI. Wildcards name nothing.
func VerifyNamed(leaf *x509.Certificate, names []string) error {
	var have []string
	have = append(have, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		have = append(have, ip.String())
	}
	for _, uri := range leaf.URIs {
		have = append(have, uri.String())
	}
	for _, name := range names {
		if slices.ContainsFunc(have, func(h string) bool { return strings.EqualFold(h, name) }) {
			return nil
		}
	}
	return fmt.Errorf("%w: none of its subject alternative names is %s", ErrNotNamed, strings.Join(names, " or "))
}

// CheckNamed is VerifyNamed of this server's own certificate.
func (p *PKI) CheckNamed(names []string) error {
	return VerifyNamed(p.current.Load().server.Leaf, names)
}

// ServerIdentity returns the server that a peer's certificate was made for
// (Config.Identity), "" when it names none.
func ServerIdentity(state tls.ConnectionState) string {
	if len(state.PeerCertificates) == 0 {
		return ""
	}
	return identityOf(state.PeerCertificates[0])
}

// ServerKey identifies the key of a peer's certificate by the SHA-256 of its public
// half, in hexadecimal; "" where the certificate names the server (ServerIdentity).
func ServerKey(state tls.ConnectionState) string {
	if len(state.PeerCertificates) == 0 || ServerIdentity(state) != "" {
		return ""
	}
	sum := sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

func checkServerUse(leaf *x509.Certificate) error {
	has := func(use x509.ExtKeyUsage) bool {
		return len(leaf.ExtKeyUsage) == 0 && len(leaf.UnknownExtKeyUsage) == 0 ||
			slices.Contains(leaf.ExtKeyUsage, use) || slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny)
	}
	switch {
	case !has(x509.ExtKeyUsageServerAuth):
		return fmt.Errorf("%w: serverAuth is missing", ErrNotServer)
	case !has(x509.ExtKeyUsageClientAuth):
		return fmt.Errorf("%w: clientAuth is missing", ErrNotServer)
	}
	return nil
}

// CheckServer returns why the other servers of a global would reject the current
// certificate of this one at a host; nil if they would accept it.
func (p *PKI) CheckServer(host string) error {
	m := p.current.Load()
	leaf := m.server.Leaf
	if err := checkServerUse(leaf); err != nil {
		return err
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return fmt.Errorf("the certificate does not name %s: %w", host, err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(m.caPEM) {
		return errors.New("there is no authority to verify the certificate by")
	}
	for _, der := range m.server.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: p.config.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("the certificate is not signed by the given authority: %w", err)
	}
	return nil
}
