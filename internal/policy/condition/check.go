package condition

import (
	"reflect"
	"slices"
	"sync"

	"meridian/internal/resource"
)

// Check reports every condition in a spec that cannot be used, each with its
// place, whatever the kind (§4.10, §5.6): also one with a path that can never
// exist. `apply` and `validate` refuse such a spec; an engine leaves out one that
// is stored already, unless only a path is wrong. Nothing of it is kept: the author
// may not be allowed to write it.
func (c *Compiler) Check(spec resource.Spec) []resource.Problem {
	var problems []resource.Problem
	check := func(at resource.Path, when string) {
		if when == "" {
			return
		}
		_, err := c.examine(when)
		if err == nil {
			_, err = c.paths(spec, when)
		}
		if err != nil {
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

// Rules returns the rules that the condition of an inherited policy asks for by
// name, each once, in the order of the text.
func Rules(spec resource.InheritedSpec, when string) []resource.RuleID {
	return once(namesIn(spec, when).rules)
}

// Fields returns the fields of configuration that the condition of a policy with a
// targetRef asks for, as JSON pointers, each once, in the order of the text.
func Fields(spec resource.TargetRefSpec, when string) []string {
	return once(namesIn(spec, when).fields)
}

// namesIn is what a condition asks for by name; nothing where it cannot be used.
func namesIn(spec resource.Spec, when string) asked {
	c, err := parser()
	if err != nil || when == "" {
		return asked{}
	}
	used, err := c.paths(spec, when)
	if err != nil {
		return asked{}
	}
	return used
}

func once[T comparable](all []T) (each []T) {
	for _, one := range all {
		if !slices.Contains(each, one) {
			each = append(each, one)
		}
	}
	return each
}

// parser reads expressions where none is evaluated.
var parser = sync.OnceValues(func() (*Compiler, error) { return NewCompiler(DefaultOptions()) })

// paths follows the paths of an expression that compiles.
func (c *Compiler) paths(spec resource.Spec, when string) (asked, error) {
	in, known := scopes()[reflect.TypeOf(spec)]
	if !known {
		return asked{}, nil
	}
	parsed, issues := c.env.Parse(when)
	if err := issues.Err(); err != nil {
		return asked{}, &InvalidError{Expression: when, Message: firstIssue(issues)}
	}
	return walkPaths(parsed.NativeRep(), in)
}
