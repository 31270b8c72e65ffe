package plan

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"meridian/internal/analysis"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/inherit"
	"meridian/internal/resource"
)

// maxRoutes bounds the routes that are compared.
const maxRoutes = 2_000

// RoutesOf adds what a change would make of the rules of inherited policies (§5), of a
// matcher that follows them. It fails only with the cause of ctx.
func (p *Plan) RoutesOf(ctx context.Context, m *policy.Matcher, change *Batch) error {
	var before policy.View
	_ = m.Read(func(r *policy.Reading) error { // which returns no error
		before = r.View()
		return nil
	})
	view := change.On(before)
	index, ok := policy.FollowerOf[*inherit.Index](m)
	meshes := inherit.Touched(view, change.Keys())
	if !ok || len(meshes) == 0 {
		return nil
	}
	later := policy.NewMatcher().Following(index.Fork())
	later.Reset(within{view, meshes})
	if err := p.overridden(ctx, within{before, meshes}, m, within{view, meshes}, later); err != nil {
		return err
	}
	compared := 0
	for _, mesh := range slices.Sorted(maps.Keys(meshes)) {
		for _, route := range routesIn(mesh, before, view) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if compared++; compared > maxRoutes {
				p.Left.Routes++
				continue
			}
			p.route(mesh, route, pathsOf(m, mesh, route), pathsOf(later, mesh, route))
		}
	}
	return nil
}

// overridden adds the policies of which others would override everything.
func (p *Plan) overridden(ctx context.Context, before policy.View, m *policy.Matcher, after policy.View, later *policy.Matcher) error {
	now, ok := policy.FollowerOf[policy.Conditioner](m)
	if !ok {
		return nil
	}
	then, ok := policy.FollowerOf[policy.Conditioner](later)
	if !ok {
		return nil
	}
	was, err := analysis.Overridden(ctx, before, now)
	if err != nil {
		return err
	}
	is, err := analysis.Overridden(ctx, after, then)
	p.finds(analysis.Added(was, is))
	return err
}

// within is a view of some meshes.
type within struct {
	policy.View
	meshes map[resource.MeshName]bool
}

// List implements policy.View.
func (w within) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	if mesh != "" || kind == resource.KindNamespace {
		return w.View.List(kind, mesh)
	}
	return func(yield func(*resource.Resource) bool) {
		for _, name := range slices.Sorted(maps.Keys(w.meshes)) {
			for r := range w.View.List(kind, name) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// routesIn are the names of the routes of a mesh in any of the views.
func routesIn(mesh resource.MeshName, views ...policy.View) []string {
	names := map[string]bool{}
	for _, view := range views {
		for _, kind := range []resource.Kind{resource.KindHTTPRoute, resource.KindGRPCRoute} {
			for r := range view.List(kind, mesh) {
				names[r.Key().Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// pathsOf are the paths of a route, by what they are; none where there is no such route or
// too much of it.
func pathsOf(m *policy.Matcher, mesh resource.MeshName, route string) map[string]*answer.RoutePath {
	paths := map[string]*answer.RoutePath{}
	a, err := answer.Route(m, mesh, route, 0)
	if err != nil {
		return paths
	}
	for i := range a.Paths {
		path := &a.Paths[i]
		paths[strings.Join([]string{path.Gateway, path.Listener, path.Rule, string(path.Kind), string(path.RouteKind)}, "\x00")] = path
	}
	return paths
}

// route adds the rules that differ on the paths of a route.
func (p *Plan) route(mesh resource.MeshName, route string, before, after map[string]*answer.RoutePath) {
	for _, id := range slices.Sorted(maps.Keys(union(before, after))) {
		was, is := before[id], after[id]
		path := is
		if path == nil {
			path = was
		}
		ids := map[string]bool{}
		for _, side := range []*answer.RoutePath{was, is} {
			if side != nil {
				for rule := range side.Origins {
					ids[rule] = true
				}
			}
		}
		for _, rule := range slices.Sorted(maps.Keys(ids)) {
			row := RouteRule{
				Mesh: mesh, Route: route, Gateway: path.Gateway, Listener: path.Listener, Rule: path.Rule, Kind: path.Kind,
				Field: rule, Before: ruleOf(was, rule), After: ruleOf(is, rule),
			}
			if is != nil {
				row.By = is.Origins[rule]
			}
			switch {
			case text(row.Before) == text(row.After):
			case len(p.Routes) == maxOthers:
				p.Left.Routes++
			default:
				p.Routes = append(p.Routes, row)
			}
		}
	}
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// ruleOf returns a rule of a path by its name, as `unset` names it; nil for none.
func ruleOf(path *answer.RoutePath, name string) any {
	if path == nil {
		return nil
	}
	for section, v := range path.Rules {
		if (resource.RuleID{Name: section}).String() == name && path.Kind == resource.KindRateLimitPolicy {
			return v
		}
		rules, ok := v.(policy.Tree)
		if !ok {
			continue
		}
		for id, rule := range rules {
			if (resource.RuleID{Section: section, Name: id}).String() == name {
				return rule
			}
		}
	}
	return nil
}
