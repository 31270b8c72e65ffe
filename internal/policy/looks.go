package policy

import (
	"slices"

	"meridian/internal/resource"
)

// Look is one kind on one attachment of dataplanes that share what takes effect on them.
type Look struct {
	// Dataplane is the first of the dataplanes by name, and Dataplanes counts them.
	Dataplane  resource.Key
	Dataplanes int
	Subject    *Dataplane
	Attachment *Attachment
	Kind       resource.Kind
	// Candidates are a superset of the policies that reach the attachment, and Rules what
	// they come to without the reasons, superseded or not. Both are valid during the call
	// only.
	Candidates []*Policy
	Rules      []Rule
	// Superseded is what holds in place of the rules (§4.11), or nil.
	Superseded *Superseded
}

// Looks calls do for every kind on every attachment of the dataplanes of a mesh, each
// once for the dataplanes that share an answer, until do returns an error, which it
// returns. Kinds of which nothing may reach the attachment are left out, and those that are
// not among only, unless that is nil.
func (r *Reading) Looks(mesh resource.MeshName, only map[resource.Kind]bool, do func(*Look) error) error {
	ms := r.m.meshes[mesh]
	if ms == nil {
		return nil
	}
	var kinds []resource.Kind
	for kind := range ms.kinds {
		if only == nil || only[kind] {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	var candidates, other []*Policy
	seen := map[*group]map[string]bool{}
	for key := range r.Dataplanes(mesh) {
		g := r.m.dataplanes[key]
		subject := ms.subject(g, key.Name)
		if seen[g] == nil {
			seen[g] = map[string]bool{}
		}
		if seen[g][subject.Name] {
			continue
		}
		seen[g][subject.Name] = true
		count := 1
		if subject.Name == "" {
			count = 0
			for name := range g.members {
				if ms.named[name] == 0 {
					count++
				}
			}
		}
		for _, kind := range kinds {
			for i := range subject.Attachments {
				rules := r.m.matchedAtLocked(ms, subject, i, kind, &candidates)
				if len(candidates) == 0 {
					continue
				}
				look := Look{
					Dataplane: key, Dataplanes: count, Subject: subject, Attachment: &subject.Attachments[i], Kind: kind,
					Candidates: candidates, Rules: rules,
				}
				if len(rules) > 0 {
					look.Superseded = r.m.successorAtLocked(ms, subject, i, kind, &other)
				}
				if err := do(&look); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Place is where a step stands among those of its rule.
type Place struct {
	// Used is whether the step has a say in the result.
	Used bool
	// Rival is the index of the step that it lost to, or of the first that it won from;
	// -1 where there is none.
	Rival int
}

// Places says of every step whether it has a say in what the rule comes to.
func (r *Rule) Places() []Place {
	verdicts := r.stepVerdicts
	if r.PerCaller {
		verdicts = r.callerVerdicts
	}
	var places []Place
	for _, v := range verdicts() {
		places = append(places, Place{Used: v.used, Rival: v.rival})
	}
	return places
}

// Placer is a Precedence that knows which part of its policy the step is.
type Placer interface {
	Precedence
	// Part is the place in the spec, such as an item; empty for the whole.
	Part() resource.Path
}
