package cli

import (
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

// question is what inspect asks a server and eval asks the files.
type question struct {
	subject  subject
	mesh     string
	zone     string
	name     string               // of the dataplane, policy or route
	kind     *resource.Descriptor // of the policy
	rule     string               // of an inherited policy
	from, to string
	fromTags map[string]string
	port     uint32
}

// subject is what a question is about.
type subject string

const (
	aboutDataplane  subject = "dataplane"
	aboutConnection subject = "connection"
	aboutPolicy     subject = "policy"
	aboutRules      subject = "rules"
	aboutRoute      subject = "route"
	aboutWhy        subject = "why"
	aboutDataplanes subject = "dataplanes"
)

// request is the question as a server takes it.
func (q *question) request() *meridianv1.InspectRequest {
	request := &meridianv1.InspectRequest{Zone: q.zone, Mesh: q.mesh}
	switch q.subject {
	case aboutDataplane:
		request.Question = &meridianv1.InspectRequest_Dataplane{Dataplane: &meridianv1.DataplaneQuestion{Name: q.name}}
	case aboutConnection:
		request.Question = &meridianv1.InspectRequest_Connection{Connection: &meridianv1.ConnectionQuestion{
			From: q.from, FromTags: q.fromTags, To: q.to, Port: q.port,
		}}
	case aboutPolicy, aboutRules:
		request.Question = &meridianv1.InspectRequest_Policy{Policy: &meridianv1.PolicyQuestion{
			Kind: string(q.kind.Kind), Name: q.name, Rule: q.rule,
		}}
	case aboutRoute:
		request.Question = &meridianv1.InspectRequest_Route{Route: &meridianv1.RouteQuestion{Name: q.name}}
	}
	return request
}

// asker answers a question; inspect and eval differ in nothing else.
type asker func(cmd *cobra.Command, q *question, f print.Format) error

// questionCommands returns the commands by which questions are put. extend adds
// the flags of the asker to each.
func questionCommands(ask asker, extend func(*cobra.Command, *question)) []*cobra.Command {
	return []*cobra.Command{
		newDataplaneQuestion(ask, extend),
		newConnectionQuestion(ask, extend),
		newPolicyQuestion(ask, extend),
		newRouteQuestion(ask, extend),
	}
}

// newQuestion finishes a command that puts a question: its common flags, and
// what prepare makes of its arguments.
func newQuestion(cmd *cobra.Command, q *question, ask asker, extend func(*cobra.Command, *question), prepare func(args []string) error) *cobra.Command {
	mesh := bindMesh(cmd)
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML)
	extend(cmd, q)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := mesh.check(); err != nil {
			return err
		}
		q.mesh = mesh.name
		if q.zone != "" {
			if err := resource.CheckName(q.zone); err != nil {
				return exit.Usagef("--zone: %w", err)
			}
		}
		if err := prepare(args); err != nil {
			return err
		}
		return ask(cmd, q, output.Value)
	}
	return cmd
}

func newDataplaneQuestion(ask asker, extend func(*cobra.Command, *question)) *cobra.Command {
	q := &question{subject: aboutDataplane}
	cmd := &cobra.Command{
		Use:   "dataplane NAME",
		Short: "What applies on a dataplane, and why",
		Args:  exactly("NAME"),
	}
	return newQuestion(cmd, q, ask, extend, func(args []string) error {
		q.name = args[0]
		return checkDataplane(q.name)
	})
}

func checkDataplane(name string) error {
	if err := resource.CheckName(name); err != nil {
		return exit.Usagef("dataplane: %w", err)
	}
	return nil
}

func newConnectionQuestion(ask asker, extend func(*cobra.Command, *question)) *cobra.Command {
	q := &question{subject: aboutConnection}
	var fromTags []string
	cmd := &cobra.Command{
		Use:   "connection --from DATAPLANE --to DATAPLANE",
		Short: "Whether one dataplane may talk to another, and with which configuration",
		Args:  exactly(),
	}
	cmd.Flags().StringVar(&q.from, "from", "", "the dataplane that opens the connection")
	cmd.Flags().StringSliceVar(&fromTags, "from-tags", nil, "tags of a caller that has no dataplane here, TAG=VALUE,…; in place of --from")
	cmd.Flags().StringVar(&q.to, "to", "", "the dataplane that is called (required)")
	cmd.Flags().Uint32Var(&q.port, "port", 0, "the inbound's port; without it every inbound is looked at")
	return newQuestion(cmd, q, ask, extend, func([]string) (err error) {
		switch {
		case q.to == "":
			return exit.Usagef("--to is required: the dataplane that is called")
		case (q.from == "") == (len(fromTags) == 0):
			return exit.Usagef("give the caller either as --from DATAPLANE or as --from-tags TAG=VALUE,…")
		case q.port > 65535:
			return exit.Usagef("--port %d: a port is at most 65535", q.port)
		}
		if q.fromTags, err = parseTags("--from-tags", fromTags); err != nil {
			return err
		}
		for _, name := range []string{q.from, q.to} {
			if name == "" {
				continue
			}
			if err := checkDataplane(name); err != nil {
				return err
			}
		}
		return nil
	})
}

func newPolicyQuestion(ask asker, extend func(*cobra.Command, *question)) *cobra.Command {
	q := &question{subject: aboutPolicy}
	cmd := &cobra.Command{
		Use:               "policy TYPE NAME",
		Short:             "Where a policy takes effect, and in what condition it is",
		Args:              func(cmd *cobra.Command, args []string) error { return exactly("TYPE", "NAME")(cmd, splitSlash(args)) },
		ValidArgsFunction: completeKinds(isPolicy),
	}
	cmd.Flags().StringVar(&q.rule, "rule", "", "where one rule reaches, such as authentication.a; '*' for every rule of the policy")
	return newQuestion(cmd, q, ask, extend, func(args []string) (err error) {
		args = splitSlash(args)
		if q.kind, err = lookupPolicyKind(args[0]); err != nil {
			return err
		}
		q.name = args[1]
		if err := resource.CheckName(q.name); err != nil {
			return exit.Usagef("%s: %w", q.kind.Kind, err)
		}
		if q.rule != "" {
			if q.kind.Class != resource.Inherited {
				return exit.Usagef("--rule: a %s has no named rules; policies on gateways and routes have", q.kind.Kind)
			}
			q.subject = aboutRules
		}
		return nil
	})
}

func newRouteQuestion(ask asker, extend func(*cobra.Command, *question)) *cobra.Command {
	q := &question{subject: aboutRoute}
	cmd := &cobra.Command{
		Use:   "route NAME",
		Short: "The rules in force on every path to a route, and where each comes from",
		Args:  exactly("NAME"),
	}
	return newQuestion(cmd, q, ask, extend, func(args []string) error {
		q.name = args[0]
		if err := resource.CheckName(q.name); err != nil {
			return exit.Usagef("route: %w", err)
		}
		return nil
	})
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
