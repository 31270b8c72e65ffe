package audit

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
)

// maxDistinct is how many different refusals are distinguished within SyncEvery;
// further ones count as one.
const maxDistinct = 256

// burst aggregates equal refusals, so that a client that fails a million times
// leaves a few lines and does not displace other records. The zero value is empty.
type burst struct {
	seen  map[refusal]*aggregated
	order int
}

// refusal is what makes two refusals equal: all but time, request and port.
type refusal struct{ name, source, token, host, method, rule, target string }

type aggregated struct {
	record Record
	order  int
}

// beyond is the refusal that those beyond maxDistinct count as.
var beyond = refusal{rule: "TOO_MANY_TO_TELL_APART"}

// aggregate reports whether a refusal was counted into an earlier one, and is not
// to be written now.
func (c *burst) aggregate(r Record) bool {
	host, _, err := net.SplitHostPort(r.From)
	if err != nil {
		host = r.From
	}
	of := refusal{name: r.Who.Name, source: r.Who.Source, token: r.Who.Token, host: host, method: r.Method, rule: r.Rule}
	if len(r.Targets) > 0 {
		t := r.Targets[0]
		of.target = strings.Join([]string{t.Action, t.Kind, t.Mesh, t.Name, strconv.Itoa(len(r.Targets))}, " ")
	}
	if c.seen == nil {
		c.seen = map[refusal]*aggregated{}
	}
	if g, ok := c.seen[of]; ok {
		g.record.Repeated++
		return true
	}
	if len(c.seen) >= maxDistinct {
		if g, ok := c.seen[beyond]; ok {
			g.record.Repeated++
			return true
		}
		of = beyond
		r = Record{Who: serverItself, Method: "audit/refusals", Decision: Refused, Rule: beyond.rule}
		c.order++
		c.seen[of] = &aggregated{r, c.order}
		c.seen[of].record.Repeated = 1
		return true
	}
	c.order++
	r.Targets = nil // they are in the record that was written
	c.seen[of] = &aggregated{r, c.order}
	return false
}

// flush returns the records of what was counted, in the order of arrival, and
// resets the burst.
func (c *burst) flush() []Record {
	var counted []*aggregated
	for _, g := range c.seen {
		if g.record.Repeated > 0 {
			counted = append(counted, g)
		}
	}
	slices.SortFunc(counted, func(a, b *aggregated) int { return cmp.Compare(a.order, b.order) })
	out := make([]Record, len(counted))
	for i, g := range counted {
		// The record itself is one of those that it stands for.
		out[i] = g.record
		out[i].Repeated--
	}
	*c = burst{}
	return out
}
