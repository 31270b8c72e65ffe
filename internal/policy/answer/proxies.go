package answer

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/texttable"
)

// The states of a type of resources on a stream, from docs/contract.md.
const (
	WireSynced  = "SYNCED"
	WireSent    = "SENT"
	WireStale   = "STALE"
	WireWarming = "WARMING"
	WireNack    = "NACK"
	WireNotSent = "NOT SENT"
)

// What the column WIRE says beside the words of package enforce.
const (
	// WireRevision is followed by the revision that the proxy has in full.
	WireRevision = "rev "
	// WireUnused: the proxy asked for nothing of it.
	WireUnused = "unused"
)

// enforcedCondition is the type of the condition that Enforcement returns.
const enforcedCondition = "Enforced"

// Enforcement is the condition of a policy on the proxies of a zone: holds of all proxies
// that are connected and use it obey it, approximated of them not quite. lacking are the
// others, by what they do with it ("pending", "rejected" or "no"), and example is one of
// them, or of the approximated ones. It is not to be called where no proxy uses the policy.
func Enforcement(zone resource.ZoneName, holds, approximated int, lacking map[string]int, example resource.Key) policy.Condition {
	all := holds
	var others []string
	for _, state := range slices.Sorted(maps.Keys(lacking)) {
		all += lacking[state]
		word := state
		if state == "no" {
			word = "not supported"
		}
		others = append(others, fmt.Sprintf("%d %s", lacking[state], word))
	}
	if approximated > 0 {
		others = append(others, fmt.Sprintf("%d not quite", approximated))
	}
	c := policy.Condition{
		Type: enforcedCondition, Status: "True", Reason: "AllProxies",
		Message: fmt.Sprintf("%d of %d proxies in zone %q", holds, all, zone),
	}
	if holds < all {
		c.Status, c.Reason = "False", "SomeProxies"
		if holds == 0 {
			c.Reason = "NoProxy"
		}
	}
	if len(others) > 0 {
		c.Message += fmt.Sprintf(" (%s; such as %s)", strings.Join(others, ", "), example.Name)
	}
	return c
}

// WireKey names a row of the page about a dataplane.
type WireKey struct {
	Attachment string
	Kind       resource.Kind
}

// ProxiesAnswer lists the dataplanes whose proxies follow a zone over xDS.
type ProxiesAnswer struct {
	Items []ProxyStatus `json:"items"`
	// Incomplete is what a list of several zones lacks.
	Incomplete []Absence `json:"incomplete,omitempty"`
	// Behind is the answer to a global that waits for a revision, in place of Items.
	Behind *ProxiesBehind `json:"behind,omitempty"`
}

// ProxiesBehind are the proxies that have yet to accept a change.
type ProxiesBehind struct {
	// AsOf is the revision that the zone has applied.
	AsOf resource.Revision `json:"asOf"`
	// Count is how many there are, Rejected how many of them have rejected it.
	Count    int `json:"count"`
	Rejected int `json:"rejected"`
	// Servers is how many servers of the zone it is about; absent for one.
	Servers int `json:"servers,omitempty"`
	// Some are the first MaxBehind of them, those that rejected it before others.
	Some []ProxyBehind `json:"some"`
}

// MaxBehind bounds how many proxies that are behind a zone names.
const MaxBehind = 10

// ProxyBehind is one of them.
type ProxyBehind struct {
	Mesh resource.MeshName `json:"mesh"`
	Name string            `json:"name"`
	// State is "pending" or "rejected".
	State string `json:"state"`
}

// ProxyStatus is where the streams of one dataplane's proxy stand.
type ProxyStatus struct {
	Mesh resource.MeshName `json:"mesh"`
	Name string            `json:"name"`
	Zone resource.ZoneName `json:"zone"`
	// Streams are empty for a dataplane that was asked about by name and has none.
	Streams []ProxyStream `json:"streams"`
	// Plaintext is what inbounds take without TLS, in a mesh that accepts it beside TLS;
	// absent where nothing counts it.
	Plaintext *ProxyPlaintext `json:"plaintext,omitempty"`
}

