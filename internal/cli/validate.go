package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

func newValidateCommand(a *app) *cobra.Command {
	var (
		mesh   *meshFlag
		strict bool
	)
	cmd := &cobra.Command{
		Use:   "validate -f FILE|DIR|-",
		Short: "Validate documents without a server",
		Long: `Validate documents without a server: their syntax, fields, values and names. All
problems of all documents are reported, and the exit code is then 2. Warnings and
notes do not make a document invalid. Those of one cause are one line; -o json has
those of each document.`,
		Args: exactly(),
		Example: `  meridian validate -f policies/
  meridian validate -f policies/ --strict -o json`,
	}
	from := bindSources(cmd)
	mesh = bindMesh(cmd)
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 where there are warnings")
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		documents, err := a.load(from, mesh)
		if err == nil {
			err = checkConditions(documents)
		}
		if output.Value.Structured() {
			return a.printFindings(cmd.Context(), output.Value, documents, err, strict)
		}
		if err != nil {
			return err
		}
		advised, err := lint(cmd.Context(), documents)
		if err != nil {
			return err
		}
		warned := a.advise(append(remarksOf(documents), advised...))
		text := print.Plural(len(documents), "document") + " are valid"
		if len(documents) == 1 {
			text = "1 document is valid"
		}
		if err := a.Println(text); err != nil || !strict || !warned {
			return err
		}
		return exit.ErrNo
	}
	return cmd
}

// findingView is one problem of a document, as JSON.
type findingView = answer.Finding

func viewFinding(a policy.Advice) findingView {
	severity, code := answer.SeverityInfo, a.Code.Explanation().Code
	switch a.Severity {
	case resource.Error:
		severity, code = answer.SeverityError, a.Code
	case resource.Warning:
		severity = answer.SeverityWarning
	}
	return findingView{
		Code: string(code), Severity: severity, Source: a.Source, Line: a.Line,
		Kind: string(a.Key.Kind), Mesh: string(a.Key.Mesh), Name: a.Key.Name, Field: string(a.Path), Message: a.Message, Cause: a.Cause,
	}
}

// viewFindings are the findings of a server.
func viewFindings(findings []*meridianv1.Finding) []findingView {
	views := make([]findingView, len(findings))
	for i, f := range findings {
		severity := answer.SeverityWarning
		if f.GetSeverity() == meridianv1.Finding_SEVERITY_INFO {
			severity = answer.SeverityInfo
		}
		views[i] = findingView{
			Code: f.GetCode(), Severity: severity, Kind: f.GetKey().GetKind(), Mesh: f.GetKey().GetMesh(), Name: f.GetKey().GetName(),
			Field: f.GetField(), Message: f.GetMessage(), Cause: f.GetCause(),
		}
	}
	return views
}

// printFindings prints every problem as JSON, and fails as the text form does.
func (a *app) printFindings(ctx context.Context, f print.Format, documents []resource.Document, invalid error, strict bool) error {
	findings := []findingView{}
	var refused resource.DocumentErrors
	if invalid != nil && !errors.As(invalid, &refused) {
		return invalid
	}
	for _, d := range refused {
		for _, p := range d.Problems {
			findings = append(findings, viewFinding(policy.Advice{Source: d.Source, Key: d.Key, Problem: p}))
		}
	}
	if invalid == nil {
		advised, err := lint(ctx, documents)
		if err != nil {
			return err
		}
		for _, advice := range append(remarksOf(documents), advised...) {
			findings = append(findings, viewFinding(advice))
		}
	}
	err := a.WriteValue(f, struct {
		Documents int           `json:"documents"`
		Findings  []findingView `json:"findings"`
	}{len(documents), findings})
	warned := slices.ContainsFunc(findings, func(v findingView) bool { return v.Severity == answer.SeverityWarning })
	switch {
	case err != nil:
		return err
	case invalid != nil:
		return invalid
	case strict && warned:
		return exit.ErrNo
	}
	return nil
}

// lint returns advice about documents in combination.
func lint(ctx context.Context, documents []resource.Document) ([]policy.Advice, error) {
	resources := resourcesOf(documents)
	return policy.Lint(ctx, policy.NewSnapshot(resources...), resources, engines.Surveyors()...)
}
