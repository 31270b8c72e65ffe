package cli

import (
	"bytes"
	"context"
	"io"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
)

func newInspectCommand(a *app) *cobra.Command {
	qs := &questions{
		group: "inspect",
		ask: func(cmd *cobra.Command, q question.Question, mesh, zone string, f print.Format) error {
			response, err := a.ask(cmd.Context(), question.Request(q, mesh, zone))
			if err != nil {
				return err
			}
			// A dataplane without a proxy has no connection to show.
			if c := response.GetConnection(); c != nil && c.GetState() != answer.ProxyManual && !f.Structured() {
				return a.printConnected(f, response.GetJson(), c)
			}
			return a.printAnswer(f, q, response.GetJson())
		},
		bind: func(cmd *cobra.Command, zone *string) {
			cmd.Flags().StringVar(zone, "zone", "", "zone to ask through the global, where several can answer")
		},
	}
	group := newGroup("inspect", "Show effective policies, as a control plane has them", qs.commands()...)
	group.Long = `Show which policies are in effect, and why, as a control plane has them. A zone
answers for its own dataplanes; the global forwards the question to the zone.`
	group.Example = `  meridian inspect dataplane web-1 --zone east
  meridian inspect connection --from web-1 --to backend-1
  meridian inspect policy TrafficPermission allow-web -o json`
	return group
}

// printConnected prints the page about a dataplane with the state of its proxy,
// which is no part of the document.
func (a *app) printConnected(f print.Format, document []byte, c *meridianv1.DataplaneConnection) error {
	page := func(w io.Writer, d *answer.DataplaneAnswer, form answer.Form) error {
		d.Proxy = &answer.ProxyState{
			State: c.GetState(), RegisteredBy: c.GetRegisteredBy(),
			Acked: resource.Revision(c.GetAcked()), Lag: c.GetLag(), LastError: c.GetLastError(),
		}
		return answer.RenderDataplane(w, d, form)
	}
	var b bytes.Buffer
	if err := question.Page(&b, document, a.form(f), page); err != nil {
		return err
	}
	return a.Output(b.Bytes())
}

// ask puts a question to the control plane.
func (a *app) ask(ctx context.Context, request *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	response, err := call(ctx, a, (*client.Client).Inspect, request)
	for _, note := range response.GetNotes() {
		a.Warn("the answer may be incomplete: " + note)
	}
	return response, err
}
