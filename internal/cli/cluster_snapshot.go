package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/atomicfile"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
)

func newSnapshotCommand(a *app) *cobra.Command {
	group := newGroup("snapshot", "Save, inspect and restore the state of a global",
		newSnapshotSaveCommand(a), newSnapshotRestoreCommand(a), newSnapshotInspectCommand(a))
	group.Long = `Save the whole state of a global to a file, inspect such a file, and restore its
state. Any server takes these; saving and restoring take membership
of mesh-system:admin.`
	return group
}

func newSnapshotSaveCommand(a *app) *cobra.Command {
	var stale, force bool
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the state of the global to a file",
		Long: `Save the state of the global to a file: every resource, with the signing
keys and every other secret. Protect the file like a password; it is readable by
its owner only.

The state is the latest at one revision. Writes continue meanwhile. The file is
checked as it arrives and gets its name only when it is complete. FILE - writes to
standard output.

What the file does not hold lies in the servers' data directories: the
certificates (pki/) and the audit log.`,
		Example: `  meridian cluster snapshot save meridian-2026-03-01.snapshot
  meridian cluster snapshot save - | age -r … > meridian.snapshot.age`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.saveSnapshot(cmd.Context(), args[0], stale, force)
		},
	}
	cmd.Flags().BoolVar(&stale, "stale", false, "save the state of the contacted server; needs no leader")
	cmd.Flags().BoolVar(&force, "force", false, "replace the file if it exists")
	a.bindZoneServers(cmd)
	return cmd
}

func (a *app) saveSnapshot(ctx context.Context, path string, stale, force bool) error {
	if path == "-" && print.IsTerminal(a.Stdout) {
		return exit.Usagef("a snapshot is no text, and holds secrets: name a file, or send the output into one")
	}
	var file *atomicfile.File
	if path != "-" {
		var err error
		if file, err = createNew(path, force, "--force"); err != nil {
			return err
		}
		defer file.Discard()
	}
	c, err := a.connectServers(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{}); err != nil {
		return err
	}
	if path == "-" {
		_, err := download(ctx, c, stale, outputOf(a))
		return err
	}
	saved, err := download(ctx, c, stale, file)
	if err != nil {
		return err
	}
	if err := commitNew(file, path, force, "--force"); err != nil {
		return err
	}
	if saved.snap == nil {
		a.Message("Saved %s, encrypted with key %s. It is of use only together with that key.", print.Size(saved.bytes), saved.key)
		return nil
	}
	s := saved.snap.Summary()
	a.Message("Saved revision %d of cluster %s: %s, %s.", s.Revision, s.Epoch.ClusterID, print.Plural(s.Resources, "resource"), print.Size(s.Bytes))
	return nil
}

// download saves the state to w, and checks it on the way.
func download(ctx context.Context, c *client.Client, stale bool, w io.Writer) (*savedFile, error) {
	ctx, watch := watchProgress(ctx, c.Timeout)
	defer watch.end()
	stream, err := c.SaveSnapshot(ctx, &meridianv1.SaveSnapshotRequest{Stale: stale})
	if err != nil {
		return nil, explainStream(ctx, c, err)
	}
	source := &snapshotSource{stream: stream, progress: func() { watch.allow(c.Timeout) }}
	out := &snapshotSink{w: w}
	saved, err := readSaved(io.TeeReader(source, out), nil)
	switch {
	case out.err != nil:
		return nil, out.err
	case source.err != nil:
		return nil, explainStream(ctx, c, source.err)
	case err != nil:
		return nil, exit.Failf(exit.No, "the snapshot that the control plane sent is truncated or corrupt: %w", err)
	}
	return saved, nil
}

// snapshotSource reads what the control plane sends.
type snapshotSource struct {
	stream   grpc.ServerStreamingClient[meridianv1.SaveSnapshotResponse]
	progress func()
	rest     []byte
	err      error
}

// Read implements io.Reader.
func (s *snapshotSource) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		m, err := s.stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.err = err
			}
			return 0, err
		}
		s.progress()
		s.rest = m.GetData()
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// snapshotSink remembers why writing failed.
type snapshotSink struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (s *snapshotSink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		s.err = err
	}
	return n, err
}

// outputOf is standard output as a writer.
func outputOf(a *app) io.Writer { return writerFunc(a.Raw) }

type writerFunc func([]byte) error

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// errNoProgress means that the other side said nothing for too long.
var errNoProgress = errors.New("no progress")

// watchdog ends a context that nothing happens in.
type watchdog struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// watchProgress returns a context that ends after limit, unless the watchdog
// allows more. end must be called.
func watchProgress(ctx context.Context, limit time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &watchdog{timer: time.AfterFunc(limit, func() { cancel(errNoProgress) }), cancel: cancel}
}

// allow restarts the limit.
func (w *watchdog) allow(limit time.Duration) { w.timer.Reset(limit) }

func (w *watchdog) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// explainStream is explain for a call that is watched.
func explainStream(ctx context.Context, c *client.Client, err error) error {
	if errors.Is(context.Cause(ctx), errNoProgress) {
		return exit.Failf(exit.Timeout, "the control plane at %s made no progress for %s", c.Target, c.Timeout).
			With("--timeout waits longer.")
	}
	return c.Explain(ctx, err)
}
