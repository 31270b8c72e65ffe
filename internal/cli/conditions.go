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
