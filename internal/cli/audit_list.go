package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

func newAuditListCommand(a *app) *cobra.Command {
	var (
		request meridianv1.ListAuditRequest
		begin   string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List audit records of all servers, oldest first",
		Long: `List the records of the audit logs of all servers of the global and of all zones,
oldest first: writes, and requests that were refused. A zone lists those of its
servers.

Servers and zones that do not answer are named, in JSON under incomplete. The
records are as their servers hold them: ` + "`meridian audit verify`" + ` verifies a log.

It takes membership of mesh-system:admin.`,
		Example: `  meridian audit list --since 1h --verdict denied
  meridian audit list --kind TrafficPermission --name web-to-backend
  meridian audit list --user alice --since 2026-03-01T00:00:00Z -o json`,
		Args: exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML)
	cmd.Flags().StringVar(&request.User, "user", "", "only what this user did or tried")
	cmd.Flags().StringVar(&begin, "since", "", "only records since then: a duration such as 1h or 7d, or a time such as 2026-03-01T00:00:00Z")
	cmd.Flags().StringVar(&request.Kind, "kind", "", "only records about resources of this kind")
	cmd.Flags().StringVar(&request.Name, "name", "", "only records about resources of this name")
	cmd.Flags().StringVar(&request.Verdict, "verdict", "", "only allowed, denied, refused, unknown or noted")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		verdicts := []audit.Decision{"", audit.Allowed, audit.Denied, audit.Refused, audit.Unknown, audit.Noted}
		if !slices.Contains(verdicts, audit.Decision(request.GetVerdict())) {
			return exit.Usagef("--verdict %q: write allowed, denied, refused, unknown or noted", request.GetVerdict())
		}
		if kind, err := lookupKind(request.GetKind()); err == nil {
			request.Kind = string(kind.Kind) // others are of tokens, servers and snapshots
		}
		from, err := a.since(begin)
		if err != nil {
			return err
		}
		if !from.IsZero() {
			request.Since = timestamppb.New(from)
		}
		return a.listAudit(cmd.Context(), output.Value, &request)
	}
	return cmd
}

// since reads a time, or how long ago it was; zero when empty.
func (a *app) since(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	var ago time.Duration
	if err := (durationValue{&ago}).Set(text); err != nil || ago < 0 {
		return time.Time{}, exit.Usagef("--since %q: write a duration such as 1h or 7d, or a time such as 2026-03-01T00:00:00Z", text)
	}
	return a.Now().Add(-ago), nil
}

// auditView is a record as JSON, with who has it.
type auditView struct {
	Server string          `json:"server,omitempty"`
	Zone   string          `json:"zone,omitempty"`
	Record json.RawMessage `json:"record"`
	read   audit.Record
}

// absenceView is who could not be asked.
type absenceView struct {
	Server string `json:"server,omitempty"`
	Zone   string `json:"zone,omitempty"`
	Reason string `json:"reason"`
}

func (v *absenceView) String() string {
	switch {
	case v.Zone != "" && v.Server != "":
		return fmt.Sprintf("server %s of zone %s: %s", v.Server, v.Zone, v.Reason)
	case v.Zone != "":
		return fmt.Sprintf("zone %s: %s", v.Zone, v.Reason)
	}
	return fmt.Sprintf("server %s: %s", v.Server, v.Reason)
}

func (a *app) listAudit(ctx context.Context, f print.Format, request *meridianv1.ListAuditRequest) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	items, absent := []auditView{}, []absenceView{}
	for {
		page, err := client.Ask(ctx, c, (*client.Client).ListAudit, request)
		if err != nil {
			return err
		}
		for _, r := range page.GetRecords() {
			view := auditView{Server: r.GetServer(), Zone: r.GetZone(), Record: r.GetJson()}
			if view.read, err = audit.DecodeLine(r.GetJson()); err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
			items = append(items, view)
		}
		for _, i := range page.GetIncomplete() {
			if view := (absenceView{i.GetServer(), i.GetZone(), i.GetReason()}); !slices.Contains(absent, view) {
				absent = append(absent, view)
			}
		}
		if page.GetNextPageToken() == "" || page.GetNextPageToken() == request.GetPageToken() {
			break
		}
		request.PageToken = page.GetNextPageToken()
	}
	if f.Structured() {
		return a.WriteValue(f, struct {
			Items      []auditView   `json:"items"`
			Incomplete []absenceView `json:"incomplete"`
		}{items, absent})
	}
	if len(items) == 0 {
		a.Message("There is no such record.")
	} else if err := a.Table(auditTable(items, f == print.FormatWide)); err != nil {
		return err
	}
	for i := range absent {
		a.Warn("the list lacks the records of " + absent[i].String())
	}
	return nil
}

func auditTable(items []auditView, wide bool) *print.Table {
	t := &print.Table{Header: []string{"TIME", "AT", "USER", "VERDICT", "ACTION", "TARGET", "REASON"}}
	if wide {
		t.Header = append(t.Header, "FROM", "METHOD", "REVISION", "REQUEST")
	}
	for i := range items {
		r := &items[i].read
		at := items[i].Server
		switch {
		case items[i].Zone != "" && at != "":
			at = "zone " + items[i].Zone + ", " + at
		case items[i].Zone != "":
			at = "zone " + items[i].Zone
		}
		// A denial that is decided before the request is read has no targets.
		action, target := r.Method[strings.LastIndex(r.Method, "/")+1:], ""
		if len(r.Targets) > 0 {
			first := r.Targets[0]
			key := resource.Key{Kind: resource.Kind(first.Kind), Mesh: resource.MeshName(first.Mesh), Name: first.Name}
			action, target = first.Action, strings.Trim(key.String(), "/") // not every target has a name
			if more := len(r.Targets) - 1; more > 0 {
				target += fmt.Sprintf(" and %d more", more)
			}
		}
		reason := r.Rule
		if r.Message != "" {
			reason = r.Message
		}
		row := []string{r.Time.UTC().Format(time.RFC3339), at, r.Who.Name, string(r.Decision), action, target, reason}
		if wide {
			revision := ""
			if r.Revision > 0 {
				revision = strconv.FormatUint(r.Revision, 10)
			}
			row = append(row, r.From, r.Method, revision, r.Request)
		}
		t.Add(row...)
	}
	return t
}
