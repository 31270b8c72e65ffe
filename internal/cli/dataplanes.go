package cli

import (
	"bytes"

	"github.com/spf13/cobra"

	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
)

func newDataplanesCommand(a *app) *cobra.Command {
	var (
		zone      string
		mesh      *meshFlag
		allMeshes bool
	)
	cmd := &cobra.Command{
		Use:     "dataplanes",
		Short:   "List the dataplanes of one zone or of all",
		Example: "  meridian dataplanes --zone east -o wide",
		Long: `Show the dataplanes of a zone, or through the global those of all connected
zones: what they offer, what they consume, and how many policies take effect on
them; and whether their proxies are online, offline (registered by a proxy that
has gone, for as long as the zone's --dataplane-grace) or applied by an operator
(manual), the revision of the configuration they have taken on, and how many
changes of it they have yet to take on. All meshes are shown unless -m names one.`,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&zone, "zone", "", "zone to ask through the global")
	mesh = bindMesh(cmd)
	strict := bindStrict(cmd)
	cmd.Flags().BoolVarP(&allMeshes, "all-meshes", "A", false, "show every mesh (the default without -m)")
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML, print.FormatName)
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
		response, err := a.ask(cmd.Context(), question.Request(question.Dataplanes{}, asked, zone))
		if err != nil {
			return err
		}
		if err := a.printDataplanes(output.Value, response.GetJson(), response.GetShownNames()); err != nil {
			return err
		}
		return a.checkComplete(output.Value, response, *strict)
	}
	return cmd
}

func (a *app) printDataplanes(f print.Format, document []byte, shown answer.Names) error {
	if f.Structured() {
		return a.WriteDocument(f, document)
	}
	var list answer.DataplanesAnswer
	if err := answer.Unmarshal(document, &list); err != nil {
		return err
	}
	if len(list.Items) == 0 && len(list.Incomplete) == 0 {
		a.Message("There are no dataplanes.")
		return nil
	}
	if f != print.FormatName {
		return a.printAnswer(f, question.Dataplanes{}, document, shown)
	}
	var names bytes.Buffer
	for _, d := range list.Items {
		names.WriteString("Dataplane/" + d.Name + "\n")
	}
	return a.Output(names.Bytes())
}
