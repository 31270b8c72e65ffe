package cli

import (
	"context"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
)

func newInspectCommand(a *app) *cobra.Command {
	ask := func(cmd *cobra.Command, q *question, f format) error {
		document, err := a.inspect(cmd.Context(), q.request())
		if err != nil {
			return err
		}
		return a.printAnswer(f, q.subject, document)
	}
	extend := func(cmd *cobra.Command, q *question) {
		cmd.Flags().StringVar(&q.zone, "zone", "", "the zone to ask, through the global; not needed when one zone can answer")
	}
	group := newGroup("inspect", "Ask a control plane what is effective, and why", questionCommands(ask, extend)...)
	group.Long = `Ask a control plane what is effective, and why. A zone answers for its own
dataplanes; the global passes the question to the zone.`
	group.Example = `  meridian inspect dataplane web-1 --zone east
  meridian inspect connection --from web-1 --to backend-1
  meridian inspect policy TrafficPermission allow-web -o json`
	return group
}

// inspect puts a question to the control plane and returns its JSON as it came.
func (a *app) inspect(ctx context.Context, request *meridianv1.InspectRequest) ([]byte, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var response *meridianv1.InspectResponse
	err = c.call(ctx, func(ctx context.Context) (err error) {
		response, err = c.Inspect(ctx, request)
		return err
	})
	return response.GetJson(), err
}
