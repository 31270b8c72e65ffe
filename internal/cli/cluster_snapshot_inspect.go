package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meridian/internal/atrest"
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

A snapshot of a server with --encryption-key-file is encrypted. Without the key,
the command says which one it is, and checks that the file is complete.

It exits with 2 when the file is damaged, cut off or of a newer release, and says
where.`,
		Args: exactly("FILE"),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	var keyFile string
	bindKeyFile(cmd, &keyFile)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		saved, err := a.readSnapshot(args[0], keyFile)
		if err != nil {
			return err
		}
		if saved.snap == nil {
			if output.Value.Structured() {
				return a.WriteValue(output.Value, encryptedView{args[0], saved.bytes, saved.key})
			}
			return a.Output(fmt.Appendf(nil, "File:       %s, %s, complete\nEncrypted:  with key %s; --encryption-key-file FILE with that key shows and checks what it holds\n",
				args[0], print.Size(saved.bytes), saved.key))
		}
		if output.Value.Structured() {
			view := viewSnapshot(args[0], saved.snap.Summary())
			view.Bytes, view.EncryptionKey = saved.bytes, saved.key
			return a.WriteValue(output.Value, view)
		}
		text := describeSnapshot(args[0], saved.snap.Summary())
		if saved.key != "" {
			text = strings.Replace(text, "\n", "\nEncrypted:  with key "+saved.key+"\n", 1)
		}
		return a.Output([]byte(text))
	}
	return cmd
}

// savedFile is a file with a saved state.
type savedFile struct {
	// data is its content where it cannot be read again.
	data  []byte
	bytes int64
	// key is the id of the key that it is encrypted with, empty when it is not.
	key string
	// snap is what it holds, nil when it is encrypted and the key is not there.
	snap *store.Snapshot
}

// bindKeyFile defines --encryption-key-file.
func bindKeyFile(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "encryption-key-file", "", "file with the keys of the servers, to read what they have encrypted")
}

// loadKeys reads the file of --encryption-key-file.
func loadKeys(path string) (*atrest.Keys, error) {
	keys, err := atrest.Load(path)
	if err != nil {
		return nil, exit.Usagef("--encryption-key-file: %w", err)
	}
	return keys, nil
}

// readSnapshot reads and checks a file: completely, or as far as that is possible
// without its key.
func (a *app) readSnapshot(path, keyFile string) (*savedFile, error) {
	keys, err := loadKeys(keyFile)
	if err != nil {
		return nil, err
	}
	if path == "-" {
		data, err := io.ReadAll(a.stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		saved, err := parseSnapshot("standard input", bytes.NewReader(data), keys)
		if err == nil {
			saved.data = data
		}
		return saved, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	defer func() { _ = f.Close() }() // read only
	return parseSnapshot(path, f, keys)
}

func parseSnapshot(name string, r io.Reader, keys *atrest.Keys) (*savedFile, error) {
	saved, err := readSaved(r, keys)
	var at *store.SnapshotError
	switch {
	case err == nil:
		return saved, nil
	case errors.Is(err, atrest.ErrDamaged):
		return nil, exit.Failf(exit.Usage, "%s is truncated or corrupt: %w", name, err).
			With("Nothing of it can be trusted. Use another snapshot.")
	case !errors.As(err, &at):
		return nil, exit.Failf(exit.Usage, "%s cannot be read: %w", name, err)
	case errors.Is(err, store.ErrUnknownFormat):
		return nil, exit.Failf(exit.Usage, "%s was written by a newer release: %s", name, at).
			With("Use that release's command and servers, or an older snapshot.")
	}
	return nil, exit.Failf(exit.Usage, "%s is truncated or corrupt: %w", name, at).
		With("Nothing of it can be trusted. Use another snapshot.")
}

// readSaved reads a saved state up to its end.
func readSaved(r io.Reader, keys *atrest.Keys) (*savedFile, error) {
	counted := &countingReader{r: r}
	buffered := bufio.NewReader(counted)
	head, err := buffered.Peek(atrest.HeaderLen)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	saved := &savedFile{}
	id, encrypted, err := atrest.Header(head)
	if err != nil {
		return nil, err
	}
	if encrypted {
		saved.key = id.String()
	}
	if keys.Fits(head) != nil {
		_, err = atrest.Complete(buffered)
	} else {
		var plain io.Reader
		if plain, err = keys.Reader(buffered); err == nil {
			saved.snap, err = store.ReadSnapshot(plain)
		}
	}
	saved.bytes = counted.n
	return saved, err
}

type countingReader struct {
	r io.Reader
	n int64
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// encryptedView is a saved state that cannot be read without its key, as JSON.
type encryptedView struct {
	File          string `json:"file"`
	Bytes         int64  `json:"bytes"`
	EncryptionKey string `json:"encryptionKey"`
}

// snapshotView is a saved state as JSON.
type snapshotView struct {
	File        string `json:"file"`
	Bytes       int64  `json:"bytes"`
	ClusterID   string `json:"clusterId"`
	Incarnation uint64 `json:"incarnation"`
	Revision    uint64 `json:"revision"`
	Time        string `json:"time,omitempty"`
	// Zone is the one that it is of; empty for a global's.
	Zone       string              `json:"zone,omitempty"`
	Server     string              `json:"server,omitempty"`
	Release    string              `json:"release,omitempty"`
	Taken      string              `json:"taken,omitempty"`
	Resources  int                 `json:"resources"`
	Unreadable int                 `json:"unreadable"`
	Digest     string              `json:"digest"`
	Counts     []snapshotCountView `json:"counts"`
	// EncryptionKey is the id of the key that the file is encrypted with.
	EncryptionKey string `json:"encryptionKey,omitempty"`
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
		Zone: s.Metadata[consensus.BackupZone], Server: s.Metadata[consensus.BackupServer], Release: s.Metadata[consensus.BackupRelease],
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
	if zone := s.Metadata[consensus.BackupZone]; zone != "" {
		line("Zone", "%s", zone)
	}
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
