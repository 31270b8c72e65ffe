package answer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// maxRolledOut bounds how many resources a document says to be changed by rollouts.
const maxRolledOut = 200

// RolledOut is a resource that a zone shows as a rollout changes it, while the global has
// the one before.
type RolledOut struct {
	Kind    resource.Kind     `json:"kind"`
	Mesh    resource.MeshName `json:"mesh,omitempty"`
	Name    string            `json:"name"`
	Deleted bool              `json:"deleted,omitempty"`
	Rollout string            `json:"rollout"`
	Zone    resource.ZoneName `json:"zone,omitempty"`
}

// String says it in a sentence without its end.
func (r RolledOut) String() string {
	key, what := resource.Key{Kind: r.Kind, Mesh: r.Mesh, Name: r.Name}, "is"
	if r.Deleted {
		what = "is deleted"
	}
	return fmt.Sprintf("%s %s as Rollout %s changes it in zone %q", key, what, r.Rollout, r.Zone)
}

// RolledOutIn returns what a document about a mesh, or about all where it is empty, says
// of resources that a zone shows by a rollout: those that the document names, and those
// that are deleted, which it cannot name.
func RolledOutIn(view policy.View, mesh resource.MeshName, zone resource.ZoneName, document []byte) []RolledOut {
	var all []RolledOut
	var named map[string]bool
	for r := range view.List(resource.KindRollout, "") {
		rollout, ok := r.Spec().(*resource.Rollout)
		if !ok || !rollout.Status.Shows(zone) {
			continue
		}
		if named == nil {
			named = map[string]bool{}
			for word := range words(string(document)) {
				named[word[strings.LastIndexByte(word, '/')+1:]] = true
			}
		}
		for i := range rollout.Changes {
			key := rollout.Changes[i].Key()
			if mesh != "" && key.Mesh != "" && key.Mesh != mesh {
				continue
			}
			shown, there := view.Get(key)
			deleted := rollout.Changes[i].Delete != nil
			if deleted == there || there && (shown.Meta().Rollout != r.Key().Name || !named[key.Name]) {
				continue
			}
			all = append(all, RolledOut{Kind: key.Kind, Mesh: key.Mesh, Name: key.Name, Deleted: deleted, Rollout: r.Key().Name, Zone: zone})
		}
	}
	return all
}

// RolledOutOf returns what a document, of any kind of answer, says of rollouts.
func RolledOutOf(document []byte) []RolledOut {
	var d struct {
		Rollouts []RolledOut `json:"rollouts"`
	}
	if Unmarshal(document, &d) != nil {
		return nil
	}
	return d.Rollouts
}

// WithRolledOut adds to an encoded document, as its last member `rollouts`, what is shown
// by rollouts, sorted and each once. A document is an object that Marshal has written.
func WithRolledOut(document []byte, all []RolledOut) ([]byte, error) {
	open, object := bytes.CutSuffix(bytes.TrimSpace(document), []byte("\n}"))
	if len(all) == 0 || !object {
		return document, nil
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b RolledOut) int {
		return cmp.Or(cmp.Compare(a.Rollout, b.Rollout), cmp.Compare(a.Zone, b.Zone),
			resource.Key{Kind: a.Kind, Mesh: a.Mesh, Name: a.Name}.Compare(resource.Key{Kind: b.Kind, Mesh: b.Mesh, Name: b.Name}))
	})
	all = slices.Compact(all)
	member, err := json.MarshalIndent(all[:min(len(all), maxRolledOut)], "  ", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return slices.Concat(open, []byte(",\n  \"rollouts\": "), member, []byte("\n}\n")), nil
}

// keepRolledOut adds to a merged document what its parts say of rollouts.
func keepRolledOut(merged []byte, err error, parts ...Part) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	var all []RolledOut
	for _, part := range parts {
		for _, r := range RolledOutOf(part.JSON) {
			r.Zone = cmp.Or(part.Zone, r.Zone) // a zone speaks of itself
			all = append(all, r)
		}
	}
	return WithRolledOut(merged, all)
}
