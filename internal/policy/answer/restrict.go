package answer

import (
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// May reports whether the reader of an answer may read a resource (§6.1), and whether
// one is known there.
type May func(key resource.Key) (read, known bool)

// Partial says that the reader of an answer may not read everything that it can rest
// on: that there is nothing in it is no statement then.
type Partial struct {
	Partial bool `json:"partial,omitempty"`
}

// nothing is the line for an answer without entries.
func (p Partial) nothing(whole string) string {
	if p.Partial {
		return "Nothing that you may read is in this answer; there may be more."
	}
	return whole
}

// all reports whether every policy of a kind may be read.
func (may May) all(mesh resource.MeshName, kind resource.Kind, names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !may.named(mesh, name, kind) })
}

// named reports whether a resource of one of the kinds may be read; an absent name
// stands for none.
func (may May) named(mesh resource.MeshName, name string, kinds ...resource.Kind) bool {
	return name == "" || slices.ContainsFunc(kinds, func(kind resource.Kind) bool {
		read, _ := may(resource.Key{Kind: kind, Mesh: mesh, Name: name})
		return read
	})
}

// route reports whether a route of which only the name is told may be read: each that
// there is by this name.
func (may May) route(mesh resource.MeshName, name string) bool {
	kinds := []resource.Kind{resource.KindHTTPRoute, resource.KindGRPCRoute, resource.KindMeshGatewayRoute}
	hidden := func(kind resource.Kind) bool {
		read, known := may(resource.Key{Kind: kind, Mesh: mesh, Name: name})
		return known && !read
	}
	return may.named(mesh, name, kinds...) && (name == "" || !slices.ContainsFunc(kinds, hidden))
}

// The methods Restrict take out of an answer what rests on resources that its
// reader may not read, and all prose, since it may name them. What takes effect on
// a dataplane as a whole, whether a caller is allowed, stays.

// Restrict leaves out what the reader may not read.
func (a *DataplaneAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	a.Warnings = []string{}
	a.Effective = slices.DeleteFunc(a.Effective, func(e Effective) bool {
		return !may.route(a.Mesh, e.Attachment.Route) || !may.all(a.Mesh, e.Kind, withoutReasons(e.Considered)...) || !may.successor(a.Mesh, e.SupersededBy)
	})
}

// successor reports whether every policy of a successor may be read; nil stands for
// none.
func (may May) successor(mesh resource.MeshName, by *Successor) bool {
	return by == nil || may.all(mesh, by.Kind, by.Policies...)
}

// hiddenZone stands for the name of a zone that the reader may not read.
const hiddenZone = "another"

// absences hides the zones that may not be read, and every reason, which may name
// anything.
func (may May) absences(all []Absence) {
	for i, a := range all {
		if read, _ := may(resource.Key{Kind: resource.KindZone, Name: string(a.Zone)}); !read {
			all[i].Zone = hiddenZone
		}
		all[i].Server, all[i].Reason = "", "not in this answer, or only with an earlier state"
	}
}

// HideZones hides the zones that the reader may not read.
func (a *ConnectionAnswer) HideZones(may May) { may.absences(a.Incomplete) }

// HideZones hides the zones that the reader may not read.
func (a *PolicyAnswer) HideZones(may May) {
	may.absences(a.Incomplete)
	may.hideUnenforced(a.Warnings)
}

// HideZones hides the zones that the reader may not read.
func (a *ProxiesAnswer) HideZones(may May) { may.absences(a.Incomplete) }

// HideZones hides the zones that the reader may not read.
func (a *DataplanesAnswer) HideZones(may May) { may.absences(a.Incomplete) }

// withoutReasons takes the prose out of verdicts and returns the policies.
func withoutReasons(list []Considered) []string {
	names := make([]string, len(list))
	for i := range list {
		list[i].Reason = ""
		names[i] = list[i].Policy
	}
	return names
}

