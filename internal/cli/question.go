package cli

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/wire"
)

// asker answers a question; inspect and eval differ in nothing else.
type asker func(cmd *cobra.Command, q question.Question, mesh, zone string, f print.Format) error

// questions makes the commands by which questions are put: to a control plane by
// inspect, of files by eval. group is the name of either.
type questions struct {
	group string
	ask   asker
	// bind adds the flags of the asker, the zone among them.
	bind func(cmd *cobra.Command, zone *string)
	// source ends an example: where the answer comes from.
	source string
}

func (qs *questions) commands() []*cobra.Command {
	return []*cobra.Command{qs.dataplane(), qs.connection(), qs.policy(), qs.route(), qs.gateway(), qs.proxy()}
}

// command finishes a command that puts a question: its common flags, and what
// parse makes of its arguments.
func (qs *questions) command(cmd *cobra.Command, example string, parse func(args []string) (question.Question, error)) *cobra.Command {
	var zone string
	mesh := bindMesh(cmd)
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML)
	qs.bind(cmd, &zone)
	cmd.Example = "  meridian " + qs.group + " " + example + qs.source
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := mesh.check(); err != nil {
			return err
		}
		if err := checkZone(zone); err != nil {
			return err
		}
		q, err := parse(args)
		if err != nil {
			return err
		}
		return qs.ask(cmd, q, mesh.name, zone, output.Value)
	}
	return cmd
}

func checkZone(zone string) error {
	if err := resource.CheckName(zone); zone != "" && err != nil {
		return exit.Usagef("--zone: %w", err)
	}
	return nil
}

func (qs *questions) dataplane() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dataplane NAME",
		Short: "Show the policies in effect on a dataplane, and why",
		Args:  exactly("NAME"),
	}
	return qs.command(cmd, "dataplane web-1", func(args []string) (question.Question, error) {
		name := resource.ReadName(args[0])
		return question.Dataplane{Name: name}, checkName("dataplane", name)
	})
}

// checkName refuses a name that no resource can have.
func checkName(what, name string) error {
	if err := resource.CheckName(name); err != nil {
		return exit.Usagef("%s: %w", what, err)
	}
	return nil
}

func (qs *questions) connection() *cobra.Command {
	var (
		q        question.Connection
		fromTags []string
		expect   string
	)
	cmd := &cobra.Command{
		Use:   "connection --from DATAPLANE --to DATAPLANE",
		Short: "Show whether a dataplane may connect to another",
		Long: `Show whether one dataplane may connect to another, and with which
configuration. Through the global, the two may be in different zones.`,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&q.From, "from", "", "dataplane that opens the connection")
	cmd.Flags().StringSliceVar(&fromTags, "from-tags", nil, "in place of --from: tags of the caller, TAG=VALUE,…")
	cmd.Flags().StringVar(&q.To, "to", "", "dataplane that is called (required)")
	cmd.Flags().Uint32Var(&q.Port, "port", 0, "port of the inbound (default: every inbound)")
	cmd.Flags().StringVar(&expect, "expect", "", "allowed or denied: exit with 1 unless that is the answer")
	var fromZone, toZone string
	if qs.group == "inspect" {
		cmd.Flags().StringVar(&fromZone, "from-zone", "", "zone of --from, where several zones have a dataplane of that name")
		cmd.Flags().StringVar(&toZone, "to-zone", "", "zone of --to, likewise")
	}
	return qs.command(cmd, "connection --from web-1 --to backend-1", func([]string) (_ question.Question, err error) {
		q.From, q.To = resource.ReadName(q.From), resource.ReadName(q.To)
		q.FromZone, q.ToZone = resource.ZoneName(fromZone), resource.ZoneName(toZone)
		switch {
		case q.To == "":
			return nil, exit.Usagef("--to is required: the dataplane that is called")
		case (q.From == "") == (len(fromTags) == 0):
			return nil, exit.Usagef("give the caller either as --from DATAPLANE or as --from-tags TAG=VALUE,…")
		case expect != "" && expect != "allowed" && expect != "denied":
			return nil, exit.Usagef("--expect %q: write allowed or denied", expect)
		case fromZone != "" && q.From == "":
			return nil, exit.Usagef("--from-zone is about --from")
		case q.Port > 65535:
			return nil, exit.Usagef("--port %d: a port is at most 65535", q.Port)
		}
		if q.FromTags, err = parseTags("--from-tags", fromTags); err != nil {
			return nil, err
		}
		if q.From != "" {
			err = checkName("dataplane", q.From)
		}
		return expected{q, expect}, errors.Join(err, checkName("dataplane", q.To))
	})
}

func (qs *questions) policy() *cobra.Command {
	var rule string
	cmd := &cobra.Command{
		Use:               "policy KIND NAME",
		Short:             "Show where a policy takes effect, and its conditions",
		Args:              func(cmd *cobra.Command, args []string) error { return exactly("KIND", "NAME")(cmd, splitSlash(args)) },
		ValidArgsFunction: completeKinds(isPolicy),
	}
	cmd.Flags().StringVar(&rule, "rule", "", "show one rule, such as authentication.a; '*' for every rule")
	return qs.command(cmd, "policy TrafficPermission allow-web", func(args []string) (question.Question, error) {
		args = splitSlash(args)
		kind, err := lookupPolicyKind(args[0])
		if err != nil {
			return nil, err
		}
		if rule != "" && kind.Class != resource.Inherited {
			return nil, exit.Usagef("--rule: a %s has no named rules; policies on gateways and routes have", kind.Kind)
		}
		return question.Policy{Kind: kind.Kind, Name: args[1], Rule: rule}, checkName(string(kind.Kind), args[1])
	})
}