// ProxyPlaintext is what the inbounds of a dataplane take without TLS.
type ProxyPlaintext struct {
	// Connections are those since the proxy counts, and Open those that are open.
	Connections uint64 `json:"connections"`
	Open        uint64 `json:"open"`
	// Last is when there was one; without any, when the proxy began to count. AsOf is when
	// it said so. Both in RFC 3339.
	Last string `json:"last"`
	AsOf string `json:"asOf"`
}

// text is what the page says: the connections that are open, or for how long there was
// none.
func (p *ProxyPlaintext) text() string {
	if p == nil {
		return ""
	}
	if p.Open > 0 {
		return fmt.Sprintf("%d open", p.Open)
	}
	last, errLast := time.Parse(time.RFC3339, p.Last)
	asOf, errAsOf := time.Parse(time.RFC3339, p.AsOf)
	if errLast != nil || errAsOf != nil {
		return fmt.Sprint(p.Connections)
	}
	return fmt.Sprintf("%d, none for %s", p.Connections, texttable.Age(asOf.Sub(last)))
}

// ProxyStream is where one stream stands.
type ProxyStream struct {
	// Client is what the proxy calls itself.
	Client   string `json:"client"`
	Instance string `json:"instance,omitempty"`
	// Dialect is "grpc" or "envoy".
	Dialect string `json:"dialect"`
	// Since is when it was opened, in RFC 3339.
	Since string `json:"since"`
	// Withheld says why the proxy is sent nothing; empty when it is not so.
	Withheld string `json:"withheld,omitempty"`
	// Types are CDS, EDS, LDS and RDS.
	Types []ProxyType `json:"types"`
}

// ProxyType is where a stream stands with one type of resources.
type ProxyType struct {
	Type  string `json:"type"`
	State string `json:"state"`
	// Revision is the newest that the proxy had in full; 0 for none.
	Revision resource.Revision `json:"revision"`
	// Resources is how many the proxy has.
	Resources int `json:"resources"`
	// Lag is how many of the resources that the proxy asked for it has not, or in another
	// version than it is to have.
	Lag int `json:"lag"`
	// Error is what the proxy said of the last response, if it rejected that.
	Error string `json:"error,omitempty"`
	// Rejected are the resources that the proxy does not accept.
	Rejected []ProxyRejection `json:"rejected,omitempty"`
	// Withheld are the resources that there is no space for in a response, so that the
	// proxy keeps the version that it had.
	Withheld []ProxyRejection `json:"withheld,omitempty"`
}

// ProxyRejection is a resource that a proxy does not accept, or is not sent.
type ProxyRejection struct {
	Name  string `json:"name"`
	Error string `json:"error"`
	// Policies are those that values of the resource are from.
	Policies []resource.Key `json:"policies,omitempty"`
}

// RestrictWithheld returns why a proxy is sent nothing, as a reader sees it: the reason
// names settings of the mesh.
func RestrictWithheld(reason string, mesh resource.MeshName, may May) string {
	if reason == "" {
		return ""
	}
	if read, _ := may(resource.Key{Kind: resource.KindMesh, Name: string(mesh)}); read {
		return reason
	}
	return "the reason is for callers who may read the mesh"
}

// Restrict leaves out what the reader may not read, and what proxies said of their
// configuration, which may name any policy.
func (a *ProxiesAnswer) Restrict(may May) {
	a.HideZones(may)
	a.Items = slices.DeleteFunc(a.Items, func(p ProxyStatus) bool { return !may.all(p.Mesh, resource.KindDataplane, p.Name) })
	for i := range a.Items {
		for j := range a.Items[i].Streams {
			a.Items[i].Streams[j].Withheld = RestrictWithheld(a.Items[i].Streams[j].Withheld, a.Items[i].Mesh, may)
			types := a.Items[i].Streams[j].Types
			for k := range types {
				types[k].Error = ""
				for l := range types[k].Rejected {
					types[k].Rejected[l].Error = ""
					types[k].Rejected[l].restrict(may)
				}
				for l := range types[k].Withheld { // its error is of sizes alone
					types[k].Withheld[l].restrict(may)
				}
			}
		}
	}
}

// restrict leaves out the policies that the reader may not read.
func (r *ProxyRejection) restrict(may May) {
	r.Policies = slices.DeleteFunc(r.Policies, func(key resource.Key) bool {
		read, _ := may(key)
		return !read
	})
}

