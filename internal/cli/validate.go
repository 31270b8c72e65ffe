package cli

import (
	"github.com/spf13/cobra"

	"meridian/internal/cli/print"
	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

func newValidateCommand(a *app) *cobra.Command {
	var (
		files []string
		mesh  *meshFlag
	)
	cmd := &cobra.Command{
		Use:     "validate -f FILE|DIR|-",
		Short:   "Validate documents without a server",
		Example: "  meridian validate -f policies/",
		Long: `Validate documents without a server: their syntax, fields, values and names. All
problems of all documents are reported, and the exit code is then 2. Warnings and
notes do not make a document invalid.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			documents, err := a.load(files, mesh)
			if err != nil {
				return err
			}
			if err := checkConditions(documents); err != nil {
				return err
			}
			a.warnAbout(documents)
			a.lint(resourcesOf(documents))
			if len(documents) == 1 {
				return a.Println("1 document is valid")
			}
			return a.Println(print.Plural(len(documents), "document") + " are valid")
		},
	}
	bindFiles(cmd, &files)
	mesh = bindMesh(cmd)
	return cmd
}

// lint prints advice about documents in combination.
func (a *app) lint(resources []*resource.Resource) {
	for _, advice := range policy.Lint(policy.NewSnapshot(resources...), resources, engines.Surveyors()...) {
		a.advise(advice.Key.String(), advice.Problem)
	}
}
