// Package identity names dataplanes in certificates, and turns selectors of callers into
// regular expressions over these names.
//
// The name of a dataplane is one SPIFFE id:
//
//	spiffe://ZONE.MESH/dp/NAME/by/CREDENTIAL/_/TAG/VALUE/TAG/VALUE/_/TAG/VALUE
//
// with a section for every tag set as which the dataplane calls, the tags in order.
// CREDENTIAL, which stands in certificates, is for the token that the certificate was
// issued on: when that is revoked, the names with it are denied, and those of a
// certificate that was issued on another one are not.
// Bytes outside A-Z, a-z, 0-9, . and - are spelled _XX, so that the segment _ begins a
// section and is nothing else. kuma.io/zone is not among the tags: who signs for a zone
// could write any value there, and the host is what its certificate of a CA constrains.
//
// Guarantees. Different dataplanes of a mesh have different names, and equal ones the
// same. The expression of a selector matches the name of a dataplane exactly if the
// selector matches one of its tag sets (§2.1). What has no name gets an error, never
// another one's name.
//
// Non-goals: certificates, which package meshca signs.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"meridian/internal/resource"
)

const (
	// MaxBytes is the longest name, as SPIFFE has it.
	MaxBytes = 2048
	// maxLabel is the longest label of a host name, in bytes.
	maxLabel = 63

	scheme = "spiffe://"
	// dataplanes begins the path of every name, section each tag set.
	dataplanes, section = "/dp/", "_"
	// by begins the credential, which has credentialBytes bytes.
	by, credentialBytes = "by", 20
	// empty is the spelling of an empty tag or value.
	empty = "__"
)

// Nothing is an expression that matches nothing.
const Nothing = `^[^\x{0}-\x{10FFFF}]$`

// Host returns the host of the names of a mesh's dataplanes in a zone, which the
// certificate of the zone's CA for this mesh is constrained to. The error says why there
// is none: the name of either is no DNS label.
func Host(zone resource.ZoneName, mesh resource.MeshName) (string, error) {
	if err := checkLabel("zone", string(zone)); err != nil {
		return "", err
	}
	if err := checkLabel("mesh", string(mesh)); err != nil {
		return "", err
	}
	return string(zone) + "." + string(mesh), nil
}

func checkLabel(of, name string) error {
	switch {
	case resource.CheckName(name) != nil || strings.Contains(name, "."):
		return fmt.Errorf("the name of %s %q is not one label of a host name: names in certificates cannot be made of it", of, name)
	case len(name) > maxLabel:
		return fmt.Errorf("the name of %s %q has %d bytes, and a label of a host name at most %d: names in certificates cannot be made of it", of, name, len(name), maxLabel)
	}
	return nil
}

// Of returns the name of a dataplane in a zone. The sets are those as which it calls
// (resource.Dataplane.TagSets); each has the zone's tag. The error says why it has none.
func Of(zone resource.ZoneName, mesh resource.MeshName, dataplane string, sets []resource.Tags) (string, error) {
	host, err := Host(zone, mesh)
	if err != nil {
		return "", err
	}
	if err := resource.CheckName(dataplane); err != nil {
		return "", err
	}
	if len(sets) == 0 {
		return "", errors.New("the dataplane has no tags")
	}
	sections := make([]string, len(sets))
	for i, tags := range sets {
		if tags[resource.ZoneTag] != string(zone) {
			return "", fmt.Errorf("its tag %s is %q in zone %q", resource.ZoneTag, tags[resource.ZoneTag], zone)
		}
		var b strings.Builder
		b.WriteString("/" + section)
		for _, tag := range slices.Sorted(maps.Keys(tags)) {
			if tag != resource.ZoneTag {
				b.WriteString("/" + escape(tag) + "/" + escape(tags[tag]))
			}
		}
		sections[i] = b.String()
	}
	slices.Sort(sections)
	name := scheme + host + dataplanes + dataplane + strings.Join(slices.Compact(sections), "")
	if longest := len(WithCredential(name, Credential(""))); longest > MaxBytes {
		return "", fmt.Errorf("its name in certificates, which its tags are part of, has %d bytes, and at most %d are possible: give it fewer or shorter tags", longest, MaxBytes)
	}
	return name, nil
}

// Credential is for a token in names: a hash of its ID, of 80 bits.
func Credential(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])[:credentialBytes]
}

// WithCredential returns a name of Of as it stands in a certificate that is issued on a
// credential.
func WithCredential(name, credential string) string {
	at := strings.Index(name, "/"+section)
	return name[:at] + "/" + by + "/" + credential + name[at:]
}

// isCredential reports whether a segment is a credential.
func isCredential(s string) bool {
	return len(s) == credentialBytes && strings.Trim(s, "0123456789abcdef") == ""
}

// Name is what a name in a certificate says.
type Name struct {
	Zone      resource.ZoneName
	Mesh      resource.MeshName
	Dataplane string
	// Credential is that of the token that the certificate was issued on; empty in a name
	// without one.
	Credential string
	// Sets are the tag sets, in the order of the name, each with the zone's tag.
	Sets []resource.Tags
}

