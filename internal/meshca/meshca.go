// Package meshca is the certificate authority of one mesh in one zone: it signs the
// certificates by which dataplanes know each other, and replaces its own in steps.
//
// Guarantees. A certificate names the dataplane that the caller names, whatever the
// request for it says. The certificate of the authority is constrained, critically, to
// URIs of the zone and mesh, and to no other kind of name, so that its key is good for
// nothing else. Everything here is immutable; a step returns another authority.
//
// Non-goals: storage, clocks, who may have a certificate.
package meshca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"meridian/internal/identity"
	"meridian/internal/resource"
)

const (
	// RootLifetime is how long the certificate of an authority is valid. It is replaced
	// when half of it is over.
	RootLifetime = 2 * 365 * 24 * time.Hour
	// DefaultLifetime is how long a dataplane's certificate is valid where the mesh does
	// not say so.
	DefaultLifetime = 24 * time.Hour
	// MinLifetime is the shortest time for which a dataplane's certificate is valid.
	MinLifetime = time.Minute
	// MaxLifetime is the longest one. A wait for what a root has signed ends before the
	// root does, which is replaced half-way: it is a quarter of a root's.
	MaxLifetime = identity.MaxLifetime
	// MaxRequestBytes bounds a request for a certificate.
	MaxRequestBytes = 4096
	// skew backdates certificates for clocks that run behind.
	skew = time.Hour
	// maxRoots bounds the certificates of an authority at a time: the one that signs, the
	// next, and those that are still trusted.
	maxRoots = 8

	pemCertificate, pemPrivateKey, pemECKey = "CERTIFICATE", "PRIVATE KEY", "EC PRIVATE KEY"
)

// State is where a root is in its life.
type State string

// The states of a root, in their order.
const (
	// Next: dataplanes are to trust it before it signs.
	Next State = "next"
	// Signing: it signs. There is exactly one.
	Signing State = "signing"
	// Retired: its key is gone, and what it has signed may still be valid.
	Retired State = "retired"
)

// Root is one certificate of an authority.
type Root struct {
	State State
	// Backend is the mesh's backend that it was made for.
	Backend string
	// Provided is whether the operator has made it; else the zone has.
	Provided bool
	// Since is when it got its state.
	Since time.Time
	// Longest is the longest lifetime of a certificate that it may have signed.
	Longest     time.Duration
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey // nil when retired
}

// Authority is the certificate authority of a mesh in a zone. It holds secrets: it does
// not print.
type Authority struct {
	zone    resource.ZoneName
	mesh    resource.MeshName
	created time.Time // when the mesh was created that it is for; zero if that is not known
	roots   []Root    // the one that signs first, then in order of their making, the newest first
}

// String keeps keys out of logs.
func (a *Authority) String() string {
	return fmt.Sprintf("the certificate authority of mesh %s in zone %s", a.mesh, a.zone)
}

// GoString keeps keys out of logs.
func (a *Authority) GoString() string { return a.String() }

// New makes an authority for a backend of a mesh, with a P-256 key. The error is that of
// identity.Host, or of the source of randomness.
func New(zone resource.ZoneName, mesh resource.MeshName, backend string, now time.Time) (*Authority, error) {
	root, err := newRoot(zone, mesh, backend, now)
	if err != nil {
		return nil, err
	}
	root.State = Signing
	return &Authority{zone: zone, mesh: mesh, roots: []Root{root}}, nil
}

// Created is when the mesh that the authority is for was created; zero if that is not
// known. A mesh that was deleted and created again is another mesh.
func (a *Authority) Created() time.Time { return a.created }

// Material is the certificate and key of an authority that an operator has made. It holds
// a secret: it does not print.
type Material struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// String keeps keys out of logs.
func (*Material) String() string { return "a certificate authority that is provided" }

// GoString keeps keys out of logs.
func (m *Material) GoString() string { return m.String() }

