// Package support says what proxies do with every field that a document can have:
// enforced, approximated or unsupported, for each kind of proxy.
//
// Guarantees. Every field of every kind that proxies could obey has a row, which a test
// demands; one that is enforced has a row of its own, so that a field added to a kind
// is not called enforced by accident.
//
// Non-goals: access rules, secrets and what else never concerns a proxy.
package support

import (
	"iter"
	"slices"
	"strings"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

// Status is what a proxy does with a field.
type Status string

// The statuses.
const (
	// Enforced: the proxy does what the field says.
	Enforced Status = "enforced"
	// Approximated: it does something near to it, which the note describes.
	Approximated Status = "approximated"
	// Unsupported: the field has no effect on it.
	Unsupported Status = "unsupported"
	// Decided: the field decides where the document holds, which the zone works out,
	// so that it is the same for every proxy.
	Decided Status = "decided by the zone"
)

// Answer is what a proxy does with one field.
type Answer struct {
	Status Status `json:"status"`
	// Note is a sentence about it, or empty.
	Note string `json:"note,omitempty"`
}

// row is the answer for a field, and for what is inside it and has no row of its own.
type row struct {
	kind resource.Kind
	// direction is "from" for a row about the items of from; else it is for the
	// configuration elsewhere.
	direction string
	// field is the place in what the kind configures, as FieldDoc has it; for kinds that
	// configure nothing, in the spec. Empty: all of it.
	field []string
	Answer
}

// Dialects lists the kinds of proxies that there are answers for.
func Dialects() []xds.Dialect { return []xds.Dialect{xds.GRPC, xds.Envoy} }

func table(d xds.Dialect) map[resource.Kind][]row {
	switch d {
	case xds.GRPC:
		return grpcTable
	case xds.Envoy:
		return envoyTable
	}
	return nil
}

// Row is a row of the table of a kind of proxy.
type Row struct {
	Kind resource.Kind
	// From tells that it is about the items of from; else it is about the configuration
	// elsewhere.
	From bool
	// Field is the place in what the kind configures, such as http[].delay.value; for kinds
	// that configure nothing, in the spec. Empty: all of it.
	Field string
	Answer
}

// Rows returns every row of the table of a kind of proxy, in no order.
func Rows(d xds.Dialect) iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for kind, rows := range table(d) {
			for _, r := range rows {
				if !yield(Row{kind, r.direction == "from", strings.ReplaceAll(strings.Join(r.field, "."), ".[]", "[]"), r.Answer}) {
					return
				}
			}
		}
	}
}

// Field returns the answer for a field of a kind's spec, as resource.Fields has its
// path; false for a kind that does not concern proxies.
func Field(d xds.Dialect, kind resource.Kind, path string) (Answer, bool) {
	if table(d)[kind] == nil {
		return Answer{}, false
	}
	direction, field, configured := place(kind, split(path))
	if !configured {
		return Answer{Status: Decided}, true
	}
	return find(d, kind, direction, field)
}

// Written returns the answer for a field as a document writes it: the names of the
// members that lead to it in the spec, with [] for an item of a list. direction is
// "from" or "to" for what holds on inbounds or outbounds only, else empty. It is false
// for a kind that does not concern proxies.
func Written(d xds.Dialect, kind resource.Kind, path []string) (a Answer, direction string, ok bool) {
	if table(d)[kind] == nil || len(path) == 0 {
		return Answer{}, "", false
	}
	direction, field, configured := place(kind, path)
	if !configured {
		return Answer{Status: Decided}, direction, true
	}
	a, ok = find(d, kind, direction, field)
	return a, direction, ok
}

// Configured returns the answer for a field of what a policy configures: the names of
// the members that lead to it, with [] for an item of a list. direction is "from" for
// what holds on inbounds.
func Configured(d xds.Dialect, kind resource.Kind, direction string, field []string) (Answer, bool) {
	return find(d, kind, direction, field)
}

// find returns the answer of the longest row around a field.
func find(d xds.Dialect, kind resource.Kind, direction string, field []string) (Answer, bool) {
	if direction != "from" {
		direction = ""
	}
	var best *row
	rows := table(d)[kind]
	for i := range rows {
		r := &rows[i]
		if r.direction == direction && r.covers(field) && (best == nil || len(r.field) > len(best.field)) {
			best = r
		}
	}
	if best == nil {
		return Answer{}, false
	}
	return best.Answer, true
}

// covers reports whether a field is the row's, or inside it.
func (r *row) covers(field []string) bool {
	if len(r.field) > len(field) {
		return false
	}
	for i, name := range r.field {
		if name != "*" && name != field[i] {
			return false
		}
	}
	return true
}

// split takes the path of a field apart: a.b[].c is a, b, [], c.
func split(path string) []string {
	if path == "" {
		return nil
	}
	var names []string
	for name := range strings.SplitSeq(path, ".") {
		bare := strings.TrimRight(name, "[]")
		names = append(names, bare)
		for range (len(name) - len(bare)) / len("[]") {
			names = append(names, "[]")
		}
	}
	return names
}

// place finds the field of the configuration that a field of a spec is, in whatever
// form the policy is written (§4.1, §4.10); false for a field that says where a policy
// holds.
func place(kind resource.Kind, path []string) (direction string, field []string, configured bool) {
	d, ok := resource.Describe(kind)
	if !ok || (d.Class != resource.SourceDestination && d.Class != resource.TargetRef) {
		return "", path, true
	}
	if slices.Contains([]string{"sources", "destinations", "selectors", "targetRef", "unset"}, path[0]) {
		return "", nil, false
	}
	drop := func(names ...string) bool {
		if len(path) > 0 && slices.Contains(names, path[0]) {
			path = path[1:]
			return true
		}
		return false
	}
	block := drop("conf", "default", "defaults", "overrides")
	if d.Class == resource.SourceDestination {
		return "", path, block
	}
	for _, items := range []string{"to", "from"} {
		if drop(items) {
			direction = items
			drop("[]")
			drop("default")
		}
	}
	if len(path) == 0 || slices.Contains([]string{"targetRef", "strategy", "when", "onError", "unset"}, path[0]) {
		return direction, nil, false
	}
	return direction, path, true
}
