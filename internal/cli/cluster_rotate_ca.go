package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/print"
)

func newRotateCACommand(a *app) *cobra.Command {
	group := newGroup("rotate-ca", "Replace the certificate authority without an interruption",
		newRotateCAPhase(a, "start", "trust", "Make a new authority, and have everything trust both",
			"Make a new certificate authority, and have every server, every zone and every\n"+
				"client that calls a server trust it beside the old one, which still signs."),
		newRotateCAPhase(a, "switch", "switch", "Have the new authority sign",
			"Have every server take a certificate of the new authority. They show it with a\n"+
				"certificate of the new authority by the old one, which clients accept that only\n"+
				"know the old one."),
		newRotateCAPhase(a, "finish", "finish", "Forget the old authority",
			"Have every server and zone trust the new authority alone, and delete the key of\n"+
				"the old one. A certificate of the old authority is worth nothing from then on."),
		newRotateCAStatus(a))
	group.Long = `Replace the certificate authority that a global generated: before it expires, or
because its key may be known to others. Three steps, each of which is refused
until the one before is complete on every server and in every zone.

  meridian cluster rotate-ca start
  meridian cluster rotate-ca switch
  meridian cluster rotate-ca finish

Requests, zones and proxies notice nothing. A step that was interrupted continues
by itself.`
	return group
}

func newRotateCAPhase(a *app, name, phase, short, long string) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: name, Short: short,
		Long:    long + "\n\nIt takes membership of mesh-system:admin.",
		Example: "  meridian cluster rotate-ca " + name,
		Args:    exactly(),
	}
	cmd.Flags().BoolVar(&force, "force", false, "begin although the step before is not complete everywhere; what is left behind has to join again")
	a.bindZoneServers(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.rotateCA(cmd.Context(), &meridianv1.RotateCARequest{Phase: phase, Force: force}, print.FormatTable)
	}
	return cmd
}

func newRotateCAStatus(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how far the replacement of the certificate authority is",
		Long: `Show the step that the replacement of the certificate authority is in, and the
servers and zones that have not completed it.

It takes membership of mesh-system:admin.`,
		Example: "  meridian cluster rotate-ca status -o json",
		Args:    exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	a.bindZoneServers(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.rotateCA(cmd.Context(), &meridianv1.RotateCARequest{}, output.Value)
	}
	return cmd
}

// rotationView is the state of a rotation as JSON.
type rotationView struct {
	Phase   string                `json:"phase"`
	Old     string                `json:"old"`
	New     string                `json:"new,omitempty"`
	Missing []rotationMissingView `json:"missing"`
	Notes   []string              `json:"notes,omitempty"`
	// KnownTo are the removed servers that have the key of the authority.
	KnownTo []string `json:"authorityKnownTo,omitempty"`
}

type rotationMissingView struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

func (a *app) rotateCA(ctx context.Context, request *meridianv1.RotateCARequest, f print.Format) error {
	response, err := callServers(ctx, a, (*client.Client).RotateCA, request)
	if err != nil {
		return err
	}
	view := rotationView{Phase: response.GetPhase(), Old: response.GetOld(), New: response.GetNew(), Missing: []rotationMissingView{}, Notes: response.GetNotes(), KnownTo: response.GetAuthorityKnownTo()}
	for _, m := range response.GetMissing() {
		view.Missing = append(view.Missing, rotationMissingView{Kind: m.GetKind(), Name: m.GetName(), Reason: m.GetReason()})
	}
	if f.Structured() {
		return a.WriteValue(f, view)
	}
	if len(view.KnownTo) > 0 {
		a.Warn(view.knownText())
	}
	for _, note := range view.Notes {
		a.Message("Note: %s.", note)
	}
	return a.Output([]byte(view.text()))
}

// knownText says which removed servers have the key of the authority, and until when.
func (v rotationView) knownText() string {
	text := "removed servers that have the key of the certificate authority: " + strings.Join(v.KnownTo, ", ")
	if v.Phase == "trust" || v.Phase == "switch" {
		return text + "; it is worth nothing after `meridian cluster rotate-ca finish`"
	}
	return text + "; replace it, with `" + rotateCACommand + "`"
}

// text says how far the rotation is, and what to do next.
func (v rotationView) text() string {
	var b strings.Builder
	done, next := map[string]string{
		"":       "The certificate authority has not been replaced.",
		"trust":  "Every server and zone trusts both authorities.",
		"switch": "Every server has a certificate of the new authority.",
		"finish": "The new authority is the only one.",
	}[v.Phase], map[string]string{"": "start", "trust": "switch", "switch": "finish"}[v.Phase]
	if len(v.Missing) == 0 {
		b.WriteString(done + "\n")
		if next != "" {
			b.WriteString("Next: meridian cluster rotate-ca " + next + "\n")
		}
		return b.String()
	}
	b.WriteString("Not complete yet: " + done + "\n")
	for _, m := range v.Missing {
		b.WriteString("  missing: " + m.Kind + " " + m.Name + ": " + m.Reason + "\n")
	}
	return b.String()
}
