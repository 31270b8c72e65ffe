package cli

import (
	"bytes"
	"context"
	"io"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

func newInspectCommand(a *app) *cobra.Command {
	ask := func(cmd *cobra.Command, q *question, f print.Format) error {
		response, err := a.ask(cmd.Context(), q.request())
		if err != nil {
			return err
		}
		// Of a dataplane without a proxy there is nothing to tell.
		if c := response.GetConnection(); c != nil && c.GetState() != answer.ProxyManual && !f.Structured() {
			return a.printConnected(f, response.GetJson(), c)
		}
		return a.printAnswer(f, q.subject, response.GetJson())
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

// printConnected prints the page about a dataplane with how its proxy stands to
// the zone, which is no part of the document.
func (a *app) printConnected(f print.Format, document []byte, c *meridianv1.DataplaneConnection) error {
	page := func(w io.Writer, d *answer.DataplaneAnswer, wide bool) error {
		d.Proxy = &answer.ProxyState{
			State: c.GetState(), RegisteredBy: c.GetRegisteredBy(),
			Acked: resource.Revision(c.GetAcked()), Lag: c.GetLag(), LastError: c.GetLastError(),
		}
		return answer.RenderDataplane(w, d, wide)
	}
	var b bytes.Buffer
	if err := render(&b, document, f == print.FormatWide, page); err != nil {
		return err
	}
	return a.Output(b.Bytes())
}

// inspect puts a question to the control plane and returns its JSON as it came.
func (a *app) inspect(ctx context.Context, request *meridianv1.InspectRequest) ([]byte, error) {
	response, err := a.ask(ctx, request)
	return response.GetJson(), err
}

// ask puts a question to the control plane.
func (a *app) ask(ctx context.Context, request *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var response *meridianv1.InspectResponse
	err = c.Call(ctx, func(ctx context.Context) (err error) {
		response, err = c.Inspect(ctx, request)
		return err
	})
	for _, note := range response.GetNotes() {
		a.Warn("this may lack something: " + note)
	}
	return response, err
}
