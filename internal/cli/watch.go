package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

func newWatchCommand(a *app) *cobra.Command {
	var (
		fromRevision uint64
		allMeshes    bool
		mesh         *meshFlag
	)
	cmd := &cobra.Command{
		Use:   "watch [TYPE]",
		Short: "Print every change as it happens",
		Long: `Print every change as it happens, ordered by revision, until interrupted:
a line per change, or with -o json an object per line. All meshes are watched
unless -m names one.

After a broken connection the watch resumes from the last revision seen, except
where a zone is asked for kinds of its own and of the global together: those have
two histories, and no single revision describes the position.`,
		Example: `  meridian watch
  meridian watch traffic-permissions --from-revision 1841 -o json`,
		Args:              between(0, "TYPE"),
		ValidArgsFunction: completeKinds(nil),
	}
	mesh = bindMesh(cmd)
	cmd.Flags().BoolVarP(&allMeshes, "all-meshes", "A", false, "watch every mesh (the default without -m)")
	cmd.Flags().Uint64Var(&fromRevision, "from-revision", 0, "start after this revision (default: the next change)")
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &meridianv1.WatchRequest{}
		if err := mesh.check(); err != nil {
			return err
		}
		if mesh.explicit() && !allMeshes {
			request.Mesh = mesh.name
		}
		if cmd.Flags().Changed("from-revision") {
			request.FromRevision = &fromRevision
		}
		if len(args) == 1 {
			kind, err := lookupKind(args[0])
			if err != nil {
				return err
			}
			request.Kinds = []string{string(kind.Kind)}
		} else {
			request.Kinds = kindNames(notSensitive())
		}
		return a.watch(cmd.Context(), request, output.Value, nil)
	}
	return cmd
}

// watch prints changes until it is interrupted; keep, if not nil, selects them.
func (a *app) watch(ctx context.Context, request *meridianv1.WatchRequest, f print.Format, keep func(*resource.Resource) bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		seen := request.FromRevision
		err := a.watchOnce(ctx, c, request, f, keep)
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil // interrupted, which is how a watch ends
		}
		if every := kindNames(notSensitive()); client.LacksKind(err) && slices.Equal(request.GetKinds(), every) {
			if known, failure := c.KnownKinds(ctx, every); failure == nil && len(known) > 0 {
				request.Kinds = known
				continue
			}
		}
		// Only a watch that knows where it stood can be taken up again without
		// losing a change.
		lost := rpcerr.CodeOf(rpcerr.FromStatus(err)) == rpcerr.Unavailable
		if !lost || request.FromRevision == nil || !c.Reached() {
			return c.Explain(ctx, err)
		}
		c.Leave(err)
		if seen == request.FromRevision { // no progress: do not hurry
			client.Pause(ctx, client.MaxRetryPause)
		}
		if _, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{}); err != nil {
			return err
		}
		a.Message("The connection was lost; resuming the watch after revision %d.", request.GetFromRevision())
	}
}

// watchOnce prints changes until the stream ends, and keeps in the request the
// last revision printed, where a watch can be taken up again from it.
func (a *app) watchOnce(ctx context.Context, c *client.Client, request *meridianv1.WatchRequest, f print.Format, keep func(*resource.Resource) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Watch(ctx, request)
	if err != nil {
		return err
	}
	resumable := request.FromRevision != nil
	for {
		batch, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return rpcerr.New(rpcerr.Unavailable, "STREAM_ENDED", "the server ended the stream")
		}
		if err != nil {
			return err
		}
		for _, change := range batch.GetChanges() {
			if keep != nil && !keep(client.Decode(change.GetResource())) {
				continue
			}
			if err := a.printChange(f, batch, change); err != nil {
				return err
			}
		}
		// The first response to a watch from now on says where that is, if one
		// revision can say it.
		resumable = resumable || len(batch.GetChanges()) == 0
		if resumable {
			revision := batch.GetRevision()
			request.FromRevision = &revision
		}
	}
}

// changeView is one change as JSON.
type changeView struct {
	Revision uint64          `json:"revision"`
	Time     string          `json:"time,omitempty"`
	Outcome  string          `json:"outcome"`
	Resource json.RawMessage `json:"resource"`
}

func (a *app) printChange(f print.Format, batch *meridianv1.WatchResponse, change *meridianv1.Change) error {
	r := client.Decode(change.GetResource())
	word := outcomeWord(change.GetOutcome())
	switch f {
	case print.FormatName:
		meta := r.Meta()
		return a.Println(string(meta.Kind) + "/" + meta.Shown())
	case print.FormatTable:
		mesh := print.OrWord(string(r.Key().Mesh), "-")
		meta := r.Meta()
		return a.Println(fmt.Sprintf("%-8d  %-9s  %-12s  %s/%s", batch.GetRevision(), word, mesh, meta.Kind, meta.Shown()))
	}
	var document bytes.Buffer
	if err := resource.Encode(&document, resource.FormatJSON, r); err != nil {
		return err
	}
	view := changeView{Revision: batch.GetRevision(), Outcome: word, Resource: document.Bytes()}
	if t := batch.GetTime(); t != nil {
		view.Time = t.AsTime().UTC().Format(time.RFC3339Nano)
	}
	if f == print.FormatYAML {
		if err := a.Println("---"); err != nil {
			return err
		}
		return a.WriteValue(f, view)
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(view); err != nil {
		return fmt.Errorf("encode a change: %w", err)
	}
	return a.WriteDocument(f, line.Bytes())
}