// ReadMaterial reads the certificate and key of an authority for a mesh in a zone, each in
// PEM. What signs for others, or for none, is refused. Errors never contain what was read.
func ReadMaterial(zone resource.ZoneName, mesh resource.MeshName, data []byte, now time.Time) (*Material, error) {
	host, err := identity.Host(zone, mesh)
	if err != nil {
		return nil, err
	}
	m := &Material{}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case block.Type == pemCertificate && m.certificate == nil:
			if m.certificate, err = x509.ParseCertificate(block.Bytes); err != nil {
				return nil, errors.New("the certificate cannot be read")
			}
		case block.Type == pemCertificate:
			return nil, errors.New("there are several certificates: write that of the authority alone, which is a root")
		case block.Type == pemPrivateKey || block.Type == pemECKey:
			if m.key != nil {
				return nil, errors.New("there are several keys")
			}
			if m.key = parseKey(block); m.key == nil {
				return nil, errors.New("the key is no ECDSA key: make one with `openssl ecparam -name prime256v1 -genkey -noout`")
			}
		}
	}
	switch c := m.certificate; {
	case c == nil:
		return nil, errors.New("there is no certificate: write it in PEM, as CERTIFICATE")
	case m.key == nil:
		return nil, errors.New("there is no key: write it in PEM, as PRIVATE KEY or EC PRIVATE KEY, not encrypted")
	case !m.key.PublicKey.Equal(c.PublicKey):
		return nil, errors.New("the key is not that of the certificate")
	case !now.Before(c.NotAfter):
		return nil, fmt.Errorf("the certificate expired at %s", c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return nil, fmt.Errorf("the certificate is valid from %s only", c.NotBefore.UTC().Format(time.RFC3339))
	}
	if err := CheckRoot(m.certificate, host); err != nil {
		return nil, fmt.Errorf("the certificate cannot be used: %w", err)
	}
	if err := m.certificate.CheckSignatureFrom(m.certificate); err != nil {
		return nil, errors.New("the certificate is not signed with its own key: proxies trust it as a root")
	}
	return m, nil
}

// Provide makes an authority for a backend of a mesh of what its operator has made.
func Provide(zone resource.ZoneName, mesh resource.MeshName, backend string, m *Material, now time.Time) *Authority {
	root := m.root(backend, now)
	root.State = Signing
	return &Authority{zone: zone, mesh: mesh, roots: []Root{root}}
}

func (m *Material) root(backend string, now time.Time) Root {
	return Root{State: Next, Backend: backend, Provided: true, Since: now.UTC(), Certificate: m.certificate, key: m.key}
}

// For returns the authority as that of a mesh that was created at a time.
func (a *Authority) For(created time.Time) *Authority {
	next := a.copy()
	next.created = created.UTC()
	return next
}

func (a *Authority) copy() *Authority {
	next := *a
	next.roots = slices.Clone(a.roots)
	return &next
}

