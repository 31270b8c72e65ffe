package cli

import (
	"slices"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

func newAnalyzeCommand(a *app) *cobra.Command {
	var (
		zone      string
		allMeshes bool
		strict    bool
	)
	cmd := &cobra.Command{
		Use:   "analyze",
		Short: "Find what is stored, valid and probably not meant",
		Long: `Find what the control plane has stored that is valid and probably not meant, as
lint does in files. Through the global, a policy takes effect nowhere when it does
so in each connected zone that has dataplanes of its mesh. All meshes are shown,
and access roles, unless -m names one.

The exit code is 1 with findings of severity error; with --strict, with any, and 6
when the answer lacks a zone. docs/policies/analysis.md lists the codes.`,
		Example: `  meridian analyze
  meridian analyze -m default --strict -o json`,
		Args: exactly(),
	}
	mesh := bindMesh(cmd)
	cmd.Flags().BoolVarP(&allMeshes, "all-meshes", "A", false, "show every mesh (the default without -m)")
	cmd.Flags().StringVar(&zone, "zone", "", "zone to ask through the global")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 where anything is found, with 6 when the answer lacks a zone")
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := mesh.check(); err != nil {
			return err
		}
		if err := checkZone(zone); err != nil {
			return err
		}
		asked := ""
		if mesh.explicit() && !allMeshes {
			asked = mesh.name
		}
		response, err := a.ask(cmd.Context(), question.Request(question.Analysis{}, asked, zone))
		if err != nil {
			return err
		}
		var found answer.AnalysisAnswer
		if err := answer.Unmarshal(response.GetJson(), &found); err != nil {
			return err
		}
		if asked != "" && len(found.Findings) == 0 { // nothing is found in a mesh that is not there
			mesh := &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: string(resource.KindMesh), Name: asked}}
			if _, err := call(cmd.Context(), a, (*client.Client).Get, mesh); rpcerr.CodeOf(err) == rpcerr.NotFound {
				return err
			}
		}
		if err := a.printAnswer(output.Value, question.Analysis{}, response.GetJson(), response.GetShownNames()); err != nil {
			return err
		}
		if err := a.checkComplete(output.Value, response, strict); err != nil {
			return err
		}
		if failed(found.Findings, strict) {
			return exit.ErrNo
		}
		return nil
	}
	return cmd
}

// failed reports whether findings fail the command.
func failed(found []answer.Finding, strict bool) bool {
	return slices.ContainsFunc(found, func(f answer.Finding) bool { return strict || f.Severity == answer.SeverityError })
}
