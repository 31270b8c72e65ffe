package answer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"meridian/internal/resource"
	"meridian/internal/texttable"
)

// MaxTrials bounds the rows of a TrialsAnswer of a zone.
const MaxTrials = 10_000

// TrialsAnswer is what permissions that are only tried would decide otherwise than those in
// effect, as the Envoys of dataplanes have counted it.
type TrialsAnswer struct {
	// Items are in the order of their calls, those with the most first.
	Items []TrialItem `json:"items"`
	// More is how many rows with fewer calls are left out.
	More int `json:"more,omitempty"`
	// Incomplete is what a list of several zones lacks.
	Incomplete []Absence `json:"incomplete,omitempty"`
}

// TrialItem is calls to an inbound of a dataplane about which the same would be decided.
type TrialItem struct {
	Mesh      resource.MeshName `json:"mesh"`
	Dataplane string            `json:"dataplane"`
	Zone      resource.ZoneName `json:"zone"`
	// Port and Service are the inbound's.
	Port    uint32 `json:"port"`
	Service string `json:"service"`
	// Caller are the services of the callers, with commas; empty with WouldDiffer.
	Caller string `json:"caller"`
	// Would is WouldDeny, WouldAllow or WouldDiffer.
	Would string `json:"would"`
	// Kind and Policies are those on whose word. Without any, By is the word of the proxy,
	// such as mtls-default where no policy decides.
	Kind     resource.Kind `json:"kind,omitempty"`
	Policies []string      `json:"policies,omitempty"`
	By       string        `json:"by,omitempty"`
	Calls    uint64        `json:"calls"`
	// First and Last are when the first of the calls was counted and the last, in RFC 3339.
	First string `json:"first"`
	Last  string `json:"last"`
}

// The words of Would.
const (
	WouldDeny  = "denied"
	WouldAllow = "allowed"
	// WouldDiffer is of calls that a proxy had no place to count apart.
	WouldDiffer = "decided otherwise"
)

// Name sets on whose word, as a proxy says it.
func (i *TrialItem) Name(by string) {
	for _, kind := range []resource.Kind{resource.KindMeshTrafficPermission, resource.KindTrafficPermission} {
		if names, ok := strings.CutPrefix(by, string(kind)+" "); ok && !strings.Contains(names, " more") {
			i.Kind, i.Policies = kind, strings.Split(names, ", ")
			return
		}
	}
	i.By = by
}

// word is on whose word, for people.
func (i *TrialItem) word() string {
	if i.Kind != "" {
		return string(i.Kind) + " " + strings.Join(i.Policies, ", ")
	}
	return i.By
}

// Sort puts the items in order and keeps the first MaxTrials.
func (a *TrialsAnswer) Sort() {
	slices.SortFunc(a.Items, func(a, b TrialItem) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(string(a.Mesh), string(b.Mesh)), strings.Compare(a.Dataplane, b.Dataplane),
			strings.Compare(string(a.Zone), string(b.Zone)), cmp.Compare(a.Port, b.Port), strings.Compare(a.Caller, b.Caller),
			strings.Compare(a.Would, b.Would), strings.Compare(a.word(), b.word()))
	})
	if len(a.Items) > MaxTrials {
		a.More += len(a.Items) - MaxTrials
		a.Items = a.Items[:MaxTrials]
	}
}

// Restrict leaves out what the reader may not read.
func (a *TrialsAnswer) Restrict(may May) {
	a.HideZones(may)
	a.Items = slices.DeleteFunc(a.Items, func(i TrialItem) bool {
		// Words may name policies, too.
		return !may.all(i.Mesh, resource.KindDataplane, i.Dataplane) || i.Kind == "" && strings.Contains(i.By, " ") || !may.all(i.Mesh, i.Kind, i.Policies...)
	})
}

// HideZones takes out the names of absent zones that the reader may not read.
func (a *TrialsAnswer) HideZones(may May) { may.absences(a.Incomplete) }

// MergeTrials puts the lists of several zones together, as MergePolicies does.
func MergeTrials(parts []Part, incomplete func([]Rejected) []Absence) ([]byte, error) {
	return merge(parts, func(a *TrialsAnswer, zone resource.ZoneName) {
		for i := range a.Items {
			a.Items[i].Zone = zone
		}
	}, func(merged, a *TrialsAnswer) {
		merged.Items, merged.More = append(merged.Items, a.Items...), merged.More+a.More
	}, func(merged *TrialsAnswer, rejected []Rejected) {
		merged.Incomplete = incomplete(rejected)
		merged.Sort()
	})
}

// RenderTrials prints the list: a row for the calls of a service to another about which the
// same would be decided, in a wide form for each dataplane.
func RenderTrials(w io.Writer, a *TrialsAnswer, form Form) error {
	p := newPrinter(w, form)
	header := []string{"MESH", "CALLER", "SERVICE", "WOULD BE", "BY", "CALLS", "LAST"}
	if form.Wide {
		header = append(header, "DATAPLANE", "PORT", "ZONE", "SINCE")
	}
	t := texttable.New("", header...)
	rows := map[string]*TrialItem{}
	var order []*TrialItem
	for i := range a.Items {
		item := a.Items[i]
		key := fmt.Sprintf("%q", []string{string(item.Mesh), item.Caller, item.Service, item.Would, item.word()})
		if form.Wide {
			key = strconv.Itoa(i)
		}
		if row := rows[key]; row != nil {
			row.Calls += item.Calls
			row.Last = max(row.Last, item.Last)
			continue
		}
		rows[key] = &item
		order = append(order, &item)
	}
	slices.SortStableFunc(order, func(a, b *TrialItem) int { return cmp.Compare(b.Calls, a.Calls) })
	for _, item := range order {
		cells := []string{string(item.Mesh), cmp.Or(item.Caller, "(others)"), item.Service, item.Would, item.word(), strconv.FormatUint(item.Calls, 10), item.Last}
		if form.Wide {
			cells = append(cells, item.Dataplane, strconv.FormatUint(uint64(item.Port), 10), string(item.Zone), item.First)
		}
		t.Add(cells...)
	}
	p.table(t)
	if a.More > 0 {
		p.line("%d more rows with fewer calls are left out: name a dataplane, or a service with --service.", a.More)
	}
	lacking(p, a.Incomplete)
	return p.close()
}
