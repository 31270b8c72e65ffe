package identity

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"meridian/internal/resource"
)

const (
	// KeptFor is for how long after a token has expired its record and its revocation are
	// kept at least. A certificate that was issued on it has ended by then.
	KeptFor = 24 * time.Hour
	// MaxLifetime is the longest time for which a dataplane's certificate is valid.
	MaxLifetime = 365 * 24 * time.Hour / 2
	// MaxDenied bounds the credentials of a mesh that are denied. Each of its servers is
	// sent all of them.
	MaxDenied = 2000
)

// dataplaneToken is what resources call the tokens of dataplanes.
const dataplaneToken = "dataplane-token"

// Revocation says that a token of dataplanes was revoked.
type Revocation struct {
	// Credential is for the token, in names.
	Credential string
	// Mesh is that of the dataplanes that could register with the token; empty for any.
	Mesh resource.MeshName
	// At is when the token was revoked; zero when it is not known.
	At time.Time
	// Ends is when the last certificate that was issued on the token has ended; zero when
	// it is not known.
	Ends time.Time
	// Stored is what says so.
	Stored resource.Key
}

// RevocationOf returns the revocation that a TokenRevocation or the record of a token is.
func RevocationOf(r *resource.Resource) (Revocation, bool) {
	found := Revocation{Stored: r.Key()}
	var id, expires string
	switch spec := r.Spec().(type) {
	case *resource.TokenRevocation:
		if spec.Use != dataplaneToken {
			return Revocation{}, false
		}
		id, expires, found.At = spec.ID, spec.Expires, r.Meta().CreationTime
		found.Mesh = resource.MeshName(r.Meta().Labels[resource.TokenMeshLabel])
	case *resource.IssuedToken:
		if spec.Use != dataplaneToken || !spec.Revoked {
			return Revocation{}, false
		}
		id, expires, found.At = spec.ID, spec.Expires, r.Meta().ModificationTime
		found.Mesh = MeshOf(spec)
	default:
		return Revocation{}, false
	}
	found.Credential = Credential(id)
	if !found.At.IsZero() {
		found.Ends = found.At.Add(MaxLifetime)
	}
	if t, err := time.Parse(time.RFC3339, expires); err == nil && (found.Ends.IsZero() || t.Add(KeptFor).Before(found.Ends)) {
		found.Ends = t.Add(KeptFor)
	}
	return found, true
}

// MeshOf is the mesh of the dataplanes that can register with a token of dataplanes; empty
// for any.
func MeshOf(token *resource.IssuedToken) resource.MeshName {
	mesh, _, named := strings.Cut(token.Subject, "/")
	if token.Use != dataplaneToken || !named || mesh == "*" {
		return ""
	}
	return resource.MeshName(mesh)
}

// Revocations are those of every mesh. Immutable.
type Revocations struct {
	of map[resource.MeshName][]Revocation // the newest first; those of any mesh have no name
}

// RevocationsIn lists those in some resources.
func RevocationsIn(each func(yield func(*resource.Resource) bool)) Revocations {
	all := Revocations{of: map[resource.MeshName][]Revocation{}}
	for r := range each {
		if found, ok := RevocationOf(r); ok {
			all.of[found.Mesh] = append(all.of[found.Mesh], found)
		}
	}
	for _, list := range all.of {
		slices.SortFunc(list, newestFirst)
	}
	return all
}

func newestFirst(a, b Revocation) int {
	return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Credential, b.Credential), a.Stored.Compare(b.Stored))
}

// Denied returns the credentials that servers of a mesh deny, in order, and how many more
// could be those of valid certificates: the last MaxDenied are denied.
//
// When the last certificate on a token has ended, its credential is left out from the next
// revocation on that concerns the mesh, and not before. So the list changes with
// revocations only, and not with time: connections are closed when it changes.
func (r Revocations) Denied(mesh resource.MeshName) (credentials []string, left int) {
	all := slices.Concat(r.of[mesh], r.of[""])
	slices.SortFunc(all, newestFirst)
	seen := map[string]bool{}
	for _, revocation := range all {
		if seen[revocation.Credential] || revocation.overBy(all[0].At) {
			continue
		}
		seen[revocation.Credential] = true
		if len(credentials) == MaxDenied {
			left++
			continue
		}
		credentials = append(credentials, revocation.Credential)
	}
	slices.Sort(credentials)
	return credentials, left
}

// Over reports whether a revocation makes no difference to Denied, of any mesh.
func (r Revocations) Over(revocation Revocation) bool {
	for _, mesh := range []resource.MeshName{revocation.Mesh, ""} {
		if list := r.of[mesh]; len(list) > 0 && revocation.overBy(list[0].At) {
			return true
		}
	}
	return false
}

// overBy reports whether every certificate on the token had ended by a time.
func (r Revocation) overBy(at time.Time) bool { return !r.Ends.IsZero() && at.After(r.Ends) }
