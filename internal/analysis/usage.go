package analysis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

const (
	// maxLooked bounds how many policies are compared on attachments in one mesh.
	maxLooked = 10_000_000
	// maxReasons bounds on how many dataplanes of a mesh, for each kind, it is looked for
	// why policies lose, and maxVerdicts how many reasons are made.
	maxReasons  = 16
	maxVerdicts = 200_000
)

var errCut = errors.New("there is more to look at than is bounded")

// usage is what the policies of one mesh come to on its dataplanes.
type usage struct {
	ctx     context.Context
	reading *policy.Reading
	mesh    resource.MeshName
	// only are the kinds that are looked at, nil for all; limit bounds how many policies
	// are compared.
	only  map[resource.Kind]bool
	limit int
	// count is the number of dataplanes of the mesh, for findings.
	count    int
	policies map[resource.Key]*use
	// looks are the dataplanes that were looked at, the first of those that share an
	// answer.
	dataplanes []resource.Key
	looked     int
}

// use is what one policy comes to.
type use struct {
	resource *resource.Resource
	reached  bool
	used     bool
	// lost are the parts that had a say nowhere so far, and what they first lost to;
	// kept are those that had one.
	lost map[resource.Path]resource.Key
	kept map[resource.Path]bool
	// superseded counts the attachments on which a successor holds in its place, by says
	// which, and at is the first of them.
	superseded int
	by, at     string
	// plain is set where the policy can be removed when it has no say: no policy of the
	// kind in the mesh asks what others configure.
	plain bool
	why   string
}

func newUsage(ctx context.Context, reading *policy.Reading, mesh resource.MeshName, only map[resource.Kind]bool, limit int) *usage {
	u := &usage{ctx: ctx, reading: reading, mesh: mesh, only: only, limit: limit, policies: map[resource.Key]*use{}}
	for _, d := range resource.Kinds() {
		if !reading.Matches(d.Kind) || only != nil && !only[d.Kind] {
			continue
		}
		plain := true
		var of []*use
		for r := range reading.View().List(d.Kind, mesh) {
			if r.Shadowed() {
				continue
			}
			mine := &use{resource: r, lost: map[resource.Path]resource.Key{}, kept: map[resource.Path]bool{}}
			u.policies[r.Key()] = mine
			of = append(of, mine)
			if spec, ok := r.Spec().(resource.TargetRefSpec); ok {
				plain = plain && addsUp(spec)
			}
		}
		for _, mine := range of {
			mine.plain = plain
		}
	}
	return u
}

// addsUp reports whether what a policy comes to does not depend on what others configure,
// but for who has priority.
func addsUp(spec resource.TargetRefSpec) bool {
	for _, b := range []*resource.TargetBlock{spec.Defaults(), spec.Overrides()} {
		if b != nil && (b.When != "" || b.Strategy == resource.Atomic) {
			return false
		}
	}
	return len(spec.UnsetPointers()) == 0
}

// look matches every policy with every dataplane. cut is true where there is more to look
// at than is bounded.
func (u *usage) look() (cut bool, err error) {
	var last resource.Key
	err = u.reading.Looks(u.mesh, u.only, func(l *policy.Look) error {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if u.looked += len(l.Candidates); u.looked > u.limit {
			return errCut
		}
		if l.Dataplane != last {
			last = l.Dataplane
			u.dataplanes = append(u.dataplanes, last)
		}
		for _, p := range l.Candidates {
			if mine := u.policies[p.Key()]; mine != nil && !mine.reached {
				mine.reached = p.Reaches(l.Subject, l.Attachment)
			}
		}
		for i := range l.Rules {
			u.rule(l, &l.Rules[i])
		}
		return nil
	})
	if errors.Is(err, errCut) {
		return true, nil
	}
	return false, err
}

func (u *usage) rule(l *policy.Look, rule *policy.Rule) {
	for i, place := range rule.Places() {
		step := &rule.Steps[i]
		mine := u.policies[step.Origin]
		if mine == nil {
			continue
		}
		part := partOf(step, mine.resource)
		switch {
		case l.Superseded != nil:
			if !place.Used {
				continue
			}
			if mine.superseded == 0 {
				mine.by, mine.at = l.Superseded.String(), l.Dataplane.Name+": "+rule.Attachment.String()
			}
			mine.superseded += l.Dataplanes
		case place.Used:
			mine.used = true
			mine.kept[part] = true
			delete(mine.lost, part)
		case !mine.kept[part]:
			if _, known := mine.lost[part]; !known {
				mine.lost[part] = resource.Key{}
				if place.Rival >= 0 {
					mine.lost[part] = rule.Steps[place.Rival].Origin
				}
			}
		}
	}
}

// partOf is the part of its policy that a step is: an item, or one of the sources.
func partOf(step *policy.Step, r *resource.Resource) resource.Path {
	if placer, ok := step.Precedence.(policy.Placer); ok {
		return placer.Part()
	}
	if spec, ok := r.Spec().(resource.ConnectionSpec); ok && step.Match != nil {
		for i, source := range spec.SourceSelectors() {
			if sameTags(source, step.Match) {
				return resource.Path("sources").Index(i)
			}
		}
	}
	return resource.Root
}

