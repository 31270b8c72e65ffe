package analysis

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

// Report is what an analysis found.
type Report struct {
	// Findings are in order of kind, mesh and name of the resource, then place and code.
	Findings []policy.Advice
	// Dataplanes counts the dataplanes that were looked at, by mesh.
	Dataplanes map[resource.MeshName]int
	// Cut are the meshes in which there was more to look at than is bounded: of them,
	// nothing is said that rests on dataplanes.
	Cut []resource.MeshName
}

// Run analyses everything in a view, but for what the documents show alone: Stored is
// Run with that. Errors: that of ctx, once it has ended.
func Run(ctx context.Context, view policy.View) (*Report, error) {
	report := &Report{Dataplanes: map[resource.MeshName]int{}}
	var all []*resource.Resource
	for _, d := range resource.Kinds() {
		if d.Sensitive {
			continue
		}
		for r := range view.List(d.Kind, "") {
			if d.Kind == resource.KindDataplane {
				report.Dataplanes[r.Key().Mesh]++
				continue
			}
			all = append(all, r)
		}
	}
	advised, err := policy.Lint(ctx, view, all, append(engines.Surveyors(), surveyor{})...)
	if err != nil {
		return nil, err
	}
	report.Findings = append(report.Findings, advised...)
	if err := report.matched(ctx, view); err != nil {
		return nil, err
	}
	report.sort()
	return report, nil
}

// Stored is Run for resources that are stored: what the documents show alone was told
// their authors, and is told again.
func Stored(ctx context.Context, view policy.View) (*Report, error) {
	report, err := Run(ctx, view)
	if err != nil {
		return nil, err
	}
	for _, d := range resource.Kinds() {
		if d.Sensitive || d.Kind == resource.KindDataplane {
			continue
		}
		for r := range view.List(d.Kind, "") {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			_, problems, err := resource.Build(r.Meta(), r.Canonical())
			if err != nil {
				continue // this release cannot read it: its answers say so
			}
			for _, p := range problems {
				report.Findings = append(report.Findings, policy.Advice{Key: r.Key(), Problem: p})
			}
		}
	}
	report.sort()
	return report, nil
}

// matched adds what matching shows: what takes effect nowhere.
func (r *Report) matched(ctx context.Context, view policy.View) error {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	if err != nil {
		return err
	}
	m := engines.NewMatcher(compiler)
	m.Reset(view)
	var meshes []resource.MeshName
	for mesh := range r.Dataplanes {
		meshes = append(meshes, mesh)
	}
	slices.Sort(meshes)
	err = m.Read(func(reading *policy.Reading) error {
		for _, mesh := range meshes {
			u := newUsage(ctx, reading, mesh, nil, maxLooked)
			switch cut, err := u.look(); {
			case err != nil:
				return err
			case cut:
				r.Cut = append(r.Cut, mesh)
			default:
				r.Findings = append(r.Findings, u.findings()...)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if paths, ok := policy.FollowerOf[policy.Conditioner](m); ok {
		return r.inherited(ctx, view, paths)
	}
	return nil
}

// OfKinds is what matching shows of the policies of some kinds in a mesh, nil for every
// kind. cut is true, and nothing is found, where more than limit policies would be compared
// on attachments. Errors: that of ctx, once it has ended.
func OfKinds(ctx context.Context, reading *policy.Reading, mesh resource.MeshName, kinds map[resource.Kind]bool, limit int) (found []policy.Advice, cut bool, err error) {
	u := newUsage(ctx, reading, mesh, kinds, limit)
	if cut, err = u.look(); cut || err != nil {
		return nil, cut, err
	}
	report := Report{Findings: u.findings()}
	report.sort()
	return report.Findings, false, nil
}

// Overridden are the policies of gateways and routes in a view of which others override
// everything (§5.8). Errors: that of ctx, once it has ended.
func Overridden(ctx context.Context, view policy.View, paths policy.Conditioner) ([]policy.Advice, error) {
	var report Report
	err := report.inherited(ctx, view, paths)
	return report.Findings, err
}

// inherited adds the policies of gateways and routes of which others override
// everything (§5.8).
func (r *Report) inherited(ctx context.Context, view policy.View, paths policy.Conditioner) error {
	for _, d := range resource.Kinds() {
		if d.Class != resource.Inherited {
			continue
		}
		for p := range view.List(d.Kind, "") {
			if err := ctx.Err(); err != nil {
				return err
			}
			states, _ := paths.States(p.Key())
			overridden := func(c policy.Condition) bool {
				return c.Type == "Enforced" && c.Status == "False" && c.Reason == "Overridden"
			}
			if !slices.ContainsFunc(states, overridden) {
				continue
			}
			conditions, _ := paths.Conditions(p.Key())
			if i := slices.IndexFunc(conditions, overridden); i >= 0 {
				r.add(p.Key(), resource.CodeOverridden, resource.Root, "on every path, others override it: %s", conditions[i].Message)
			}
		}
	}
	return nil
}

func (r *Report) add(key resource.Key, code resource.Code, at resource.Path, format string, args ...any) {
	var of resource.Report
	of.Findf(code, at, format, args...)
	r.Findings = append(r.Findings, policy.Advice{Key: key, Problem: of.Problems[0]})
}

// sort orders the findings, and names the code of those that have none.
func (r *Report) sort() {
	for i := range r.Findings {
		r.Findings[i].Code = r.Findings[i].Code.Explanation().Code
	}
	slices.SortStableFunc(r.Findings, func(a, b policy.Advice) int {
		return cmp.Or(a.Key.Compare(b.Key), strings.Compare(string(a.Path), string(b.Path)), strings.Compare(string(a.Code), string(b.Code)))
	})
}
