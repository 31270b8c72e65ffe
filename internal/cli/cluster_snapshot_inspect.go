package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/consensus"
	"meridian/internal/store"
)

func newSnapshotInspectCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "inspect FILE",
		Short:   "Show the contents of a snapshot and verify it",
		Example: "  meridian cluster snapshot inspect meridian-2026-03-01.snapshot",
		Long: `Show what a saved state holds, and check every byte of it: each record has a
checksum, and all resources together have a digest. It needs no server. FILE -
reads standard input.

It exits with 2 when the file is damaged, cut off or of a newer release, and says
where.`,
		Args: exactly("FILE"),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		_, snap, err := a.readSnapshot(args[0])
		if err != nil {
			return err
		}
		if output.Value.Structured() {
			return a.WriteValue(output.Value, viewSnapshot(args[0], snap.Summary()))
		}
		return a.Output([]byte(describeSnapshot(args[0], snap.Summary())))
	}
	return cmd
}

// readSnapshot reads and checks a file, and returns also what it consists of
// where it cannot be read again.
func (a *app) readSnapshot(path string) ([]byte, *store.Snapshot, error) {
	if path == "-" {
		data, err := io.ReadAll(a.stdin)
		if err != nil {
			return nil, nil, fmt.Errorf("read standard input: %w", err)
		}
		snap, err := parseSnapshot("standard input", bytes.NewReader(data))
		return data, snap, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, exit.Usagef("%w", err)
	}
	defer func() { _ = f.Close() }() // read only
	snap, err := parseSnapshot(path, f)
	return nil, snap, err
}

func parseSnapshot(name string, r io.Reader) (*store.Snapshot, error) {
	snap, err := store.ReadSnapshot(r)
	var at *store.SnapshotError
	switch {
	case err == nil:
		return snap, nil
	case !errors.As(err, &at):
		return nil, exit.Failf(exit.Usage, "%s cannot be read: %w", name, err)
	case errors.Is(err, store.ErrUnknownFormat):
		return nil, exit.Failf(exit.Usage, "%s was written by a newer release: %s", name, at).
			With("Use that release's command and servers, or an older snapshot.")
	}
	return nil, exit.Failf(exit.Usage, "%s is truncated or corrupt: %w", name, at).
		With("Nothing of it can be trusted. Use another snapshot.")
}

// snapshotView is a saved state as JSON.
type snapshotView struct {
	File        string              `json:"file"`
	Bytes       int64               `json:"bytes"`
	ClusterID   string              `json:"clusterId"`
	Incarnation uint64              `json:"incarnation"`
	Revision    uint64              `json:"revision"`
	Time        string              `json:"time,omitempty"`
	Server      string              `json:"server,omitempty"`
	Release     string              `json:"release,omitempty"`
	Taken       string              `json:"taken,omitempty"`
	Resources   int                 `json:"resources"`
	Unreadable  int                 `json:"unreadable"`
	Digest      string              `json:"digest"`
	Counts      []snapshotCountView `json:"counts"`
}

type snapshotCountView struct {
	Kind  string `json:"kind"`
	Mesh  string `json:"mesh"`
	Count int    `json:"count"`
}

func viewSnapshot(path string, s store.Summary) snapshotView {
	v := snapshotView{
		File: path, Bytes: s.Bytes, ClusterID: s.Epoch.ClusterID, Incarnation: s.Epoch.Incarnation,
		Revision: uint64(s.Revision), Resources: s.Resources, Unreadable: s.Unreadable, Digest: s.Digest.String(),
		Server: s.Metadata[consensus.BackupServer], Release: s.Metadata[consensus.BackupRelease],
		Taken: s.Metadata[consensus.BackupTaken], Counts: []snapshotCountView{},
	}
	if !s.Time.IsZero() {
		v.Time = s.Time.UTC().Format(time.RFC3339Nano)
	}
	for _, c := range s.Counts {
		v.Counts = append(v.Counts, snapshotCountView{Kind: string(c.Kind), Mesh: string(c.Mesh), Count: c.Count})
	}
	return v
}

func describeSnapshot(path string, s store.Summary) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(&b, "%-11s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("File", "%s, %s, intact", path, print.Size(s.Bytes))
	line("Cluster", "%s, incarnation %d", print.OrDash(s.Epoch.ClusterID), s.Epoch.Incarnation)
	line("Revision", "%d, of %s", s.Revision, s.Time.UTC().Format(time.RFC3339))
	if taken := s.Metadata[consensus.BackupTaken]; taken != "" {
		line("Saved", "%s by %s, release %s", taken, print.OrDash(s.Metadata[consensus.BackupServer]), print.OrDash(s.Metadata[consensus.BackupRelease]))
	}
	line("Digest", "%s", s.Digest)
	line("Resources", "%d", s.Resources)
	if s.Unreadable > 0 {
		line("Unreadable", "%d, which this release keeps and cannot use", s.Unreadable)
	}
	t := &print.Table{Header: []string{"KIND", "MESH", "COUNT"}}
	for _, c := range s.Counts {
		t.Add(string(c.Kind), string(c.Mesh), strconv.Itoa(c.Count))
	}
	return b.String() + "\n" + t.String(0)
}
