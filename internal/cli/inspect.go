package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
)

func newInspectCommand(a *app) *cobra.Command {
	strict := map[*cobra.Command]*bool{}
	at := map[*cobra.Command]*atFlag{}
	qs := &questions{
		group: "inspect",
		ask: func(cmd *cobra.Command, q question.Question, mesh, zone string, f print.Format) error {
			request := question.Request(q, mesh, zone)
			request.At = at[cmd].point
			response, err := a.ask(cmd.Context(), request)
			if err != nil {
				return err
			}
			// A dataplane without a proxy has no connection to show.
			if c := response.GetConnection(); c != nil && c.GetState() != answer.ProxyManual && !f.Structured() {
				err = a.printConnected(f, response, c)
			} else {
				err = a.printAnswer(f, q, response.GetJson(), response.GetShownNames())
			}
			if err != nil {
				return err
			}
			return a.checkComplete(f, response, *strict[cmd])
		},
		bind: func(cmd *cobra.Command, zone *string) {
			strict[cmd], at[cmd] = bindStrict(cmd), &atFlag{}
			at[cmd].bind(cmd)
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
func (a *app) printConnected(f print.Format, response *meridianv1.InspectResponse, c *meridianv1.DataplaneConnection) error {
	page := func(w io.Writer, d *answer.DataplaneAnswer, form answer.Form) error {
		d.Proxy = &answer.ProxyState{
			State: c.GetState(), RegisteredBy: c.GetRegisteredBy(),
			Acked: resource.Revision(c.GetAcked()), Lag: c.GetLag(), LastError: c.GetLastError(), Draining: c.GetDraining(),
		}
		d.Wire = wireOf(c)
		return answer.RenderDataplane(w, d, form)
	}
	var b bytes.Buffer
	if err := question.Page(&b, response.GetJson(), a.form(f, response.GetShownNames()), page); err != nil {
		return err
	}
	return a.Output(b.Bytes())
}

// wireOf returns what a proxy does with each row of the page about its dataplane; nil
// for one that does not follow its zone over xDS.
func wireOf(c *meridianv1.DataplaneConnection) map[answer.WireKey]string {
	if len(c.GetWire()) == 0 {
		return nil
	}
	wire := make(map[answer.WireKey]string, len(c.GetWire()))
	for _, w := range c.GetWire() {
		wire[answer.WireKey{Attachment: w.GetAttachment(), Kind: resource.Kind(w.GetKind())}] = w.GetState()
	}
	return wire
}

// ask puts a question to the control plane.
func (a *app) ask(ctx context.Context, request *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	response, err := call(ctx, a, (*client.Client).Inspect, request)
	if err != nil {
		return nil, err
	}
	if request.GetAt() != nil {
		if response.GetAtRevision() == 0 {
			return nil, client.ErrNoPast
		}
		a.Message("By the policies of revision %d. Dataplanes of zones of a global are those of now.", response.GetAtRevision())
	}
	// The first notes say what the document lists as incomplete.
	absent, err := answer.Incomplete(response.GetJson())
	if err != nil {
		return nil, err
	}
	const most = 5
	all := answer.RolledOutOf(response.GetJson())
	for _, r := range all[:min(len(all), most)] {
		a.Message("%s.", r)
	}
	if len(all) > most {
		a.Message("%s more: `-o json` lists them as `rollouts`.", print.Plural(len(all)-most, "resource"))
	}
	notes := response.GetNotes()
	for _, note := range notes[min(len(absent), len(notes)):] {
		a.Warn("the answer may be incomplete: " + note)
	}
	return response, nil
}

func bindStrict(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("strict", false, "exit with 6 when the answer lacks a zone, or a zone is behind")
}

// checkComplete names what an answer lacks where its format does not, and with strict
// fails for what it lacks or may lack.
func (a *app) checkComplete(f print.Format, response *meridianv1.InspectResponse, strict bool) error {
	if f == print.FormatName {
		absent, err := answer.Incomplete(response.GetJson())
		if err != nil {
			return err
		}
		for _, absence := range absent {
			a.Warn("the answer is incomplete: " + absence.String())
		}
	}
	if notes := response.GetNotes(); strict && len(notes) > 0 {
		return incompleteFailure(notes[0], len(notes)-1)
	}
	return nil
}

func incompleteFailure(first string, more int) error {
	if more > 0 {
		first += fmt.Sprintf(", and %d more", more)
	}
	return exit.Failf(exit.Timeout, "the answer is incomplete: %s", first)
}
