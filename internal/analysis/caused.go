package analysis

import (
	"context"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

// maxAround bounds the resources beside those of a change, in its meshes or among the
// access rules, that it is looked at for what the change makes of them.
const maxAround = 2_000

// Caused is what a change makes of resources that is found without matching: what is found
// after it and was not before. keys are those of the change. What its author is told of the
// written resources themselves, by the surveyors of engines, is left out; so is what is
// found of others with the first dataplanes of their mesh, since nothing was known before.
// Where more than 2,000 resources are around the change, only its own are looked at.
// Errors: that of ctx, once it has ended.
func Caused(ctx context.Context, before, after policy.View, keys []resource.Key) ([]policy.Advice, error) {
	changed := map[resource.Key]bool{}
	for _, key := range keys {
		changed[key] = true
	}
	aroundBefore, few := aroundOf(before, changed)
	aroundAfter, still := aroundOf(after, changed)
	if !few || !still {
		aroundBefore, aroundAfter = nil, nil
	}
	was, err := stands(ctx, before, changed, aroundBefore)
	if err != nil {
		return nil, err
	}
	is, err := stands(ctx, after, changed, aroundAfter)
	if err != nil {
		return nil, err
	}
	caused := Added(was, is)
	return slices.DeleteFunc(caused, func(a policy.Advice) bool {
		return !changed[a.Key] && !hasDataplanes(before, a.Key.Mesh) && hasDataplanes(after, a.Key.Mesh)
	}), nil
}

func hasDataplanes(view policy.View, mesh resource.MeshName) bool {
	for range view.List(resource.KindDataplane, mesh) {
		return true
	}
	return false
}

// Added are the findings of after that are not among before, whatever their reasons.
func Added(before, after []policy.Advice) []policy.Advice {
	type id struct {
		key  resource.Key
		code resource.Code
		path resource.Path
	}
	known := map[id]bool{}
	for i := range before {
		known[id{before[i].Key, before[i].Code, before[i].Path}] = true
	}
	var out []policy.Advice
	for i := range after {
		if a := &after[i]; !known[id{a.Key, a.Code, a.Path}] {
			out = append(out, *a)
		}
	}
	return out
}

// stands is what is found of changed resources, and of those around them, in a view.
func stands(ctx context.Context, view policy.View, changed map[resource.Key]bool, around []*resource.Resource) ([]policy.Advice, error) {
	var own []*resource.Resource
	for key := range changed {
		if r, ok := view.Get(key); ok {
			own = append(own, r)
		}
	}
	found, err := policy.Lint(ctx, view, own, surveyor{})
	if err != nil {
		return nil, err
	}
	others, err := policy.Lint(ctx, view, around, append(engines.Surveyors(), surveyor{})...)
	if err != nil {
		return nil, err
	}
	report := Report{Findings: append(found, others...)}
	report.sort()
	return report.Findings, nil
}

// aroundOf are the resources beside those that change; few is false where there are too
// many.
func aroundOf(view policy.View, changed map[resource.Key]bool) (around []*resource.Resource, few bool) {
	meshes, access := map[resource.MeshName]bool{}, false
	for key := range changed {
		switch {
		case key.Kind == resource.KindMesh:
			meshes[resource.MeshName(key.Name)] = true
		case key.Mesh != "":
			meshes[key.Mesh] = true
		}
		access = access || isAccess(key.Kind)
	}
	take := func(kind resource.Kind, mesh resource.MeshName) bool {
		for r := range view.List(kind, mesh) {
			if changed[r.Key()] {
				continue
			}
			if around = append(around, r); len(around) > maxAround {
				return false
			}
		}
		return true
	}
	for _, d := range resource.Kinds() {
		switch {
		case d.Sensitive || d.Kind == resource.KindDataplane:
		case isAccess(d.Kind):
			if access && !take(d.Kind, "") {
				return nil, false
			}
		case d.Scope == resource.MeshScoped:
			for mesh := range meshes {
				if !take(d.Kind, mesh) {
					return nil, false
				}
			}
		}
	}
	for mesh := range meshes {
		key := resource.Key{Kind: resource.KindMesh, Name: string(mesh)}
		if r, ok := view.Get(key); ok && !changed[key] {
			around = append(around, r)
		}
	}
	return around, true
}

func isAccess(kind resource.Kind) bool {
	return kind == resource.KindAccessRole || kind == resource.KindAccessRoleBinding
}