// note says of a resource what became of it.
func (r *ProxyRejection) note(what, typ string) string {
	note := what + " " + typ + " " + r.Name
	for i, key := range r.Policies {
		if note += ", "; i == 0 {
			note += "from "
		}
		note += key.String()
	}
	if r.Error != "" {
		note += ": " + r.Error
	}
	return note
}

// MergeProxies puts the lists of several zones together, as MergePolicies does.
func MergeProxies(parts []Part, incomplete func([]Rejected) []Absence) ([]byte, error) {
	return merge(parts, func(a *ProxiesAnswer, zone resource.ZoneName) {
		for i := range a.Items {
			a.Items[i].Zone = zone
		}
	}, func(merged, a *ProxiesAnswer) {
		merged.Items = append(merged.Items, a.Items...)
	}, func(merged *ProxiesAnswer, rejected []Rejected) {
		merged.Incomplete = incomplete(rejected)
		slices.SortStableFunc(merged.Items, func(a, b ProxyStatus) int {
			return cmp.Or(strings.Compare(string(a.Mesh), string(b.Mesh)), strings.Compare(a.Name, b.Name), strings.Compare(string(a.Zone), string(b.Zone)))
		})
	})
}

// wireTypes are the columns of the types, in their order.
var wireTypes = []string{"CDS", "EDS", "LDS", "RDS"}

// wireOrder ranks states: a proxy with several streams is as far as the one that has
// the most to be looked at.
var wireOrder = []string{WireNack, WireStale, WireWarming, WireSent, WireSynced, WireNotSent}

// overall is where a proxy stands with a type on all its streams.
func (p *ProxyStatus) overall(typ string) ProxyType {
	worst := ProxyType{Type: typ, State: WireNotSent}
	for _, s := range p.Streams {
		for _, t := range s.Types {
			if t.Type != typ || t.State == WireNotSent {
				continue
			}
			if slices.Index(wireOrder, t.State) < slices.Index(wireOrder, worst.State) {
				worst.State = t.State
			}
			worst.Lag += t.Lag
			if worst.Revision == 0 || t.Revision < worst.Revision {
				worst.Revision = t.Revision
			}
		}
	}
	return worst
}

// RenderProxies prints the list.
func RenderProxies(w io.Writer, a *ProxiesAnswer, form Form) error {
	p := newPrinter(w, form)
	header := append([]string{"MESH", "NAME", "ZONE", "STREAMS"}, wireTypes...)
	header = append(header, "REVISION", "LAG")
	counted := slices.ContainsFunc(a.Items, func(p ProxyStatus) bool { return p.Plaintext != nil })
	if counted {
		header = append(header, "PLAINTEXT")
	}
	t := texttable.New("", header...)
	for i := range a.Items {
		item := &a.Items[i]
		cells := []string{string(item.Mesh), item.Name, string(item.Zone), strconv.Itoa(len(item.Streams))}
		var revision resource.Revision
		lag := 0
		for _, typ := range wireTypes {
			at := item.overall(typ)
			cells = append(cells, at.State)
			lag += at.Lag
			if at.Revision != 0 && (revision == 0 || at.Revision < revision) {
				revision = at.Revision
			}
		}
		shown := ""
		if revision != 0 {
			shown = strconv.FormatUint(uint64(revision), 10)
		}
		if cells = append(cells, shown, strconv.Itoa(lag)); counted {
			cells = append(cells, item.Plaintext.text())
		}
		row := t.Add(cells...)
		for _, note := range item.notes() {
			row.Note("%s", note)
		}
	}
	p.table(t)
	lacking(p, a.Incomplete)
	return p.close()
}

// notes say why a proxy does not have what it should, each once.
func (p *ProxyStatus) notes() []string {
	var notes []string
	add := func(note string) {
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	for _, s := range p.Streams {
		if s.Withheld != "" {
			add("nothing is sent: " + s.Withheld)
		}
		for _, t := range s.Types {
			for _, r := range t.Rejected {
				add(r.note("rejected", t.Type))
			}
			for _, r := range t.Withheld {
				add(r.note("not sent:", t.Type))
			}
			if t.State == WireNack && len(t.Rejected) == 0 && t.Error != "" {
				add("rejected " + t.Type + ": " + t.Error)
			}
		}
	}
	return notes
}
