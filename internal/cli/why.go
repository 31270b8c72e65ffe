package cli

import (
	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// whyOptions is the question that why asks.
type whyOptions struct {
	offline
	dataplane string
	kind      *resource.Descriptor
	field     string
	to        string
	from      map[string]string
}

func newWhyCommand(a *app) *cobra.Command {
	var (
		o    whyOptions
		from []string
	)
	cmd := &cobra.Command{
		Use:   "why DATAPLANE KIND [FIELD]",
		Short: "Say who decided a setting, who lost, and by which rule",
		Long: `Say who decided what a kind of policy does on a dataplane: for every field the
winner, the losers, and the rule of each.

--to narrows the answer to the outbounds to a service, --from to inbounds, as
they are for one caller. With -f the answer comes from files, without any server.`,
		Example: `  meridian why web-1 Timeout
  meridian why web-1 Timeout http.requestTimeout --to backend
  meridian why backend-1 RateLimit --from kuma.io/service=web -f .`,
		Args: between(2, "DATAPLANE", "KIND", "FIELD"),
	}
	mesh := bindMesh(cmd)
	bindFiles(cmd, &o.files)
	cmd.Flags().StringVar(&o.to, "to", "", "only the outbounds to this service")
	cmd.Flags().StringSliceVar(&from, "from", nil, "only inbounds, as they are for a caller with these tags, TAG=VALUE,…")
	cmd.Flags().StringVar(&o.zone, "zone", "", "the zone to ask through the global; with -f, the zone of dataplanes that name none")
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if err := mesh.check(); err != nil {
			return err
		}
		o.dataplane = args[0]
		if err := checkDataplane(o.dataplane); err != nil {
			return err
		}
		if o.kind, err = lookupPolicyKind(args[1]); err != nil {
			return err
		}
		if len(args) == 3 {
			o.field = args[2]
		}
		if o.to != "" && len(from) > 0 {
			return exit.Usagef("--to is about outbounds and --from about inbounds; use one of them")
		}
		if o.from, err = parseTags("--from", from); err != nil {
			return err
		}
		document, err := a.why(cmd, &o, mesh.name)
		if err != nil {
			return err
		}
		return a.printAnswer(output.Value, aboutWhy, document)
	}
	return cmd
}

// why returns the answer as JSON, from files when there are any.
func (a *app) why(cmd *cobra.Command, o *whyOptions, mesh string) ([]byte, error) {
	if len(o.files) == 0 {
		return a.inspect(cmd.Context(), &meridianv1.InspectRequest{
			Zone: o.zone, Mesh: mesh,
			Question: &meridianv1.InspectRequest_Why{Why: &meridianv1.WhyQuestion{
				Dataplane: o.dataplane, Kind: string(o.kind.Kind), Field: o.field, To: o.to, FromTags: o.from,
			}},
		})
	}
	matcher, zone, err := a.loadMatcher(&o.offline, mesh)
	if err != nil {
		return nil, err
	}
	document, err := answer.Why(matcher, answer.WhyQuestion{
		Mesh: resource.MeshName(mesh), Dataplane: o.dataplane, Kind: o.kind.Kind,
		Field: o.field, To: o.to, From: o.from,
	}, zone, 0)
	if err != nil {
		return nil, err
	}
	return answer.Marshal(document)
}