func newRoot(zone resource.ZoneName, mesh resource.MeshName, backend string, now time.Time) (Root, error) {
	host, err := identity.Host(zone, mesh)
	if err != nil {
		return Root{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Root{}, fmt.Errorf("generate the key of a certificate authority: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return Root{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// The serial keeps two authorities of a mesh apart.
		Subject:   pkix.Name{Organization: []string{"Meridian"}, CommonName: fmt.Sprintf("Meridian mesh CA %s %.8x", host, serial)},
		NotBefore: now.Add(-skew), NotAfter: now.Add(RootLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
		URIs:     []*url.URL{{Scheme: "spiffe", Host: host}},
	}
	constrain(template, host)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Root{}, fmt.Errorf("sign the certificate of a certificate authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return Root{}, fmt.Errorf("read back the certificate of a certificate authority: %w", err)
	}
	return Root{State: Next, Backend: backend, Since: now.UTC(), Certificate: certificate, key: key}, nil
}

// constrain allows URIs of a host, and no other names. Proxies compare other names with
// the same expressions, so that a URI that stands in a DNS name would do.
func constrain(template *x509.Certificate, host string) {
	template.PermittedDNSDomainsCritical = true // it is about all of them
	template.PermittedURIDomains = []string{host}
	template.ExcludedDNSDomains = []string{""}
	template.ExcludedEmailAddresses = []string{""}
	template.ExcludedIPRanges = []*net.IPNet{
		{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 8*net.IPv4len)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 8*net.IPv6len)},
	}
}

// CheckRoot refuses a certificate of an authority that is good for more than a host's
// names.
func CheckRoot(c *x509.Certificate, host string) error {
	switch {
	case !c.IsCA || c.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("it is not the certificate of an authority")
	case !c.PermittedDNSDomainsCritical || !slices.Equal(c.PermittedURIDomains, []string{host}):
		return fmt.Errorf("it is not constrained to the URIs of %s", host)
	case !slices.Equal(c.ExcludedDNSDomains, []string{""}) || len(c.ExcludedIPRanges) != 2:
		return errors.New("it does not exclude names that are no URIs")
	}
	return nil
}

// Roots returns everything by which certificates of the authority are verified, in PEM.
func (a *Authority) Roots() []byte {
	var out []byte
	for i := range a.roots {
		out = append(out, encodePEM(pemCertificate, a.roots[i].Certificate.Raw)...)
	}
	return out
}

// Status lists the roots without their keys, the one that signs first.
func (a *Authority) Status() []Root {
	list := slices.Clone(a.roots)
	for i := range list {
		list[i].key = nil
	}
	return list
}

// Lifetime is how long certificates are valid by a mesh's setting, which may be nil.
func Lifetime(cert *resource.DPCert) time.Duration {
	if cert == nil || cert.Rotation == nil || cert.Rotation.Expiration == nil {
		return DefaultLifetime
	}
	return min(max(MinLifetime, cert.Rotation.Expiration.Value()), MaxLifetime)
}

// ParseRequest reads a request for a certificate in DER and returns its public key,
// which the sender has the private half of. Nothing else of it counts.
func ParseRequest(der []byte) (*ecdsa.PublicKey, error) {
	if len(der) > MaxRequestBytes {
		return nil, fmt.Errorf("the request for a certificate has %d bytes, and at most %d are possible", len(der), MaxRequestBytes)
	}
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("the request for a certificate cannot be read: %w", err)
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the request for a certificate is not for a P-256 key")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request for a certificate is not signed with its own key: %w", err)
	}
	return key, nil
}

// Covers reports whether certificates of a lifetime can be signed as the authority is: the
// longest is part of its state. WithLongest returns one that does.
func (a *Authority) Covers(lifetime time.Duration) bool { return a.roots[0].Longest >= lifetime }

// WithLongest returns the authority with a longest lifetime of what it signs from now on.
func (a *Authority) WithLongest(lifetime time.Duration) *Authority {
	next := a.copy()
	next.roots[0].Longest = max(next.roots[0].Longest, lifetime)
	return next
}

// Certificate is a dataplane's certificate.
type Certificate struct {
	// PEM is the certificate.
	PEM []byte
	// URI is the name in it.
	URI string
	// NotAfter is when it expires.
	NotAfter time.Time
}

// Sign makes the certificate of a dataplane with a name of package identity, valid for a
// lifetime that the authority covers, though never longer than the authority itself.
func (a *Authority) Sign(key *ecdsa.PublicKey, name string, lifetime time.Duration, now time.Time) (Certificate, error) {
	root := &a.roots[0]
	parsed, err := identity.Parse(name)
	switch {
	case err != nil:
		return Certificate{}, err
	case parsed.Zone != a.zone || parsed.Mesh != a.mesh:
		return Certificate{}, fmt.Errorf("%s does not sign for mesh %s in zone %s", a, parsed.Mesh, parsed.Zone)
	case !a.Covers(lifetime):
		return Certificate{}, fmt.Errorf("%s signs for at most %s", a, root.Longest)
	case !now.Before(root.Certificate.NotAfter):
		return Certificate{}, fmt.Errorf("%s has expired", a)
	}
	uri, err := url.Parse(name)
	if err != nil {
		return Certificate{}, err
	}
	serial, err := newSerial()
	if err != nil {
		return Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    now.Add(-skew), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{uri},
	}
	if template.NotAfter.After(root.Certificate.NotAfter) {
		template.NotAfter = root.Certificate.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, root.Certificate, key, root.key)
	if err != nil {
		return Certificate{}, fmt.Errorf("sign a certificate: %w", err)
	}
	return Certificate{encodePEM(pemCertificate, der), name, template.NotAfter.UTC().Truncate(time.Second)}, nil
}

