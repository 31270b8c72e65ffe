package clientconfig

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"meridian/internal/atomicfile"
	"meridian/internal/pki"
)

// maxContextsBytes bounds what is read as a client configuration.
const maxContextsBytes = 4 << 20

// Errors of a client's configuration.
var (
	// ErrNoControlPlane means that no entry has the name, or that none is
	// chosen; the user adds or switches.
	ErrNoControlPlane = errors.New("no such control plane")
	// ErrControlPlaneExists means that an entry has the name already.
	ErrControlPlaneExists = errors.New("there is already a control plane of that name")
)

// Contexts is the configuration of a client: its control planes, and the current
// one. A server writes such a file into its data directory.
type Contexts struct {
	// Current names the entry in use; may be empty.
	Current string `json:"current,omitempty"`
	// ControlPlanes are kept sorted by name.
	ControlPlanes []ControlPlane `json:"controlPlanes,omitempty"`
}

// ControlPlane holds the addresses of one control plane and the credentials for it.
type ControlPlane struct {
	Name string `json:"name"`
	// Addresses are HOST:PORT of its servers; any of them takes any request.
	Addresses []string `json:"addresses"`
	// Learned are the addresses of further servers, as a server has named them last
	// (LearnServers). They are tried after Addresses.
	Learned []string `json:"learned,omitempty"`
	// OneServer: the entry is for the server of its address alone, and learns no
	// others.
	OneServer bool `json:"oneServer,omitempty"`
	// CA holds the authorities to trust in PEM; empty means the system's.
	CA string `json:"ca,omitempty"`
	// Token authenticates the user; empty means anonymous, or the admin on the
	// server's own host.
	Token string `json:"token,omitempty"`
	// SkipVerify skips the verification of server certificates (insecure).
	SkipVerify bool `json:"skipVerify,omitempty"`
	// Plaintext disables TLS.
	Plaintext bool `json:"plaintext,omitempty"`
}

// Validate returns the first thing wrong with an entry.
func (c ControlPlane) Validate() error {
	if c.Name == "" {
		return errors.New("a control plane needs a name")
	}
	if err := validateAddresses(c.Addresses); err != nil {
		return fmt.Errorf("control plane %q: %w", c.Name, err)
	}
	if len(c.Learned) > 0 {
		if err := validateAddresses(c.Learned); err != nil {
			return fmt.Errorf("control plane %q: learned %w", c.Name, err)
		}
	}
	if c.CA != "" && !HasCertificate([]byte(c.CA)) {
		return fmt.Errorf("control plane %q: its CA holds no certificate in PEM", c.Name)
	}
	if c.Plaintext && (c.SkipVerify || c.CA != "") {
		return fmt.Errorf("control plane %q: plaintext has no certificates, so ca and skipVerify do not go with it", c.Name)
	}
	return nil
}

// HasCertificate reports whether a PEM file holds any certificate.
func HasCertificate(pem []byte) bool { return x509.NewCertPool().AppendCertsFromPEM(pem) }

// validateAddresses wants at least one address, each HOST:PORT.
func validateAddresses(addresses []string) error {
	if len(addresses) == 0 {
		return errors.New("addresses: at least one is needed")
	}
	for i, address := range addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || port == "" || strings.ContainsAny(address, " \t\r\n/") {
			return fmt.Errorf("addresses[%d]: %q is not HOST:PORT", i, address)
		}
	}
	return nil
}

// DecodeContexts reads a configuration strictly: unknown fields, invalid or
// repeated entries, and a current entry that is not there are errors. Nothing
// at all is an empty configuration.
func DecodeContexts(data []byte) (*Contexts, error) {
	c := &Contexts{}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, fmt.Errorf("not a client configuration: %w", err)
	}
	seen := make(map[string]bool, len(c.ControlPlanes))
	for _, cp := range c.ControlPlanes {
		if err := cp.Validate(); err != nil {
			return nil, err
		}
		if seen[cp.Name] {
			return nil, fmt.Errorf("%w: %q is listed twice", ErrControlPlaneExists, cp.Name)
		}
		seen[cp.Name] = true
	}
	if c.Current != "" && !seen[c.Current] {
		return nil, fmt.Errorf("%w: current is %q", ErrNoControlPlane, c.Current)
	}
	c.sort()
	return c, nil
}

// Encode writes the configuration as YAML.
func (c *Contexts) Encode() ([]byte, error) {
	data, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the client configuration: %w", err)
	}
	return data, nil
}

