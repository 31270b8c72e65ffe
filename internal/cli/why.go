package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
)

func newWhyCommand(a *app) *cobra.Command {
	var (
		from     []string
		to, zone string
	)
	cmd := &cobra.Command{
		Use:   "why DATAPLANE KIND [FIELD]",
		Short: "Show which policy decides a setting, and by which rule",
		Long: `Show what decides a kind of policy on a dataplane: for every field the policy that
sets it, those that it supersedes, and the rule of each.

--to selects the outbounds to a service, --from the inbounds as they are for one
caller. With -f the answer comes from files, without a server.

--log explains why a call was denied, from the line that Envoy logged about it or
from the error of a gRPC client; the latter does not say who called whom, so that
DATAPLANE, which was called, and --from are given with it.`,
		Example: `  meridian why web-1 Timeout
  meridian why web-1 Timeout http.requestTimeout --to backend
  meridian why backend-1 RateLimit --from kuma.io/service=web -f .
  meridian why --log -
  meridian why backend-1 --from kuma.io/service=web --log -`,
	}
	var at atFlag
	at.bind(cmd)
	mesh := bindMesh(cmd)
	files := bindSources(cmd)
	cmd.Flags().StringVar(&to, "to", "", "only the outbounds to this service")
	cmd.Flags().StringSliceVar(&from, "from", nil, "only inbounds, for a caller with these tags, TAG=VALUE,…")
	cmd.Flags().StringVar(&zone, "zone", "", "zone to ask through the global; with -f, zone of dataplanes that name none")
	log := bindLog(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("log") {
			return between(0, "DATAPLANE")(cmd, args)
		}
		return between(2, "DATAPLANE", "KIND", "FIELD")(cmd, args)
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := mesh.check(); err != nil {
			return err
		}
		if err := checkZone(zone); err != nil {
			return err
		}
		ask := func(q question.Question, mesh string) (document []byte, names answer.Names, err error) {
			if files.given() && at.given() {
				return nil, nil, exit.Usagef("--at asks a control plane: leave -f out")
			}
			if files.given() {
				return a.evaluate(q, files, mesh, zone)
			}
			request := question.Request(q, mesh, zone)
			request.At = at.point
			response, err := a.ask(cmd.Context(), request)
			return response.GetJson(), response.GetShownNames(), err
		}
		if cmd.Flags().Changed("log") {
			return a.whyDenied(output.Value, log, args, from, to, mesh, ask)
		}
		kind, err := lookupPolicyKind(args[1])
		args[0] = resource.ReadName(args[0])
		if err := errors.Join(checkName("dataplane", args[0]), err); err != nil {
			return err
		}
		if to != "" && len(from) > 0 {
			return exit.Usagef("--to selects outbounds and --from inbounds; use one of them")
		}
		q := question.Why{Dataplane: args[0], Kind: kind.Kind, To: to}
		if len(args) == 3 {
			q.Field = args[2]
		}
		if q.From, err = parseTags("--from", from); err != nil {
			return err
		}
		document, names, err := ask(q, mesh.name)
		if err != nil {
			return err
		}
		return a.printAnswer(output.Value, q, document, names)
	}
	return cmd
}