// ends is when everything has ended that the root signed until a moment.
func (r *Root) ends(until time.Time) time.Time {
	if r.State == Retired && r.Since.Before(until) {
		until = r.Since
	}
	if end := until.Add(r.Longest); end.Before(r.Certificate.NotAfter) {
		return end
	}
	return r.Certificate.NotAfter
}

// Outstanding reports whether a certificate that was signed before a moment may still be
// valid. Seconds count.
func (a *Authority) Outstanding(before, now time.Time) bool {
	return slices.ContainsFunc(a.roots, func(r Root) bool {
		made := r.Certificate.NotBefore
		if !r.Provided {
			made = made.Add(skew)
		}
		return r.State != Next && made.Before(before.Truncate(time.Second)) && now.Before(r.ends(before))
	})
}

// Phase is how far the replacement of an authority's root is.
type Phase string

// The phases of an authority.
const (
	// Stable: its root is not being replaced.
	Stable Phase = "stable"
	// Publishing: dataplanes are to trust the next root before it signs.
	Publishing Phase = "publishing"
	// Retiring: the next root signs, and what the one before signed may still be valid.
	Retiring Phase = "retiring"
)

// Phases are all phases.
func Phases() []Phase { return []Phase{Stable, Publishing, Retiring} }

// Phase returns the phase of the replacement.
func (a *Authority) Phase() Phase {
	switch {
	case a.coming() >= 0:
		return Publishing
	case len(a.roots) > 1:
		return Retiring
	}
	return Stable
}

// coming is the index of the next root, negative without one.
func (a *Authority) coming() int {
	return slices.IndexFunc(a.roots, func(r Root) bool { return r.State == Next })
}

// SignsBy is when the next root signs at the latest: everything has ended then that was
// signed before it was published. It is zero without a next root.
func (a *Authority) SignsBy() time.Time {
	var by time.Time
	if i := a.coming(); i >= 0 {
		for _, r := range a.roots {
			if end := r.ends(a.roots[i].Since); r.State != Next && end.After(by) {
				by = end
			}
		}
	}
	return by
}

// Step takes the next step of replacing the root, if it is due, and returns the same
// authority if none is. A root is replaced when the mesh enables another backend, or half
// of its lifetime is over; where one is provided, when another is. The next one is published
// first. It signs once acked says that
// everyone who has a valid certificate trusts it, or what was signed before it was
// published has ended. The one before is trusted until everything that it has signed has
// ended.
func (a *Authority) Step(backend string, provided *Material, acked bool, now time.Time) (*Authority, error) {
	next := a.copy()
	changed := false
	next.roots = slices.DeleteFunc(next.roots, func(r Root) bool {
		over := r.State == Retired && !now.Before(r.ends(now))
		changed = changed || over
		return over
	})
	signing := &next.roots[0]
	coming := next.coming()
	switch {
	case coming >= 0 && (acked || !now.Before(a.SignsBy())):
		root := next.roots[coming]
		root.State, root.Since = Signing, now.UTC()
		signing.State, signing.Since, signing.key = Retired, now.UTC(), nil
		next.roots = slices.Insert(slices.Delete(next.roots, coming, coming+1), 0, root)
		changed = true
	case coming < 0 && len(next.roots) < maxRoots && signing.outdated(backend, provided, now):
		root, err := nextRoot(a.zone, a.mesh, backend, provided, now)
		if err != nil {
			return nil, err
		}
		next.roots = slices.Insert(next.roots, 1, root)
		changed = true
	}
	if !changed {
		return a, nil
	}
	return next, nil
}

// outdated reports whether another root is to sign.
func (r *Root) outdated(backend string, provided *Material, now time.Time) bool {
	if provided != nil {
		return !r.Certificate.Equal(provided.certificate)
	}
	return r.Provided || r.Backend != backend || !now.Before(r.Certificate.NotAfter.Add(-RootLifetime/2))
}

func nextRoot(zone resource.ZoneName, mesh resource.MeshName, backend string, provided *Material, now time.Time) (Root, error) {
	if provided != nil {
		return provided.root(backend, now), nil
	}
	return newRoot(zone, mesh, backend, now)
}

// formatVersion is the version of documents that this release writes.
const formatVersion = 1

