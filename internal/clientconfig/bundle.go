package clientconfig

import (
	"crypto/x509"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"meridian/internal/pki"
)

const (
	// zoneBundleKind and serverBundleKind are the headers of join bundles.
	zoneBundleKind   = "MeridianZoneBundle"
	serverBundleKind = "MeridianServerBundle"
	// bundleVersion is the newest form that this program writes and reads.
	bundleVersion  = 1
	maxBundleBytes = 1 << 20
)

// Why a join bundle is refused.
var (
	// ErrNotBundle means that the file is something else.
	ErrNotBundle = errors.New("not a join bundle")
	// ErrBundleKind means that a zone's bundle was given to a server of a global,
	// or the reverse.
	ErrBundleKind = errors.New("the join bundle is of the wrong kind")
	// ErrBundleVersion means that a newer release wrote it.
	ErrBundleVersion = errors.New("the join bundle was written by a newer release")
	// ErrBundleZone means that it is for another zone.
	ErrBundleZone = errors.New("the join bundle is for another zone")
)

// ZoneBundle is all that a zone needs to join a global, in one file. It holds a
// secret, the token.
type ZoneBundle struct {
	// Zone is the name the token was issued for.
	Zone string `json:"zone"`
	// Addresses are HOST:PORT of the global's servers.
	Addresses []string `json:"addresses"`
	// CA holds the authorities to trust in PEM; empty means the system's.
	CA string `json:"ca,omitempty"`
	// Token is the zone token.
	Token string `json:"token"`
}

// ServerBundle is all that a new server needs to join those of a global or a zone, in one
// file. It
// holds a secret, the token. The authority's key and that of gossip are not in
// it: they are handed over for the token, once.
type ServerBundle struct {
	// Zone is the name of the zone that the server is to be one of, empty for a global;
	// Federated is whether that follows a global.
	Zone      string `json:"zone,omitempty"`
	Federated bool   `json:"federated,omitempty"`
	// Cluster is the id of the cluster.
	Cluster string `json:"cluster"`
	// Addresses are HOST:PORT of the gRPC ports of the servers.
	Addresses []string `json:"addresses"`
	// CA holds the authorities to trust in PEM; empty means the system's.
	CA string `json:"ca,omitempty"`
	// Token is the server token.
	Token string `json:"token"`
}

// bundleHeader is the part of a bundle that tells what it is; every version
// has it.
type bundleHeader struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
}

// zoneBundleFile and serverBundleFile are bundles on disk.
type (
	zoneBundleFile struct {
		bundleHeader
		ZoneBundle
	}
	serverBundleFile struct {
		bundleHeader
		ServerBundle
	}
)

// Encode writes the bundle as YAML.
func (b ZoneBundle) Encode() ([]byte, error) {
	if err := b.validate(); err != nil {
		return nil, err
	}
	return encodeBundle(zoneBundleFile{bundleHeader{zoneBundleKind, bundleVersion}, b})
}

// Encode writes the bundle as YAML.
func (b ServerBundle) Encode() ([]byte, error) {
	if err := b.validate(); err != nil {
		return nil, err
	}
	return encodeBundle(serverBundleFile{bundleHeader{serverBundleKind, bundleVersion}, b})
}

func encodeBundle(file any) ([]byte, error) {
	data, err := yaml.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("encoding the join bundle: %w", err)
	}
	return data, nil
}

// DecodeZoneBundle reads a bundle strictly. The error is ErrNotBundle for
// anything that is not a bundle, ErrBundleKind for a server's, ErrBundleVersion
// for one from the future, or says what is wrong with it.
func DecodeZoneBundle(data []byte) (ZoneBundle, error) {
	var file zoneBundleFile
	if err := decodeBundle(data, zoneBundleKind, &file); err != nil {
		return ZoneBundle{}, err
	}
	return file.ZoneBundle, file.validate()
}

// DecodeServerBundle is the same for the bundle of a server.
func DecodeServerBundle(data []byte) (ServerBundle, error) {
	var file serverBundleFile
	if err := decodeBundle(data, serverBundleKind, &file); err != nil {
		return ServerBundle{}, err
	}
	return file.ServerBundle, file.validate()
}

func decodeBundle(data []byte, kind string, file any) error {
	if len(data) > maxBundleBytes {
		return fmt.Errorf("%w: it has %d bytes", ErrNotBundle, len(data))
	}
	var header bundleHeader
	if err := yaml.Unmarshal(data, &header); err != nil {
		return fmt.Errorf("%w: it is not YAML with a kind and a version", ErrNotBundle)
	}
	switch {
	case len(data) == 0:
		return fmt.Errorf("%w: it is empty; the command that was to write it may have failed", ErrNotBundle)
	case header.Kind == "":
		return fmt.Errorf("%w: it has no kind; it may have been cut off", ErrNotBundle)
	case header.Kind == zoneBundleKind && kind == serverBundleKind:
		return fmt.Errorf("%w: it is a zone's, for --join-bundle of meridian-zone; a server's comes from `meridian generate server-token --bundle`", ErrBundleKind)
	case header.Kind == serverBundleKind && kind == zoneBundleKind:
		return fmt.Errorf("%w: it is for a new server of a global or a zone (--server-bundle of meridian-zone); a zone's comes from `meridian generate zone-token --bundle`", ErrBundleKind)
	case header.Kind != kind:
		return fmt.Errorf("%w: its kind is %q, not %s", ErrNotBundle, header.Kind, kind)
	case header.Version > bundleVersion:
		return fmt.Errorf("%w: it is of version %d, this release reads up to %d", ErrBundleVersion, header.Version, bundleVersion)
	case header.Version < 1:
		return fmt.Errorf("%w: version %d does not exist", ErrNotBundle, header.Version)
	}
	if err := yaml.UnmarshalStrict(data, file); err != nil {
		return fmt.Errorf("the join bundle is damaged: %w", err)
	}
	return nil
}

// LoadZoneBundle reads a bundle from a file.
func LoadZoneBundle(path string) (ZoneBundle, error) { return loadBundle(path, DecodeZoneBundle) }

// LoadServerBundle reads a bundle from a file.
func LoadServerBundle(path string) (ServerBundle, error) { return loadBundle(path, DecodeServerBundle) }

func loadBundle[B any](path string, decode func([]byte) (B, error)) (B, error) {
	var none B
	data, err := pki.ReadFile(path, maxBundleBytes)
	if err != nil {
		return none, fmt.Errorf("reading the join bundle: %w", err)
	}
	b, err := decode(data)
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// CheckZone refuses a bundle that was made for a zone of another name.
func (b ZoneBundle) CheckZone(name string) error {
	if b.Zone != name {
		return fmt.Errorf("%w: it is for %q, this zone is called %q", ErrBundleZone, b.Zone, name)
	}
	return nil
}

func (b ZoneBundle) validate() error {
	if b.Zone == "" {
		return errors.New("the join bundle names no zone")
	}
	return validateBundle(b.Addresses, b.CA, b.Token)
}

func (b ServerBundle) validate() error {
	if b.Cluster == "" {
		return errors.New("the join bundle names no cluster")
	}
	return validateBundle(b.Addresses, b.CA, b.Token)
}

// validateBundle checks what all bundles have.
func validateBundle(addresses []string, ca, token string) error {
	switch {
	case token == "":
		return errors.New("the join bundle has no token")
	case ca != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(ca)):
		return errors.New("the join bundle's ca is not a certificate in PEM")
	}
	if err := validateAddresses(addresses); err != nil {
		return fmt.Errorf("the join bundle's %w", err)
	}
	return nil
}