// Restrict leaves out what the reader may not read.
func (a *WhyAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	a.Elsewhere = slices.DeleteFunc(a.Elsewhere, func(name string) bool { return !may.all(a.Mesh, a.Kind, name) })
	entries := func(e WhyEntry) bool {
		for i := range e.Fields {
			e.Fields[i].Reason = ""
			for j := range e.Fields[i].Losers {
				e.Fields[i].Losers[j].Reason = ""
			}
		}
		return !may.route(a.Mesh, e.Attachment.Route) || !may.all(a.Mesh, a.Kind, withoutReasons(e.Considered)...) || !may.successor(a.Mesh, e.SupersededBy)
	}
	a.Entries, a.Shadow = slices.DeleteFunc(a.Entries, entries), slices.DeleteFunc(a.Shadow, entries)
}

// Restrict leaves out what the reader may not read.
func (a *ConnectionAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	a.HideZones(may)
	permissions := func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool {
			return !may.all(a.Mesh, resource.KindTrafficPermission, name) && !may.all(a.Mesh, resource.KindMeshTrafficPermission, name)
		})
	}
	a.AllowedBy = permissions(a.AllowedBy)
	if s := a.Shadow; s != nil && (len(permissions(slices.Clone(s.AllowedBy))) < len(s.AllowedBy) || len(permissions(slices.Clone(s.DeniedBy))) < len(s.DeniedBy)) {
		a.Shadow = nil // what is tried is known to who may read all of it
	}
	for i := range a.Inbounds {
		a.Inbounds[i].AllowedBy, a.Inbounds[i].DeniedBy = permissions(a.Inbounds[i].AllowedBy), permissions(a.Inbounds[i].DeniedBy)
	}
	a.Effective = slices.DeleteFunc(a.Effective, func(e OnConnection) bool {
		return !may.route(a.Mesh, e.Route) || !may.all(a.Mesh, e.Kind, e.Policies...)
	})
	a.Superseded = slices.DeleteFunc(a.Superseded, func(s SupersededOnConnection) bool {
		return !may.all(a.Mesh, s.Kind, s.Policies...) || !may.successor(a.Mesh, s.By)
	})
}

// Restrict leaves out what the reader may not read.
func (a *PolicyAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	a.Warnings, a.MeshDataplanes = []Warning{}, 0
	a.HideZones(may)
	a.Dataplanes, a.Conditions = placesFor(may, a.Mesh, a.Dataplanes), withoutMessages(a.Conditions)
	a.Superseded = slices.DeleteFunc(a.Superseded, func(d SupersededDataplane) bool {
		return !may.successor(a.Mesh, d.By) || !may.all(a.Mesh, resource.KindDataplane, d.Name)
	})
	for i := range a.Superseded {
		a.Superseded[i].Attachments = attachmentsFor(may, a.Mesh, a.Superseded[i].Attachments)
	}
}

func placesFor(may May, mesh resource.MeshName, all []PolicyDataplane) []PolicyDataplane {
	all = slices.DeleteFunc(all, func(d PolicyDataplane) bool { return !may.all(mesh, resource.KindDataplane, d.Name) })
	for i := range all {
		all[i].Attachments = attachmentsFor(may, mesh, all[i].Attachments)
	}
	return all
}

func attachmentsFor(may May, mesh resource.MeshName, all []policy.Attachment) []policy.Attachment {
	return slices.DeleteFunc(all, func(at policy.Attachment) bool { return !may.route(mesh, at.Route) })
}

func withoutMessages(conditions []policy.Condition) []policy.Condition {
	for i := range conditions {
		conditions[i].Message = ""
	}
	return conditions
}

// Restrict leaves out what the reader may not read.
func (a *RuleAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	a.Dataplanes, a.Conditions = placesFor(may, a.Mesh, a.Dataplanes), withoutMessages(a.Conditions)
	a.Rules = slices.DeleteFunc(a.Rules, func(p RulePlace) bool {
		return !may.named(a.Mesh, p.Gateway, resource.KindGateway) || !may.route(a.Mesh, p.Route) || !may.named(a.Mesh, p.By, a.Kind)
	})
	for i := range a.Rules {
		a.Rules[i].Reason = ""
	}
}