// document is an authority as it is stored.
type document struct {
	// FormatVersion is the version of this format; absent in the first documents.
	FormatVersion int               `json:"formatVersion"`
	Zone          resource.ZoneName `json:"zone"`
	Mesh          resource.MeshName `json:"mesh"`
	// Created is when the mesh was created; absent in the first documents.
	Created time.Time      `json:"created,omitzero"`
	Roots   []rootDocument `json:"roots"`
}

type rootDocument struct {
	State          State     `json:"state"`
	Backend        string    `json:"backend"`
	Since          time.Time `json:"since"`
	LongestSeconds int64     `json:"longestSeconds"`
	Certificate    string    `json:"certificate"`
	Key            string    `json:"key,omitempty"`
	// Provided is absent in the documents of earlier releases.
	Provided bool `json:"provided,omitempty"`
}

// Marshal returns the authority with its keys, for storage that keeps secrets.
func (a *Authority) Marshal() ([]byte, error) {
	d := document{FormatVersion: formatVersion, Zone: a.zone, Mesh: a.mesh, Created: a.created}
	for i := range a.roots {
		r := &a.roots[i]
		stored := rootDocument{
			State: r.State, Backend: r.Backend, Provided: r.Provided, Since: r.Since, LongestSeconds: int64((r.Longest + time.Second - 1) / time.Second),
			Certificate: string(encodePEM(pemCertificate, r.Certificate.Raw)),
		}
		if r.key != nil {
			der, err := x509.MarshalPKCS8PrivateKey(r.key)
			if err != nil {
				return nil, fmt.Errorf("encode the key of %s: %w", a, err)
			}
			stored.Key = string(encodePEM(pemPrivateKey, der))
		}
		d.Roots = append(d.Roots, stored)
	}
	return json.Marshal(d)
}

// Parse reads what Marshal wrote for a mesh in a zone. An authority that could sign for
// others is refused. Errors never contain what was read.
func Parse(zone resource.ZoneName, mesh resource.MeshName, data []byte) (*Authority, error) {
	a := &Authority{zone: zone, mesh: mesh}
	refused := func(reason string) (*Authority, error) { return nil, fmt.Errorf("read %s: %s", a, reason) }
	host, err := identity.Host(zone, mesh)
	if err != nil {
		return nil, err
	}
	var d document
	if json.Unmarshal(data, &d) != nil {
		return refused("it is no document of one")
	}
	if d.FormatVersion > formatVersion {
		return refused("a later release wrote it")
	}
	if d.Zone != zone || d.Mesh != mesh {
		return refused("it is that of another zone or mesh")
	}
	a.created = d.Created
	for i, stored := range d.Roots {
		block, rest := pem.Decode([]byte(stored.Certificate))
		if block == nil || block.Type != pemCertificate || strings.TrimSpace(string(rest)) != "" {
			return refused("it has no certificate")
		}
		root := Root{State: stored.State, Backend: stored.Backend, Provided: stored.Provided, Since: stored.Since, Longest: time.Duration(stored.LongestSeconds) * time.Second}
		if root.Certificate, err = x509.ParseCertificate(block.Bytes); err != nil {
			return refused("its certificate cannot be read")
		}
		if err := CheckRoot(root.Certificate, host); err != nil {
			return refused(err.Error())
		}
		if (root.State == Signing) != (i == 0) {
			return refused("not exactly the first of its certificates signs")
		}
		if root.State != Retired {
			if root.key = readKey(stored.Key); root.key == nil || !root.key.PublicKey.Equal(root.Certificate.PublicKey) {
				return refused("it lacks the key of a certificate")
			}
		}
		a.roots = append(a.roots, root)
	}
	if len(a.roots) == 0 {
		return refused("it has no certificate")
	}
	return a, nil
}

func readKey(text string) *ecdsa.PrivateKey {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != pemPrivateKey {
		return nil
	}
	return parseKey(block)
}

// parseKey reads an ECDSA key; nil for another one.
func parseKey(block *pem.Block) *ecdsa.PrivateKey {
	if block.Type == pemECKey {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil
		}
		return key
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil
	}
	key, _ := parsed.(*ecdsa.PrivateKey)
	return key
}

func encodePEM(block string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: block, Bytes: der})
}

// newSerial draws a positive serial number of 126 random bits.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
