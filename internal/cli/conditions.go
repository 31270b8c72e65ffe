package cli

import (
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// checkConditions refuses documents with a condition that cannot be used, as a
// server would (§5.6).
func checkConditions(documents []resource.Document) error {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	if err != nil {
		return err
	}
	var failed resource.DocumentErrors
	for _, d := range documents {
		if kind, ok := resource.Describe(d.Resource.Key().Kind); !ok || kind.Class != resource.Inherited && kind.Class != resource.TargetRef {
			continue // without conditions: its spec may not be decoded at the moment
		}
		if problems := compiler.Check(d.Resource.Spec()); len(problems) > 0 {
			failed = append(failed, &resource.DocumentError{
				Source: d.Source, Index: d.Index, Line: d.Line, Key: d.Resource.Key(), Problems: problems,
			})
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return inputFailure(failed)
}