// Restrict leaves out what the reader may not read.
func (a *RouteAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	// A route of another kind that shares the name is a resource of its own.
	other := func(kind resource.Kind) bool { return kind != "" && !may.named(a.Mesh, a.Route, kind) }
	a.Conditions = slices.DeleteFunc(withoutMessages(a.Conditions), func(c policy.Condition) bool { return other(c.RouteKind) })
	a.Paths = slices.DeleteFunc(pathsFor(may, a.Mesh, a.Paths), func(p RoutePath) bool { return other(p.RouteKind) })
}

// Restrict leaves out what the reader may not read.
func (a *GatewayAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	a.Conditions, a.Paths = withoutMessages(a.Conditions), pathsFor(may, a.Mesh, a.Paths)
	a.Rejected = slices.DeleteFunc(a.Rejected, func(r RejectedRoute) bool { return !may.named(a.Mesh, r.Route, r.RouteKind) })
	for i := range a.Rejected {
		a.Rejected[i].Message = ""
	}
}

// pathsFor keeps the paths of which the reader may read the gateway, the route, and
// every policy that is named.
func pathsFor(may May, mesh resource.MeshName, paths []RoutePath) []RoutePath {
	return slices.DeleteFunc(paths, func(p RoutePath) bool {
		by := slices.Concat(slices.Collect(maps.Values(p.Origins)), slices.Collect(maps.Values(p.Overridden)), slices.Collect(maps.Values(p.Unset)))
		for _, of := range []map[string][]string{p.OverriddenOf, p.UnsetOf} {
			by = append(by, slices.Concat(slices.Collect(maps.Values(of))...)...)
		}
		for i := range p.Skipped {
			p.Skipped[i].Reason = ""
			by = append(by, p.Skipped[i].Policy)
		}
		for i := range p.When {
			p.When[i].Reason = ""
			by = append(by, p.When[i].Policy)
		}
		return !may.named(mesh, p.Gateway, resource.KindGateway) || !may.named(mesh, p.Route, p.RouteKind) || !may.all(mesh, p.Kind, by...)
	})
}

// HideZones hides the zones that the reader may not read.
func (a *ConditionsAnswer) HideZones(may May) {
	may.absences(a.Incomplete)
	for i := range a.Items {
		for _, c := range a.Items[i].Conditions {
			for j, in := range c.Proxies {
				if read, _ := may(resource.Key{Kind: resource.KindZone, Name: string(in.Zone)}); !read {
					c.Proxies[j].Zone = hiddenZone
				}
			}
		}
	}
}

// Restrict leaves out what the reader may not read, and how many proxies there are.
func (a *ConditionsAnswer) Restrict(may May) {
	a.HideZones(may)
	for i := range a.Items {
		for j := range a.Items[i].Conditions {
			a.Items[i].Conditions[j].Proxies = nil
		}
	}
	a.Items = slices.DeleteFunc(a.Items, func(i ConditionsItem) bool { return !may.all(i.Mesh, a.Kind, i.Name) })
}

// Restrict leaves out what the reader may not read, how many policies there are, and
// why a proxy refused its configuration, which may name any of them.
func (a *DataplanesAnswer) Restrict(may May) {
	a.HideZones(may)
	a.Items = slices.DeleteFunc(a.Items, func(d DataplaneSummary) bool { return !may.all(d.Mesh, resource.KindDataplane, d.Name) })
	for i := range a.Items {
		a.Items[i].Policies = nil
		if state := a.Items[i].ProxyState; state != nil {
			shown := *state // which others may share
			shown.LastError = ""
			a.Items[i].ProxyState = &shown
		}
	}
}
