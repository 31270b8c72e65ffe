package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
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

// ServerIdentity returns the server that a peer's certificate was made for
// (Config.Identity), "" when it names none.
func ServerIdentity(state tls.ConnectionState) string {
	if len(state.PeerCertificates) == 0 {
		return ""
	}
	return identityOf(state.PeerCertificates[0])
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