// LoadContexts reads a configuration file. The error is fs.ErrNotExist when
// there is none.
func LoadContexts(path string) (*Contexts, error) {
	data, err := pki.ReadFile(path, maxContextsBytes)
	if err != nil {
		return nil, err
	}
	c, err := DecodeContexts(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Save replaces a configuration file, readable by its owner alone, making its
// directory if needed. A crash leaves the old file or the new one.
func (c *Contexts) Save(path string) error {
	data, err := c.Encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("saving the client configuration: %w", err)
	}
	return atomicfile.Write(path, data, 0o600)
}

// Get returns the entry of that name, or the current one for "".
func (c *Contexts) Get(name string) (ControlPlane, error) {
	if name == "" {
		name = c.Current
	}
	if name == "" {
		return ControlPlane{}, fmt.Errorf("%w: none is selected", ErrNoControlPlane)
	}
	i := c.index(name)
	if i < 0 {
		return ControlPlane{}, fmt.Errorf("%w: %q", ErrNoControlPlane, name)
	}
	return c.ControlPlanes[i], nil
}

// Add adds an entry; overwrite lets it replace one of the same name.
func (c *Contexts) Add(cp ControlPlane, overwrite bool) error {
	if err := cp.Validate(); err != nil {
		return err
	}
	i := c.index(cp.Name)
	switch {
	case i < 0:
		c.ControlPlanes = append(c.ControlPlanes, cp)
		c.sort()
	case overwrite:
		c.ControlPlanes[i] = cp
	default:
		return fmt.Errorf("%w: %q", ErrControlPlaneExists, cp.Name)
	}
	return nil
}

// Switch chooses the current entry.
func (c *Contexts) Switch(name string) error {
	if c.index(name) < 0 {
		return fmt.Errorf("%w: %q", ErrNoControlPlane, name)
	}
	c.Current = name
	return nil
}

// Remove removes an entry; none is current when it was the current one.
func (c *Contexts) Remove(name string) error {
	i := c.index(name)
	if i < 0 {
		return fmt.Errorf("%w: %q", ErrNoControlPlane, name)
	}
	c.ControlPlanes = slices.Delete(c.ControlPlanes, i, i+1)
	if c.Current == name {
		c.Current = ""
	}
	return nil
}

// AuthoritiesHeader carries, in the header of a server's answers, the authorities in
// PEM by which clients are to verify the servers from now on.
const AuthoritiesHeader = "meridian-authorities-bin"

// maxAuthorities bounds the authorities that a server may name, in bytes.
const maxAuthorities = 64 << 10

// LearnAuthorities has an entry of a configuration file trust the authorities that a
// server has named, which was verified by those in used. It changes nothing when
// the entry has others by now, and reports whether it changed the file.
func LearnAuthorities(path, name, used string, named []byte) (bool, error) {
	if len(named) > maxAuthorities || !HasCertificate(named) || pki.Digest(named) == pki.Digest([]byte(used)) {
		return false, nil
	}
	contexts, err := LoadContexts(path)
	if err != nil {
		return false, err
	}
	i := contexts.index(name)
	if i < 0 || contexts.ControlPlanes[i].CA != used || used == "" {
		return false, nil
	}
	contexts.ControlPlanes[i].CA = string(named)
	return true, contexts.Save(path)
}

// ServersHeader carries, in the header of a global's answers to users, the addresses of
// all of its servers, HOST:PORT, separated by commas.
const ServersHeader = "meridian-servers-bin"

const (
	// maxServers bounds the servers that one may name, and maxServersBytes their
	// addresses together.
	maxServers      = 32
	maxServersBytes = 8 << 10
)

// AllServers are the addresses of an entry to try, in order: what was learned may be
// out of reach, and comes after what the user wrote.
func (c ControlPlane) AllServers() []string {
	if !c.learnsServers() {
		return c.Addresses
	}
	return slices.Concat(c.Addresses, c.Learned)
}

// learnsServers reports whether an entry takes addresses from a server: it says by
// which authority every server is verified, the learned ones too. Any certificate of
// a public authority would do where it names none.
func (c ControlPlane) learnsServers() bool {
	return c.CA != "" && !c.SkipVerify && !c.Plaintext && !c.OneServer
}

// LearnServers has an entry of a configuration file know the servers that one of
// them has named, which was verified as used says. The addresses that the user wrote
// stay; those that were learned before are replaced. It changes nothing when the
// entry is another one by now, and returns the addresses that are known if it changed
// the file.
func LearnServers(path string, used ControlPlane, named []byte) (known []string, err error) {
	learned, ok := learnable(used, named)
	if !ok || slices.Equal(learned, used.Learned) {
		return nil, nil
	}
	contexts, err := LoadContexts(path)
	if err != nil {
		return nil, err
	}
	i := contexts.index(used.Name)
	if i < 0 {
		return nil, nil
	}
	entry := &contexts.ControlPlanes[i]
	if entry.CA != used.CA || !entry.learnsServers() || !slices.Equal(entry.Addresses, used.Addresses) || !slices.Equal(entry.Learned, used.Learned) {
		return nil, nil
	}
	entry.Learned = learned
	return entry.AllServers(), contexts.Save(path)
}

// WithServers returns the entry as it is once it has learned the servers, or as it is
// when it can take none of them.
func (c ControlPlane) WithServers(servers []string) ControlPlane {
	if learned, ok := learnable(c, []byte(strings.Join(servers, ","))); ok {
		c.Learned = learned
	}
	return c
}

// learnable are the servers that an entry can take of those that are named, in
// order; false if it can take none of what was sent.
func learnable(entry ControlPlane, named []byte) ([]string, bool) {
	if !entry.learnsServers() || len(named) == 0 || len(named) > maxServersBytes {
		return nil, false
	}
	addresses := strings.Split(string(named), ",")
	if len(addresses) > maxServers || validateAddresses(addresses) != nil {
		return nil, false
	}
	if len(addresses) == 1 && len(entry.Learned) == 0 {
		return nil, false // there is nothing to fall back to, whatever it is called
	}
	var learned []string
	for _, address := range addresses {
		// A server that listens on loopback is nowhere to be found from elsewhere.
		if !slices.Contains(entry.Addresses, address) && (!onLoopback(address) || slices.ContainsFunc(entry.Addresses, onLoopback)) {
			learned = append(learned, address)
		}
	}
	slices.Sort(learned)
	return slices.Compact(learned), true
}

func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

func (c *Contexts) index(name string) int {
	return slices.IndexFunc(c.ControlPlanes, func(cp ControlPlane) bool { return cp.Name == name })
}

func (c *Contexts) sort() {
	slices.SortFunc(c.ControlPlanes, func(a, b ControlPlane) int { return strings.Compare(a.Name, b.Name) })
}
