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
	// maxZoneReports and maxReports bound those reports in bytes, of all instances of
	// a zone and of all zones of a server.
	maxZoneReports, maxReports = 256 << 10, 8 << 20
	// reportOverhead is what a report needs besides its texts, in bytes.
	reportOverhead = 64
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

// sizeOf is the memory that a report needs, in bytes.
func sizeOf(q Quarantined) int {
	return reportOverhead + len(q.Key.Kind) + len(q.Key.Mesh) + len(q.Key.Name) + len(q.Message)
}

// reportsLocked takes in what an instance of a zone says of resources that it did not
// accept, or now did.
func (r *registry) reportsLocked(zone resource.ZoneName, in *instance, nacks []*syncv1.Nack) {
	if len(nacks) == 0 {
		return
	}
	all, ofZone := maxReports, maxZoneReports
	for name, instances := range r.zones {
		for _, i := range instances {
			all -= i.reported
			if name == zone {
				ofZone -= i.reported
			}
		}
	}
	space := min(all, ofZone)
	for _, n := range nacks {
		before := in.reported
		in.report(n, space)
		space -= in.reported - before
	}
}

// report takes in one report, of which at most space bytes more are kept.
func (in *instance) report(n *syncv1.Nack, space int) {
	key, ok := keyOf(n)
	q := Quarantined{Key: key, Version: n.GetVersion(), Message: claim(n.GetMessage(), maxClaim)}
	old, known := in.quarantined[key]
	size := sizeOf(q)
	if known {
		size -= sizeOf(old)
	}
	switch {
	case n.GetCleared() && known:
		in.reported -= sizeOf(old)
		delete(in.quarantined, key)
	case n.GetCleared():
		in.unlisted = max(0, in.unlisted-1)
	case size > space && known:
		in.reported -= sizeOf(old)
		delete(in.quarantined, key)
		in.unlisted++
	case known, ok && len(in.quarantined) < maxQuarantined && size <= space:
		in.reported += size
		in.quarantined[key] = q
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
