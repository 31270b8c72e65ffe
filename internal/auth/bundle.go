package auth

import (
	"crypto/x509"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

const (
	// zoneBundleKind is the header of a zone's join bundle.
	zoneBundleKind = "MeridianZoneBundle"
	// zoneBundleVersion is the newest form that this program writes and reads.
	zoneBundleVersion = 1
	maxBundleBytes    = 1 << 20
)

// Why a join bundle is refused.
var (
	// ErrNotBundle means that the file is something else.
	ErrNotBundle = errors.New("not a zone's join bundle")
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

// bundleHeader is the part of a bundle that tells what it is; every version
// has it.
type bundleHeader struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
}

// bundleFile is a bundle on disk.
type bundleFile struct {
	bundleHeader
	ZoneBundle
}

// Encode writes the bundle as YAML.
func (b ZoneBundle) Encode() ([]byte, error) {
	if err := b.validate(); err != nil {
		return nil, err
	}
	data, err := yaml.Marshal(bundleFile{bundleHeader{zoneBundleKind, zoneBundleVersion}, b})
	if err != nil {
		return nil, fmt.Errorf("encoding the join bundle: %w", err)
	}
	return data, nil
}

// DecodeZoneBundle reads a bundle strictly. The error is ErrNotBundle for
// anything that is not a bundle, ErrBundleVersion for one from the future, or
// says what is wrong with it.
func DecodeZoneBundle(data []byte) (ZoneBundle, error) {
	if len(data) > maxBundleBytes {
		return ZoneBundle{}, fmt.Errorf("%w: it has %d bytes", ErrNotBundle, len(data))
	}
	var header bundleHeader
	if err := yaml.Unmarshal(data, &header); err != nil {
		return ZoneBundle{}, fmt.Errorf("%w: it is not YAML with a kind and a version", ErrNotBundle)
	}
	switch {
	case header.Kind == "":
		return ZoneBundle{}, fmt.Errorf("%w: it has no kind", ErrNotBundle)
	case header.Kind != zoneBundleKind:
		return ZoneBundle{}, fmt.Errorf("%w: its kind is %q, not %s", ErrNotBundle, header.Kind, zoneBundleKind)
	case header.Version > zoneBundleVersion:
		return ZoneBundle{}, fmt.Errorf("%w: it is of version %d, this release reads up to %d", ErrBundleVersion, header.Version, zoneBundleVersion)
	case header.Version < 1:
		return ZoneBundle{}, fmt.Errorf("%w: version %d does not exist", ErrNotBundle, header.Version)
	}
	var file bundleFile
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return ZoneBundle{}, fmt.Errorf("the join bundle is damaged: %w", err)
	}
	return file.ZoneBundle, file.validate()
}

// LoadZoneBundle reads a bundle from a file.
func LoadZoneBundle(path string) (ZoneBundle, error) {
	data, err := readBounded(path, maxBundleBytes)
	if err != nil {
		return ZoneBundle{}, fmt.Errorf("reading the join bundle: %w", err)
	}
	b, err := DecodeZoneBundle(data)
	if err != nil {
		return ZoneBundle{}, fmt.Errorf("%s: %w", path, err)
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
	switch {
	case b.Zone == "":
		return errors.New("the join bundle names no zone")
	case b.Token == "":
		return errors.New("the join bundle has no token")
	case b.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(b.CA)):
		return errors.New("the join bundle's ca is not a certificate in PEM")
	}
	if err := validateAddresses(b.Addresses); err != nil {
		return fmt.Errorf("the join bundle's %w", err)
	}
	return nil
}
