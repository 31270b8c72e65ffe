// Package rows has tests with proxies assert what the table of package support says.
//
// Guarantees. Every field that the table calls enforced or approximated on a kind of proxy,
// but those of a list that only gets shorter, is claimed by an assertion of that proxy's tests, by a behaviour where there is one, and nothing is
// claimed that the table does not have. What it calls unsupported has no effect on what a
// proxy is sent, or fails closed where its note says so, and is reported.
//
// Non-goals: what an assertion does.
package rows

import (
	"slices"
	"strings"
	"testing"

	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/support"
)

// Claim says that fields of a kind are asserted.
type Claim struct {
	// By is the test that does it; nil for an entry of a list that a test goes through.
	By   func(*testing.T)
	Kind resource.Kind
	// Fields are as in the table, separated by spaces, after from for those of its items.
	// None stand for all of the kind.
	Fields string
}

// By is the claim of a test.
func By(test func(*testing.T), kind resource.Kind, fields string) Claim {
	return Claim{test, kind, fields}
}

// row is a place in the table.
type row struct {
	kind  resource.Kind
	from  bool
	field string
}

func (r row) String() string {
	if r.from {
		return string(r.kind) + " from " + r.field
	}
	return string(r.kind) + " " + r.field
}

// rows are what a claim is about.
func (c *Claim) rows() []row {
	names := strings.Fields(c.Fields)
	from := len(names) > 0 && names[0] == "from"
	if from {
		names = names[1:]
	}
	if len(names) == 0 {
		names = []string{""}
	}
	var all []row
	for _, name := range names {
		all = append(all, row{c.Kind, from, name})
	}
	return all
}

// Check requires that every row of the table of a kind of proxy that is enforced or
// approximated is asserted: by what requests meet or, where a short test cannot observe
// that, by the configuration that the proxy has loaded. Rows that are approximated and that
// tests with such a proxy do not assert are in elsewhere.
func Check(t *testing.T, d xds.Dialect, behaves, loads, elsewhere []Claim) {
	t.Helper()
	table := map[row]support.Status{}
	for r := range support.Rows(d) {
		table[row{r.Kind, r.From, r.Field}] = r.Status
	}
	for _, problem := range problems(table, behaves, loads, elsewhere) {
		t.Error(problem)
	}
}

// problems are what is wrong with the claims about a table, in order.
func problems(table map[row]support.Status, behaves, loads, elsewhere []Claim) (all []string) {
	claimed := func(claims []Claim) map[row]bool {
		rows := map[row]bool{}
		for i := range claims {
			for _, r := range claims[i].rows() {
				if _, ok := table[r]; !ok {
					all = append(all, r.String()+" is asserted, and no row of the table is about it")
				}
				rows[r] = true
			}
		}
		return rows
	}
	behaved, loaded, other := claimed(behaves), claimed(loads), claimed(elsewhere)
	for r, status := range table {
		switch {
		case behaved[r] && loaded[r]:
			all = append(all, r.String()+" is asserted by a behaviour: the configuration is not needed")
		case other[r] && (status != support.Approximated || behaved[r] || loaded[r]):
			all = append(all, r.String()+" is asserted, or is not approximated: take it from the list")
		case (status == support.Enforced || status == support.Approximated) && !behaved[r] && !loaded[r] && !other[r]:
			all = append(all, r.String()+" is "+string(status)+": assert it by a behaviour")
		}
	}
	slices.Sort(all)
	return all
}