func sameTags(a, b resource.TagSelector) bool {
	if len(a) != len(b) {
		return false
	}
	for tag, value := range a {
		if other, ok := b[tag]; !ok || other != value {
			return false
		}
	}
	return true
}

// findings says what takes effect nowhere.
func (u *usage) findings() []policy.Advice {
	var report Report
	u.reasons()
	for range u.reading.Dataplanes(u.mesh) {
		u.count++
	}
	for key, mine := range u.policies {
		switch {
		case mine.superseded > 0:
			u.superseded(&report, key, mine)
		case !mine.reached:
			report.add(key, resource.CodeDeadPolicy, resource.Root, "takes effect nowhere: it matches nothing on the %s that are known", u.dataplaneCount())
		case !mine.used && mine.plain:
			report.add(key, resource.CodeDeadPolicy, resource.Root, "takes effect nowhere: on everything that it matches, others hold in its place%s", mine.why)
		case !mine.used && !onlyUnsets(mine.resource):
			report.add(key, resource.CodeOverridden, resource.Root, "nothing of it is in effect anywhere%s", mine.why)
		default:
			u.parts(&report, key, mine)
		}
		u.overrides(&report, key, mine)
	}
	return report.Findings
}

// onlyUnsets reports whether a policy is there for what it takes out of others.
func onlyUnsets(r *resource.Resource) bool {
	spec, ok := r.Spec().(resource.TargetRefSpec)
	return ok && len(spec.UnsetPointers()) > 0
}

func (u *usage) dataplaneCount() string {
	if u.count == 1 {
		return "1 dataplane"
	}
	return fmt.Sprintf("%d dataplanes", u.count)
}

func (u *usage) superseded(report *Report, key resource.Key, mine *use) {
	where := "in places"
	if !mine.used {
		where = "anywhere"
	}
	report.add(key, resource.CodeSuperseded, resource.Root, "has no effect %s: %s holds in its place, as on %s (§4.11)", where, mine.by, mine.at)
}

// parts reports the parts of a policy in use that take effect nowhere.
func (u *usage) parts(report *Report, key resource.Key, mine *use) {
	if !mine.plain {
		return
	}
	for part, to := range mine.lost {
		if part == resource.Root || isOverride(part) || to == key {
			continue // an override has a finding of its own, and its own policy's order an advice
		}
		by := "others set"
		if to != (resource.Key{}) {
			by = to.Name + " sets"
		}
		report.add(key, resource.CodeShadowedRule, part, "takes effect nowhere: %s the same, and has priority", by)
	}
}

func isOverride(part resource.Path) bool {
	return part == "overrides" || strings.HasPrefix(string(part), "overrides.")
}

// overrides reports a policy whose overrides are in effect nowhere, though it matches
// something.
func (u *usage) overrides(report *Report, key resource.Key, mine *use) {
	spec, ok := mine.resource.Spec().(resource.TargetRefSpec)
	if !ok || !mine.reached {
		return
	}
	b := spec.Overrides()
	if b == nil {
		return
	}
	for part := range mine.kept {
		if isOverride(part) {
			return
		}
	}
	why := "on everything that the policy matches"
	lost := slices.DeleteFunc(slices.Sorted(maps.Keys(mine.lost)), func(part resource.Path) bool { return !isOverride(part) })
	switch {
	case len(lost) > 0 && mine.lost[lost[0]] != (resource.Key{}):
		why = "overrides of " + mine.lost[lost[0]].Name + " stand above it"
	case len(lost) == 0 && b.When != "":
		why = "its condition holds on nothing that the policy matches"
	}
	report.add(key, resource.CodeIdleOverride, b.Path, "sets nothing anywhere: %s", why)
}

// reasons finds out, on a few dataplanes, why policies lose.
func (u *usage) reasons() {
	waiting := map[resource.Kind]int{}
	for key, mine := range u.policies {
		if mine.reached && !mine.used && mine.superseded == 0 {
			waiting[key.Kind]++
		}
	}
	made := 0
	for _, kind := range slices.Sorted(maps.Keys(waiting)) {
		n := waiting[kind]
		for _, dp := range u.dataplanes[:min(len(u.dataplanes), maxReasons)] {
			if n == 0 || made > maxVerdicts || u.ctx.Err() != nil {
				break
			}
			rules, err := u.reading.Explain(dp, kind)
			if err != nil {
				break
			}
			for i := range rules {
				missed := map[resource.Key]bool{}
				for _, p := range rules[i].Unused {
					missed[p.Policy] = p.Missed
				}
				for _, v := range rules[i].Verdicts() {
					made++
					mine := u.policies[v.Policy]
					if mine == nil || v.Used || missed[v.Policy] || mine.why != "" || mine.used || v.Reason == "" {
						continue
					}
					mine.why = fmt.Sprintf(", such as on %s: %s (§%s)", dp.Name, v.Reason, v.Rule)
					n--
				}
			}
		}
	}
}
