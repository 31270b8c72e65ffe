package answer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Severities of findings.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
	SeverityInfo    = "info"
)

// Finding is one problem of a document or a resource.
type Finding struct {
	// Code names the kind of finding; empty for what makes a document invalid.
	Code     string `json:"code,omitempty"`
	Severity string `json:"severity"`
	// Source and Line are where it is written; empty where that is unknown.
	Source string `json:"source,omitempty"`
	Line   int    `json:"line,omitempty"`
	Kind   string `json:"kind,omitempty"`
	Mesh   string `json:"mesh,omitempty"`
	Name   string `json:"name,omitempty"`
	Field  string `json:"field,omitempty"`
	// Message says what is found.
	Message string `json:"message"`
	// Cause is what the message has in common with that of other documents.
	Cause string `json:"cause,omitempty"`
	// Fix is what to do, where the finding is one of an analysis.
	Fix string `json:"fix,omitempty"`
}

// FindingOf is a finding of an analysis, with the severity of its code.
func FindingOf(a policy.Advice) Finding {
	about := a.Code.Explanation()
	severity := SeverityInfo
	switch {
	case about.Severity == resource.Error || a.Severity == resource.Error:
		severity = SeverityError
	case a.Severity == resource.Warning:
		severity = SeverityWarning
	}
	return Finding{
		Code: string(about.Code), Severity: severity, Source: a.Source, Line: a.Line,
		Kind: string(a.Key.Kind), Mesh: string(a.Key.Mesh), Name: a.Key.Name, Field: string(a.Path),
		Message: a.Message, Cause: a.Cause, Fix: about.Fix,
	}
}

// Key is the resource that the finding is about.
func (f *Finding) Key() resource.Key {
	return resource.Key{Kind: resource.Kind(f.Kind), Mesh: resource.MeshName(f.Mesh), Name: f.Name}
}

// AnalysisAnswer is what is valid and probably not meant.
type AnalysisAnswer struct {
	Partial
	// Mesh is the mesh that was asked about; empty for all.
	Mesh     resource.MeshName `json:"mesh,omitempty"`
	AsOf     resource.Revision `json:"asOf"`
	Findings []Finding         `json:"findings"`
	// Truncated counts the findings that are left out.
	Truncated int `json:"truncated,omitempty"`
	// Dataplanes counts the dataplanes that were looked at, by mesh.
	Dataplanes map[resource.MeshName]int `json:"dataplanes"`
	// Cut are the meshes with more to compare than is bounded: nothing is said of them
	// that rests on dataplanes.
	Cut []resource.MeshName `json:"cut,omitempty"`
	// Incomplete is what an answer about several zones lacks.
	Incomplete []Absence `json:"incomplete"`

	parts []part
}

// part is what one zone found, or the global itself.
type part struct {
	own        bool
	findings   []Finding
	dataplanes map[resource.MeshName]int
}

// maxFindings bounds the findings of an answer.
const maxFindings = 10_000

// everywhere are the codes of findings that hold for a fleet when they hold in each zone
// that has dataplanes of the mesh.
var everywhere = []resource.Code{
	resource.CodeDeadPolicy, resource.CodeOverridden, resource.CodeShadowedRule, resource.CodeIdleOverride,
	resource.CodeSelectsNothing, resource.CodeTargetNotFound,
}

// Add adds findings about the mesh that was asked about, or about everything.
func (a *AnalysisAnswer) Add(found []policy.Advice) {
	for _, advice := range found {
		key := advice.Key
		if a.Mesh != "" && key.Mesh != a.Mesh && (key.Kind != resource.KindMesh || key.Name != string(a.Mesh)) {
			continue
		}
		a.Findings = append(a.Findings, FindingOf(advice))
	}
	a.bound()
}

func (a *AnalysisAnswer) bound() {
	if n := len(a.Findings); n > maxFindings {
		a.Truncated += n - maxFindings
		a.Findings = a.Findings[:maxFindings]
	}
}

// MergeAnalyses puts what several zones found together, and first what the global found
// without dataplanes, as the part of no zone. Of policies, what takes effect nowhere in a
// zone is a finding when it is one in every zone that has dataplanes of the mesh; what a
// zone owns itself is not told.
func MergeAnalyses(parts []Part, incomplete func([]Rejected) []Absence) ([]byte, error) {
	return merge(parts, func(a *AnalysisAnswer, zone resource.ZoneName) {
		a.parts = []part{{zone == "", a.Findings, a.Dataplanes}}
	}, func(merged, a *AnalysisAnswer) {
		merged.AsOf = min(merged.AsOf, a.AsOf)
		merged.parts = append(merged.parts, a.parts...)
		merged.Truncated += a.Truncated
		merged.Cut = append(merged.Cut, a.Cut...)
	}, func(merged *AnalysisAnswer, rejected []Rejected) {
		merged.Incomplete = append([]Absence{}, incomplete(rejected)...)
		slices.Sort(merged.Cut)
		merged.Cut = slices.Compact(merged.Cut)
		merged.join()
	})
}

