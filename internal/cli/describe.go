package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/inherit"
	"meridian/internal/question"
	"meridian/internal/resource"
)

func newDescribeCommand(a *app) *cobra.Command {
	var mesh *meshFlag
	cmd := &cobra.Command{
		Use:     "describe TYPE NAME",
		Short:   "Show the details of a resource",
		Example: "  meridian describe traffic-permission allow-web",
		Args: func(cmd *cobra.Command, args []string) error {
			return exactly("TYPE", "NAME")(cmd, splitSlash(args))
		},
		ValidArgsFunction: completeKinds(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			args = splitSlash(args)
			kind, err := lookupKind(args[0])
			if err != nil {
				return err
			}
			if err := mesh.check(); err != nil {
				return err
			}
			return a.describe(cmd.Context(), kind, mesh.name, args[1])
		},
	}
	mesh = bindMesh(cmd)
	return cmd
}

func (a *app) describe(ctx context.Context, kind *resource.Descriptor, mesh, name string) error {
	r, err := a.fetch(ctx, kind, mesh, name, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE)
	if err != nil {
		return err
	}
	var b strings.Builder
	m := r.Meta()
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s "+format+"\n", append([]any{label + ":"}, args...)...)
	}
	line("Name", "%s", m.Shown())
	line("Type", "%s, %s", kind.Kind, kindNature(kind))
	if m.Mesh != "" {
		line("Mesh", "%s", m.Mesh)
	}
	line("Version", "%d, written at revision %d", m.Version, m.Revision)
	if m.Rollout != "" {
		line(string(resource.KindRollout), "%s: shown in this zone in place of what the global has", m.Rollout)
	}
	line("Created", "%s", a.moment(m.CreationTime))
	line("Modified", "%s", a.moment(m.ModificationTime))
	if namespace := m.Labels[resource.LabelNamespace]; namespace != "" {
		line(string(resource.KindNamespace), "%s", namespace)
	}
	if len(m.Labels) > 0 {
		line("Labels", "%s", print.Tags(m.Labels))
	}
	if kind.Sensitive {
		if token.LeavesInBackups(r.Key()) {
			line("Spec", "a key: no command shows it; backups hold it")
			return a.Output([]byte(b.String()))
		}
		line("Spec", "%d bytes of secret material; `meridian get %s %s -o yaml` shows it", len(r.Canonical()), kind.Kind, m.Name)
		return a.Output([]byte(b.String()))
	}
	if kind.Kind != resource.KindDataplane { // inspect dataplane says what holds for it
		standing, err := a.standing(ctx, r.Key())
		if err != nil {
			return err
		}
		b.WriteString(standing)
	}
	if kind.Kind == resource.KindAccessRole {
		holders, err := a.holdersOf(ctx, m.Name)
		if err != nil {
			return err
		}
		b.WriteString(holders)
	}
	spec, err := print.YAML(r.Canonical())
	if err != nil {
		return fmt.Errorf("show the spec of %s: %w", r.Key(), err)
	}
	b.WriteString("Spec:\n")
	for _, text := range exit.Lines(spec) {
		b.WriteString("  " + text + "\n")
	}
	return a.Output([]byte(b.String()))
}

// standing asks in what condition a resource is (§5.8), and of what its author would be
// warned if it were written now. A server of an earlier release knows that of inherited
// policies and their targets only.
func (a *app) standing(ctx context.Context, key resource.Key) (string, error) {
	response, err := a.ask(ctx, question.Request(question.Policy{Kind: key.Kind, Name: key.Name, Brief: true}, string(key.Mesh), ""))
	if err != nil && !inherit.Follows(key.Kind) {
		a.Message("Its warnings are not known: %v", err)
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var about answer.PolicyAnswer
	if err := answer.Unmarshal(response.GetJson(), &about); err != nil {
		return "", err
	}
	answer.Names(response.GetShownNames()).Apply(&about)
	var b strings.Builder
	if len(about.Conditions) > 0 {
		b.WriteString("Conditions:\n")
	}
	for _, c := range about.Conditions {
		of := c.Type
		if c.ParentRef.Name != "" {
			of += " by " + c.ParentRef.String()
		}
		fmt.Fprintf(&b, "  %s=%s (%s): %s\n", of, c.Status, c.Reason, c.Message)
	}
	if len(about.Warnings) > 0 {
		b.WriteString("Warnings:\n")
	}
	for _, w := range about.WarningLines() {
		fmt.Fprintf(&b, "  %s\n", w)
	}
	if len(about.Incomplete) > 0 {
		b.WriteString("Incomplete:\n")
	}
	for _, absent := range about.Incomplete {
		fmt.Fprintf(&b, "  %s\n", absent)
	}
	return b.String(), nil
}

// moment prints a time and how long ago it was.
func (a *app) moment(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return print.Stamp(t) + " (" + a.Age(t) + " ago)"
}
