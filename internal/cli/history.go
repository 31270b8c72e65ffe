package cli

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/past"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

func newHistoryCommand(a *app) *cobra.Command {
	var limit uint32
	cmd := &cobra.Command{
		Use:   "history KIND NAME",
		Short: "List the writes of a resource, newest first",
		Long: `List the writes of a resource whose contents are kept, newest first: who wrote it,
when, at which revision and in which batch; a deleted resource has a history, too.
JSON has what was written. The contents of secrets are not kept.

How much is kept is decided by --history-bytes, --history-age and
--history-revisions of the servers.`,
		Example:           "  meridian history Timeout web-timeouts\n  meridian history TrafficPermission deny-all -m shop -o json",
		Args:              between(1, "KIND", "NAME"),
		ValidArgsFunction: completeKinds(nil),
	}
	mesh := bindMesh(cmd)
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML)
	cmd.Flags().Uint32Var(&limit, "limit", 0, "at most so many writes; 0 for all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := oneNamed(args, mesh)
		if err != nil {
			return err
		}
		return a.history(cmd.Context(), key, limit, output.Value)
	}
	return cmd
}

// oneNamed is the key of the one resource that is named.
func oneNamed(args []string, mesh *meshFlag) (resource.Key, error) {
	if err := mesh.check(); err != nil {
		return resource.Key{}, err
	}
	names, err := parseNames(args)
	switch {
	case err != nil:
		return resource.Key{}, err
	case len(names) != 1:
		return resource.Key{}, exit.Usagef("name one resource")
	case names[0].name == "":
		return resource.Key{}, exit.Usagef("missing NAME: which %s", args[0])
	}
	return keyOf(names[0].kind, mesh.name, names[0].name)
}

// editView is one write as JSON.
type editView struct {
	Revision uint64          `json:"revision"`
	Time     time.Time       `json:"time"`
	Version  uint64          `json:"version"`
	User     string          `json:"user"`
	Outcome  string          `json:"outcome"`
	Batch    string          `json:"batch,omitempty"`
	Method   string          `json:"method,omitempty"`
	Labels   labels          `json:"labels,omitempty"`
	Spec     json.RawMessage `json:"spec,omitempty"`
}

type labels map[string]string

func viewEdit(i *meridianv1.HistoryItem) editView {
	v := editView{
		Revision: i.GetRevision(), Time: i.GetTime().AsTime(), Version: i.GetVersion(), User: i.GetUser(),
		Outcome: outcomeWord(i.GetOutcome()), Batch: i.GetBatch(), Method: i.GetMethod(),
	}
	if r := i.GetResource(); r != nil {
		v.Labels, v.Spec = r.GetLabels(), r.GetSpec()
	}
	return v
}

func (a *app) history(ctx context.Context, key resource.Key, limit uint32, f print.Format) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	items, first, oldest, err := c.Edits(ctx, messageKey(key), limit)
	if err != nil {
		return err
	}
	views := make([]editView, len(items))
	for i, item := range items {
		views[i] = viewEdit(item)
	}
	if f.Structured() {
		return a.WriteValue(f, struct {
			Items  []editView `json:"items"`
			Oldest uint64     `json:"oldest"`
		}{views, oldest})
	}
	if len(views) > 0 {
		if err := a.Table(historyTable(views, f == print.FormatWide)); err != nil {
			return err
		}
	}
	if first != nil {
		a.Message("Version %d was written at revision %d; contents are kept from revision %d on.", first.GetVersion(), first.GetRevision(), oldest)
	}
	return nil
}

func historyTable(views []editView, wide bool) *print.Table {
	t := &print.Table{Header: []string{"REVISION", "TIME", "VERSION", "OUTCOME", "USER", "BATCH"}}
	if wide {
		t.Header = append(t.Header, "METHOD")
	}
	for _, v := range views {
		version := ""
		if v.Version > 0 {
			version = strconv.FormatUint(v.Version, 10)
		}
		row := []string{strconv.FormatUint(v.Revision, 10), v.Time.UTC().Format(time.RFC3339), version, v.Outcome, v.User, v.Batch}
		if wide {
			row = append(row, v.Method)
		}
		t.Add(row...)
	}
	return t
}

func newBlameCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "blame KIND NAME",
		Short: "Show who set each field of a resource, and when",
		Long: `Show for every field of a resource the write since which it has had its value:
the revision, the time, the user and the batch. A field whose write is older than
what is kept has none. A field is a JSON pointer; that of a label begins with
/labels.`,
		Example:           "  meridian blame Timeout web-timeouts\n  meridian blame Mesh default -o json",
		Args:              between(1, "KIND", "NAME"),
		ValidArgsFunction: completeKinds(nil),
	}
	mesh := bindMesh(cmd)
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := oneNamed(args, mesh)
		if err != nil {
			return err
		}
		return a.blame(cmd.Context(), key, output.Value)
	}
	return cmd
}

// blamedView is who set a field, as JSON. Without a write it was set earlier than
// contents are kept.
type blamedView struct {
	Field    string     `json:"field"`
	Revision uint64     `json:"revision,omitempty"`
	Time     *time.Time `json:"time,omitempty"`
	User     string     `json:"user,omitempty"`
	Batch    string     `json:"batch,omitempty"`
}

func (a *app) blame(ctx context.Context, key resource.Key, f print.Format) error {
	if d, ok := resource.Describe(key.Kind); ok && d.Sensitive || key.Kind == resource.KindSigningKey {
		return exit.Usagef("%s: the contents of old revisions of secrets and keys are not kept; `meridian history` lists the writes", key.Kind)
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	items, first, oldest, err := c.Edits(ctx, messageKey(key), 0)
	if err != nil {
		return err
	}
	if len(items) > 0 && items[0].GetOutcome() == meridianv1.Outcome_OUTCOME_DELETED {
		return rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s was deleted at revision %d by %s", key, items[0].GetRevision(), items[0].GetUser())
	}
	sets, err := blameOf(items, first)
	if err != nil {
		return err
	}
	views := make([]blamedView, len(sets))
	for i, s := range sets {
		views[i] = blamedView{Field: s.Field}
		if s.By != nil {
			views[i] = blamedView{s.Field, uint64(s.By.Revision), &s.By.Time, s.By.User, s.By.Batch}
		}
	}
	if f.Structured() {
		return a.WriteValue(f, struct {
			Fields []blamedView `json:"fields"`
			Oldest uint64       `json:"oldest"`
		}{views, oldest})
	}
	t := &print.Table{Header: []string{"FIELD", "REVISION", "TIME", "USER", "BATCH"}}
	older := false
	for _, v := range views {
		if v.Time == nil {
			older = true
			t.Add(v.Field, "", "", "", "")
			continue
		}
		t.Add(v.Field, strconv.FormatUint(v.Revision, 10), v.Time.UTC().Format(time.RFC3339), v.User, v.Batch)
	}
	if len(views) == 0 {
		a.Message("It has no fields.")
	} else if err := a.Table(t); err != nil {
		return err
	}
	if older {
		a.Message("Fields without a revision were set earlier; contents are kept from revision %d on.", oldest)
	}
	return nil
}

func blameOf(items []*meridianv1.HistoryItem, first *meridianv1.Resource) ([]past.Set, error) {
	var before *resource.Resource
	if first != nil {
		before = client.Decode(first)
	}
	writes := make([]past.Write, 0, len(items)+1)
	for _, i := range items {
		w := past.Write{Revision: resource.Revision(i.GetRevision()), Time: i.GetTime().AsTime(), User: i.GetUser(), Batch: i.GetBatch()}
		if i.GetResource() != nil {
			w.Resource = client.Decode(i.GetResource())
		}
		writes = append(writes, w)
	}
	if len(writes) == 0 && before != nil { // it was not written since contents are kept
		writes = append(writes, past.Write{Resource: before})
	}
	return past.Blame(writes, before)
}
