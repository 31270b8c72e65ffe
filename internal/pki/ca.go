package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
)

// How long certificates are valid. A server's is renewed when a third of its
// time is left.
const (
	caValidity     = 10 * 365 * 24 * time.Hour
	serverValidity = 365 * 24 * time.Hour
	renewBefore    = serverValidity / 3
	// certificateSkew backdates certificates for clocks that run behind.
	certificateSkew = time.Hour
)

// PEM block types.
const (
	pemCertificate = "CERTIFICATE"
	pemPrivateKey  = "PRIVATE KEY"
)

// CA is a certificate authority with its key: it can sign. It is immutable.
type CA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewCA makes an authority with a P-256 key, valid for ten years from now.
func NewCA(now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the CA's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// The serial keeps the names of two authorities apart in error messages.
		Subject:               pkix.Name{Organization: []string{"Meridian"}, CommonName: fmt.Sprintf("Meridian CA %.8x", serial)},
		NotBefore:             now.Add(-certificateSkew),
		NotAfter:              now.Add(caValidity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		// One authority below this one: the one that replaces it, in a rotation.
		MaxPathLen: 1,
		KeyUsage:   x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA's certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading back the CA's certificate: %w", err)
	}
	return &CA{certificate: certificate, key: key}, nil
}

// ParseCA reads an authority from PEM and checks that the key belongs to the
// certificate and that the certificate may sign.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("reading the CA: its key is %T, not ECDSA", pair.PrivateKey)
	}
	if !pair.Leaf.IsCA {
		return nil, errors.New("reading the CA: the certificate is not that of a CA")
	}
	return &CA{certificate: pair.Leaf, key: key}, nil
}

// CertificatePEM returns what those who trust the authority need.
func (ca *CA) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: ca.certificate.Raw})
}

// KeyPEM returns the private key. It is a secret.
func (ca *CA) KeyPEM() ([]byte, error) { return keyPEM(ca.key) }

// IssueServer makes a key and a certificate by which a server is known under
// hosts (names and IP addresses) and by which it may also call its peers. It is
// valid for a year from now, but never longer than the authority.
func (ca *CA) IssueServer(name string, hosts []string, now time.Time) (certPEM, key []byte, err error) {
	return ca.issue(name, "", hosts, now)
}

// issue makes a server's certificate. identity, unless empty, is what tells the
// server from others of its name (Config.Identity).
func (ca *CA) issue(name, identity string, hosts []string, now time.Time) (certPEM, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generating a server's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"Meridian"}, CommonName: name},
		NotBefore:    now.Add(-certificateSkew),
		NotAfter:     earlier(now.Add(serverValidity), ca.certificate.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if identity != "" {
		template.URIs = []*url.URL{identityURI(identity)}
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, private.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing a server's certificate: %w", err)
	}
	if key, err = keyPEM(private); err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), key, nil
}

// needsRenewal says why a server's certificate no longer serves, "" when it
// does: it runs out, another authority signed it, or it lacks a host.
func (ca *CA) needsRenewal(leaf *x509.Certificate, identity string, hosts []string, now time.Time) string {
	if leaf.CheckSignatureFrom(ca.certificate) != nil {
		return "it was signed by another CA"
	}
	// A certificate cut short by the authority's end is not renewed for that:
	// the next one would end at the same time.
	if now.After(leaf.NotAfter.Add(-renewBefore)) && leaf.NotAfter.Before(ca.certificate.NotAfter) {
		return "it expires on " + leaf.NotAfter.UTC().Format(time.DateOnly)
	}
	if identityOf(leaf) != identity {
		return "it is that of another server"
	}
	for _, host := range hosts {
		if leaf.VerifyHostname(host) != nil {
			return "it does not name " + host
		}
	}
	return ""
}

// ServerHosts returns the names and addresses a server's certificate should
// have: localhost, the loopback addresses, the machine's host name, and the
// host of each address the server listens on. An unspecified address (0.0.0.0,
// ::) stands for the machine's own addresses, given as interfaces. The result
// is sorted and has no duplicates.
func ServerHosts(hostname string, listen []string, interfaces []net.Addr) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if hostname != "" {
		hosts = append(hosts, strings.ToLower(hostname))
	}
	for _, address := range listen {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = address
		}
		ip := net.ParseIP(host)
		switch {
		case host == "" || ip != nil && ip.IsUnspecified():
			for _, a := range interfaces {
				if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
					hosts = append(hosts, n.IP.String())
				}
			}
		case ip != nil:
			hosts = append(hosts, ip.String())
		default:
			hosts = append(hosts, strings.ToLower(host))
		}
	}
	// A certificate holds ASCII names only.
	hosts = slices.DeleteFunc(hosts, func(host string) bool {
		return strings.ContainsFunc(host, func(r rune) bool { return r > unicode.MaxASCII })
	})
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}), nil
}

// newSerial draws a positive serial number of 126 random bits.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// identityScheme and identityHost begin the URI by which a certificate names a server.
const identityScheme, identityHost = "meridian", "server"

func identityURI(identity string) *url.URL {
	return &url.URL{Scheme: identityScheme, Host: identityHost, Path: "/" + identity}
}

// identityOf returns the server that a certificate was made for, "" when it names
// none.
func identityOf(leaf *x509.Certificate) string {
	for _, uri := range leaf.URIs {
		if uri.Scheme == identityScheme && uri.Host == identityHost {
			return strings.TrimPrefix(uri.Path, "/")
		}
	}
	return ""
}