// join makes the findings of all parts one list.
func (a *AnalysisAnswer) join() {
	type id struct {
		key   resource.Key
		field string
		code  string
	}
	idOf := func(f *Finding) id { return id{f.Key(), f.Field, f.Code} }
	a.Findings, a.Dataplanes = []Finding{}, map[resource.MeshName]int{}
	zones := map[resource.MeshName]int{}
	known, counts, first := map[id]bool{}, map[id]int{}, map[id]Finding{}
	var order []id
	for _, p := range a.parts {
		for mesh, n := range p.dataplanes {
			a.Dataplanes[mesh] += n
			if n > 0 && !p.own {
				zones[mesh]++
			}
		}
		seen := map[id]bool{}
		for i := range p.findings {
			f := &p.findings[i]
			switch at := idOf(f); {
			case p.own:
				known[at] = true
				a.Findings = append(a.Findings, *f)
			case known[at] || seen[at] || !attaches(f.Kind) || p.dataplanes[resource.MeshName(f.Mesh)] == 0:
			default:
				seen[at] = true
				if counts[at]++; counts[at] == 1 {
					first[at] = *f
					order = append(order, at)
				}
			}
		}
	}
	for _, at := range order {
		f := first[at]
		if slices.Contains(everywhere, resource.Code(f.Code)) {
			if counts[at] < zones[at.key.Mesh] {
				continue
			}
			if len(a.Incomplete) > 0 {
				f.Message += " (in the zones that answered)"
			}
		}
		a.Findings = append(a.Findings, f)
	}
	slices.SortStableFunc(a.Findings, func(x, y Finding) int {
		return cmp.Or(x.Key().Compare(y.Key()), strings.Compare(x.Field, y.Field), strings.Compare(x.Code, y.Code))
	})
	a.bound()
}

// attaches reports whether a finding is about policies on dataplanes: those that zones
// match and the global owns.
func attaches(kind string) bool {
	d, known := resource.Describe(resource.Kind(kind))
	return known && (d.Class == resource.SourceDestination || d.Class == resource.TargetRef)
}

// Restrict leaves out what the reader may not read, and what is said of the rest, which
// may name it.
func (a *AnalysisAnswer) Restrict(may May) {
	a.Partial = Partial{true}
	a.Dataplanes, a.Cut = map[resource.MeshName]int{}, nil
	a.Findings = slices.DeleteFunc(a.Findings, func(f Finding) bool {
		read, _ := may(f.Key())
		return !read
	})
	for i := range a.Findings {
		f := &a.Findings[i]
		f.Message, f.Cause = resource.Code(f.Code).Explanation().Title, ""
	}
	may.absences(a.Incomplete)
}

// HideZones hides the zones that the reader may not read.
func (a *AnalysisAnswer) HideZones(may May) { may.absences(a.Incomplete) }

// RenderAnalysis prints the page of an analysis.
func RenderAnalysis(w io.Writer, a *AnalysisAnswer, _ Form) error {
	var b strings.Builder
	if len(a.Findings) == 0 && a.Partial.Partial {
		fmt.Fprintln(&b, a.nothing(""))
	} else if err := RenderFindings(&b, a.Findings); err != nil {
		return err
	}
	if a.Truncated > 0 {
		fmt.Fprintf(&b, "%d more are left out of this answer: ask for one mesh, with -m\n", a.Truncated)
	}
	for _, mesh := range a.Cut {
		fmt.Fprintf(&b, "mesh %s has more policies and dataplanes than are compared: nothing is said that rests on dataplanes\n", mesh)
	}
	for _, absence := range a.Incomplete {
		fmt.Fprintf(&b, "not in this answer: %s\n", absence)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// RenderFindings prints findings as people read them, the most severe first and those of
// one cause once.
func RenderFindings(w io.Writer, found []Finding) error {
	var b strings.Builder
	counts := map[string]int{}
	for _, severity := range []string{SeverityError, SeverityWarning, SeverityInfo} {
		var advice []policy.Advice
		for i := range found {
			if f := &found[i]; f.Severity == severity {
				counts[severity]++
				advice = append(advice, policy.Advice{Source: f.Source, Key: f.Key(), Problem: resource.Problem{
					Path: resource.Path(f.Field), Message: f.Message, Line: f.Line, Cause: f.Cause, Code: resource.Code(f.Code),
				}})
			}
		}
		groups := policy.Groups(advice)
		for i := range groups {
			g := &groups[i]
			where := g.Where(resource.Key.String)
			if g.Source != "" && len(g.Keys) == 1 {
				where = fmt.Sprintf("%s:%d: %s", g.Source, g.Line, where)
			}
			fmt.Fprintf(&b, "%s %s\n  %s\n  %s\n  fix: %s\n", severity, g.Code, where, g.Problem.String(), g.Code.Explanation().Fix)
		}
	}
	if len(found) == 0 {
		b.WriteString("nothing was found\n")
	} else {
		fmt.Fprintf(&b, "%s, %s, %s\n", amount(counts[SeverityError], "error"), amount(counts[SeverityWarning], "warning"), amount(counts[SeverityInfo], "note"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func amount(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
