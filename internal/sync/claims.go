package zonesync

import (
	"fmt"
	"strings"
	"unicode"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
)

// What a zone says of itself is kept by the global and shown to operators. A zone
// is not trusted beyond its token: what it says is shortened and counted where it
// is received.
const (
	// maxClaim bounds a text of a zone that is kept, in bytes: an error, why a
	// resource was not accepted.
	maxClaim = 512
	// maxVersion and maxDigest bound the version that a zone names and the digest of
	// the authorities that it trusts, in bytes.
	maxVersion, maxDigest = 64, 64
	// maxInstanceName bounds the name of an instance, in bytes; zones make names of
	// 32.
	maxInstanceName = 128
	// maxInstances bounds the connected instances of a zone.
	maxInstances = 32
	// maxQuarantined bounds the quarantine reports kept per instance. The others are
	// counted.
	maxQuarantined = 1000
)

// claim shortens a text of a zone to at most limit bytes, on one line and without
// characters that act on a terminal. A mark says that it was cut.
func claim(text string, limit int) string {
	const mark = "…"
	cut := len(text) > limit
	if cut {
		text = text[:limit-len(mark)]
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return -1
	}, strings.ToValidUTF8(text, ""))
	if cut {
		text += mark
	}
	return text
}

// checkInstance refuses names of instances that are none.
func checkInstance(name string) error {
	switch {
	case len(name) > maxInstanceName:
		return fmt.Errorf("the name of the instance has %d bytes; at most %d are allowed", len(name), maxInstanceName)
	case claim(name, maxInstanceName) != name:
		return fmt.Errorf("the name of the instance has characters that do not print: %q", name)
	}
	return nil
}

// keyOf is the resource that a report is about; false for what no resource is
// called.
func keyOf(n *syncv1.Nack) (resource.Key, bool) {
	key := resource.Key{Kind: resource.Kind(n.GetKind()), Mesh: resource.MeshName(n.GetMesh()), Name: n.GetName()}
	mesh := key.Mesh == "" || resource.CheckName(string(key.Mesh)) == nil
	return key, mesh && resource.CheckName(key.Name) == nil && len(key.Kind) <= maxVersion && claim(string(key.Kind), maxVersion) == string(key.Kind)
}

// report takes in what an instance says of a resource that it did not accept, or
// now did.
func (in *instance) report(n *syncv1.Nack) {
	key, ok := keyOf(n)
	_, known := in.quarantined[key]
	switch {
	case n.GetCleared() && known:
		delete(in.quarantined, key)
	case n.GetCleared():
		in.unlisted = max(0, in.unlisted-1)
	case known, ok && len(in.quarantined) < maxQuarantined:
		in.quarantined[key] = Quarantined{Key: key, Version: n.GetVersion(), Message: claim(n.GetMessage(), maxClaim)}
	default:
		in.unlisted++
	}
}

// problem is what last went wrong at an instance, with a mark for reports that are
// not listed.
func (in *instance) problem() string {
	if in.unlisted == 0 {
		return in.lastError
	}
	more := fmt.Sprintf("%d more reports of resources that it did not accept are not listed", in.unlisted)
	if in.lastError == "" {
		return more
	}
	return in.lastError + "; " + more
}