// Parse reads what Of and WithCredential wrote. It refuses everything else.
func Parse(uri string) (Name, error) {
	var n Name
	refused := fmt.Errorf("%.80q is not the name of a dataplane", uri)
	rest, ok := strings.CutPrefix(uri, scheme)
	host, path, found := strings.Cut(rest, dataplanes)
	zone, mesh, both := strings.Cut(host, ".")
	if !ok || !found || !both {
		return n, refused
	}
	n.Zone, n.Mesh = resource.ZoneName(zone), resource.MeshName(mesh)
	parts := strings.Split(path, "/")
	n.Dataplane, parts = parts[0], parts[1:]
	if len(parts) > 1 && parts[0] == by && isCredential(parts[1]) {
		n.Credential, parts = parts[1], parts[2:]
	}
	for len(parts) > 0 {
		if parts[0] == section {
			n.Sets = append(n.Sets, resource.Tags{resource.ZoneTag: zone})
			parts = parts[1:]
			continue
		}
		if len(parts) == 1 || len(n.Sets) == 0 {
			return n, refused
		}
		tag, err := unescape(parts[0])
		value, err2 := unescape(parts[1])
		if err != nil || err2 != nil {
			return n, refused
		}
		n.Sets[len(n.Sets)-1][tag] = value
		parts = parts[2:]
	}
	again, err := Of(n.Zone, n.Mesh, n.Dataplane, n.Sets)
	if err == nil && n.Credential != "" {
		again = WithCredential(again, n.Credential)
	}
	if err != nil || again != uri {
		return n, refused
	}
	return n, nil
}

// Expressions are in the syntax of RE2. A name is matched as a whole.
const (
	anyLabel   = `[0-9a-z-]+`
	anyName    = `[0-9a-z.-]+`
	anySegment = `[\w.-]+`
	// anyPairs are pairs of a tag and its value, within one section.
	anyPairs = `(?:/(?:[0-9A-Za-z.-]|_[\w.-])[\w.-]*/[\w.-]+)*`
	anyRest  = `(?:/[\w.-]+)*`
)

// Pattern returns the expression that matches the names of a mesh's dataplanes, in all
// zones, of which a selector matches a tag set; an empty selector matches all of them.
// It begins with ^ and ends with $. The error is that of Host for a mesh.
func Pattern(mesh resource.MeshName, selector resource.TagSelector) (string, error) {
	if err := checkLabel("mesh", string(mesh)); err != nil {
		return "", err
	}
	zone := anyLabel
	if value, ok := selector[resource.ZoneTag]; ok && value != resource.AnyValue {
		if checkLabel("zone", value) != nil {
			return Nothing, nil // no dataplane of such a zone has a name
		}
		zone = value
	}
	var b strings.Builder
	b.WriteString(`^` + scheme + zone + `\.` + string(mesh) + dataplanes + anyName + anyRest)
	begun := false
	for _, tag := range slices.Sorted(maps.Keys(selector)) {
		if tag == resource.ZoneTag {
			continue
		}
		if !begun {
			b.WriteString("/" + section)
			begun = true
		}
		value := anySegment
		if selector[tag] != resource.AnyValue {
			value = regexp.QuoteMeta(escape(selector[tag]))
		}
		b.WriteString(anyPairs + "/" + regexp.QuoteMeta(escape(tag)) + "/" + value)
	}
	if begun {
		b.WriteString(anyRest)
	}
	return b.String() + `$`, nil
}

// DataplanePattern returns the expression that matches the name of one dataplane of a
// zone whatever its tags are. The error is that of Host.
func DataplanePattern(zone resource.ZoneName, mesh resource.MeshName, dataplane string) (string, error) {
	host, err := Host(zone, mesh)
	if err != nil {
		return "", err
	}
	return `^` + scheme + regexp.QuoteMeta(host) + dataplanes + regexp.QuoteMeta(dataplane) + anyRest + `$`, nil
}

// CredentialsPattern returns the expression that matches the names of a mesh's dataplanes,
// in all zones, that have one of some credentials. The error is that of Host for a mesh.
func CredentialsPattern(mesh resource.MeshName, credentials []string) (string, error) {
	if err := checkLabel("mesh", string(mesh)); err != nil {
		return "", err
	}
	if len(credentials) == 0 {
		return Nothing, nil
	}
	return `^` + scheme + anyLabel + `\.` + string(mesh) + dataplanes + anyName + "/" + by + "/(?:" + strings.Join(credentials, "|") + `)` + anyRest + `$`, nil
}

// escape spells a tag or value as a segment of a path.
func escape(s string) string {
	switch s {
	case "":
		return empty
	case ".", "..": // a path may not have such segments
		return strings.ReplaceAll(s, ".", "_2E")
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02X", c)
		}
	}
	return b.String()
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-'
}

// unescape reads what escape wrote; of what it cannot have written, some.
func unescape(s string) (string, error) {
	if s == empty {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '_':
			b.WriteByte(s[i])
		case i+2 >= len(s):
			return "", errors.New("it ends within a byte")
		default:
			c, err := hex.DecodeString(s[i+1 : i+3])
			if err != nil {
				return "", err
			}
			b.WriteByte(c[0])
			i += 2
		}
	}
	return b.String(), nil
}
