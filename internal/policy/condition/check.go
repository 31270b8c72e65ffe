package condition

import "meridian/internal/resource"

// Check reports every condition in a spec that cannot be used, each with its
// place, whatever the kind (§4.10, §5.6). `apply` and `validate`
// refuse such a spec; an engine leaves out one that is stored already. Nothing of
// it is kept: the author may not be allowed to write it.
func (c *Compiler) Check(spec resource.Spec) []resource.Problem {
	var problems []resource.Problem
	check := func(at resource.Path, when string) {
		if when == "" {
			return
		}
		if _, err := c.examine(when); err != nil {
			problems = append(problems, resource.Problem{Path: at.Field("when"), Message: err.Error()})
		}
	}
	switch s := spec.(type) {
	case resource.InheritedSpec:
		for _, b := range []*resource.RuleBlock{s.Defaults(), s.Overrides()} {
			if b != nil {
				check(b.Path, b.When)
			}
		}
	case resource.TargetRefSpec:
		for _, b := range []*resource.TargetBlock{s.Defaults(), s.Overrides()} {
			if b != nil {
				check(b.Path, b.When)
			}
		}
	}
	return problems
}