func (qs *questions) route() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "route NAME",
		Short: "Show the rules on every path to a route, and their origin",
		Args:  exactly("NAME"),
	}
	return qs.command(cmd, "route checkout", func(args []string) (question.Question, error) {
		name := resource.ReadName(args[0])
		return question.Route{Name: name}, checkName("route", name)
	})
}

func (qs *questions) gateway() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway NAME",
		Short: "Show the rules on every path through a gateway",
		Args:  exactly("NAME"),
	}
	return qs.command(cmd, "gateway edge", func(args []string) (question.Question, error) {
		name := resource.ReadName(args[0])
		return question.Gateway{Name: name}, checkName("gateway", name)
	})
}

func (qs *questions) proxy() *cobra.Command {
	var kind, dialect string
	var live bool
	cmd := &cobra.Command{
		Use:   "proxy DATAPLANE",
		Short: "Show a proxy's xDS resources, and their origin",
		Long: `Show the xDS resources that the proxy of a dataplane is sent, with the
policies behind each value (-o wide), and what of the policies has no effect on it.`,
		Args: exactly("DATAPLANE"),
	}
	cmd.Flags().StringVar(&kind, "type", "", "only resources of one type: "+strings.Join(wire.Types(), ", "))
	cmd.Flags().StringVar(&dialect, "dialect", string(xds.GRPC), "kind of proxy: "+strings.Join(wire.Dialects(), " or "))
	if qs.group == "inspect" { // files have no proxies
		cmd.Long += `

With --live, the Envoy of the dataplane is asked through its agent what it runs:
LIVE is "same", "other" with the version that it runs, "warming" or "missing". Of
endpoints, the addresses are compared. gRPC clients cannot be asked.`
		cmd.Flags().BoolVar(&live, "live", false, "compare with what the Envoy itself says that it runs; implies --dialect envoy")
	}
	return qs.command(cmd, "proxy web-1", func(args []string) (question.Question, error) {
		kind = strings.ToUpper(kind)
		if kind != "" && !slices.Contains(wire.Types(), kind) {
			return nil, exit.Usagef("--type %q: use one of %s", kind, strings.Join(wire.Types(), ", "))
		}
		if !slices.Contains(wire.Dialects(), dialect) {
			return nil, exit.Usagef("--dialect %q: use one of %s", dialect, strings.Join(wire.Dialects(), ", "))
		}
		name := resource.ReadName(args[0])
		switch {
		case live && !cmd.Flags().Changed("dialect"):
			dialect = string(xds.Envoy)
		case live && dialect != string(xds.Envoy):
			return nil, exit.Usagef("--live is for an Envoy, which its agent can ask: `meridian proxy status` says what a gRPC client has accepted")
		}
		return question.Proxy{Name: name, Type: kind, Dialect: xds.Dialect(dialect), Live: live}, checkName("dataplane", name)
	})
}

// form is how a page is printed, with names as they are shown.
func (a *app) form(f print.Format, names answer.Names) answer.Form {
	return answer.Form{Wide: f == print.FormatWide, Columns: a.Columns(), Names: names}
}

// expected is a connection of which the user knows what the answer should be.
type expected struct {
	question.Connection
	expect string
}

// check fails with the exit code of "no" for another answer.
func (e expected) check(document []byte) error {
	var about answer.ConnectionAnswer
	if err := answer.Unmarshal(document, &about); err != nil || e.expect == "" {
		return err
	}
	got := "denied"
	if about.Allowed {
		got = "allowed"
	}
	if got != e.expect {
		return exit.Failf(exit.No, "the connection from %s to %s is %s, expected %s", print.OrWord(e.From, "the tags"), e.To, got, e.expect)
	}
	return nil
}

// printAnswer prints the JSON document of an answer as it came, or as a page
// for people. The page is made from the document alone, so that a server's
// answer and one from files look the same.
func (a *app) printAnswer(f print.Format, q question.Question, document []byte, names answer.Names) error {
	if f.Structured() {
		if err := a.WriteDocument(f, document); err != nil {
			return err
		}
	} else {
		var page bytes.Buffer
		if err := q.Render(&page, document, a.form(f, names)); err != nil {
			return err
		}
		if err := a.Output(page.Bytes()); err != nil {
			return err
		}
	}
	if e, ok := q.(expected); ok {
		return e.check(document)
	}
	return nil
}

func isPolicy(d *resource.Descriptor) bool {
	switch d.Class {
	case resource.SourceDestination, resource.TargetRef, resource.Inherited:
		return true
	default:
		return false
	}
}

func lookupPolicyKind(name string) (*resource.Descriptor, error) {
	kind, err := lookupKind(name)
	if err != nil {
		return nil, err
	}
	if !isPolicy(kind) {
		return nil, exit.Usagef("%s is not a policy; `meridian explain` lists the kinds", kind.Kind)
	}
	return kind, nil
}

// parseTags reads TAG=VALUE entries, each tag once.
func parseTags(flag string, entries []string) (map[string]string, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	tags := make(map[string]string, len(entries))
	for _, entry := range entries {
		tag, value, ok := strings.Cut(entry, "=")
		if !ok || tag == "" || value == "" {
			return nil, exit.Usagef("%s %q: write TAG=VALUE, several separated by commas", flag, entry)
		}
		if _, twice := tags[tag]; twice {
			return nil, exit.Usagef("%s: the tag %s is given twice", flag, tag)
		}
		tags[tag] = value
	}
	return tags, nil
}
