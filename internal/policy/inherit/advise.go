package inherit

import (
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Surveyor advises on policies and routes as they are written, in the words of
// their status (§5.8). It keeps nothing.
type Surveyor struct{}

var _ policy.Surveyor = Surveyor{}

// Survey implements policy.Surveyor.
func (Surveyor) Survey(view policy.View) policy.Adviser {
	return &adviser{view: view, named: map[resource.Key][]string{}, rules: map[resource.Key]map[string]int{}}
}

// maxGuesses bounds for how many names of a batch a misspelling is looked for.
const maxGuesses = 100

// adviser answers from one view. What it finds out about a mesh is kept for the
// rest of a batch.
type adviser struct {
	view policy.View
	// named has the names of a kind in a mesh, under a key without a name.
	named map[resource.Key][]string
	// rules counts the blocks that have a rule, under a key without a name.
	rules   map[resource.Key]map[string]int
	guesses int
}

// Advise implements policy.Adviser: a target that does not exist, an unset that
// the mesh forbids, a route that a gateway does not take, and a listener that selects no
// namespace.
func (a *adviser) Advise(_ policy.View, r *resource.Resource) []resource.Problem {
	report := &resource.Report{}
	mesh := r.Key().Mesh
	switch spec := r.Spec().(type) {
	case resource.InheritedSpec:
		at := spec.Target()
		meta := r.Meta()
		t := target{schema: schemaOf(r.Key().Kind), kind: resource.Kind(at.Kind), name: refer(&meta, at.Name), section: at.Section()}
		named := func(kind resource.Kind) []string { return a.objects(mesh, kind) }
		if name, why := a.mesh(mesh, t).missing(t, named); why != "" {
			report.Findf(resource.CodeTargetNotFound, "targetRef", "%s was not found, so the policy has no effect: %s", name, why)
		}
		if len(spec.UnsetRules()) > 0 && !mayUnset(a.view, mesh) {
			report.Findf(resource.CodeNoEffect, "unset", "has no effect: mesh %s forbids unsetting", mesh)
		}
		a.adviseRules(r, spec, report)
	case resource.RouteSpec:
		a.parents(newRoute(r), report)
	case *resource.Gateway:
		a.selectsNamespaces(spec, report)
	}
	return report.Problems
}

// mesh is as much of a mesh as a target needs.
func (a *adviser) mesh(name resource.MeshName, t target) *mesh {
	m := &mesh{name: name, gateways: map[string]*gateway{}, routes: map[resource.Key]*route{}}
	key := resource.Key{Kind: t.kind, Mesh: name, Name: t.name}
	switch found, ok := a.view.Get(key); {
	case !ok:
	case t.kind == resource.KindGateway:
		m.gateways[t.name] = newGateway(found)
	default:
		m.routes[key] = newRoute(found)
	}
	return m
}

// objects lists the names of a kind that a misspelled one is compared with; none
// when that has been done often enough.
func (a *adviser) objects(mesh resource.MeshName, kind resource.Kind) []string {
	if a.guesses++; a.guesses > maxGuesses {
		return nil
	}
	key := resource.Key{Kind: kind, Mesh: mesh}
	names, known := a.named[key]
	if !known {
		for r := range a.view.List(kind, mesh) {
			names = append(names, r.Key().Name)
		}
		a.named[key] = names
	}
	return names
}

// parents warns of parent gateways that do not exist, and of those of which no
// listener takes the route (§5.1).
func (a *adviser) parents(r *route, report *resource.Report) {
	for i := range r.parents {
		p, at := &r.parents[i], resource.Path("parentRefs").Index(i)
		if p.ParentKind() == "Service" && p.Port != nil {
			report.Findf(resource.CodeNoEffect, at.Field("port"), "has no effect: the route is on every outbound to the service, whatever its port")
		}
		if p.ParentKind() != string(resource.KindGateway) {
			continue
		}
		found, ok := a.view.Get(resource.Key{Kind: resource.KindGateway, Mesh: r.key.Mesh, Name: p.Name})
		if !ok {
			report.Findf(resource.CodeTargetNotFound, at.Field("name"), "there is no Gateway %s%s", p.Name, meant(p.Name, a.objects(r.key.Mesh, resource.KindGateway)))
			continue
		}
		known := a.namespacesFor(r)
		if _, why := known.refusal(newGateway(found), r, parentOf(p)); why != "" {
			if len(known) == 0 {
				why += meant(r.namespace(), a.objects("", resource.KindNamespace))
			}
			report.Findf(resource.CodeNotAttached, at, "attaches the route to nothing: %s", why)
		}
	}
	for _, bad := range r.badRefs() {
		report.Findf(resource.CodeNoEffect, bad.at, "has no effect: %s", bad.why)
	}
}

// namespacesFor has the labels of the route's namespace.
func (a *adviser) namespacesFor(r *route) namespaces {
	known := namespaces{}
	if found, ok := a.view.Get(resource.Key{Kind: resource.KindNamespace, Name: r.namespace()}); ok {
		known[r.namespace()] = resource.NamespaceLabels(found)
	}
	return known
}

// selectsNamespaces warns of listeners whose selector no namespace matches: no route
// may attach to them.
func (a *adviser) selectsNamespaces(g *resource.Gateway, report *resource.Report) {
	for i := range g.Listeners {
		rule := g.Listeners[i].AllowedRoutes
		if rule == nil || rule.Namespaces == nil || rule.Namespaces.Selector == nil || rule.Namespaces.From == nil || *rule.Namespaces.From != "Selector" {
			continue
		}
		selected := false
		for found := range a.view.List(resource.KindNamespace, "") {
			if selected = rule.Namespaces.Selector.Matches(resource.NamespaceLabels(found)); selected {
				break
			}
		}
		if !selected {
			report.Findf(resource.CodeNotAttached, resource.Path("listeners").Index(i).Field("allowedRoutes").Field("namespaces").Field("selector"),
				"selects no Namespace, so that no route may attach: apply the namespaces with their labels")
		}
	}
}
