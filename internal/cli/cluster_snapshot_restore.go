package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/consensus"
	"meridian/internal/store"
)

// restorePatience is how long the servers may take at least to put a state in
// place that they have received.
const restorePatience = 5 * time.Minute

type restoreOptions struct {
	dryRun, yes, dropRevocations bool
	keyFile                      string
	output                       *print.FormatFlag
}

func newSnapshotRestoreCommand(a *app) *cobra.Command {
	o := &restoreOptions{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the state of the servers with a snapshot",
		Long: `Replace the state of the global, or of a zone of several servers, with a snapshot
of it, on every server, in one step: there is the state of before or the saved one,
never a part of either. The file is checked first, here and by the leader. Writes
wait meanwhile.

What was written after the state was saved is gone, deletions among it. Not so
what the cluster trusts, where the snapshot is of the same cluster: revocations,
keys and tokens that were made since stay, and so does the end of keys that were
replaced and deleted since. --drop-revocations takes all of that from the snapshot:
what was revoked since is valid again.

Of a zone, what the global owns is not in the snapshot and stays, and so do the
registrations of proxies, and the certificate authorities of meshes.

The history begins a new incarnation: watches end, and zones take the state over
as a whole; one that would lose more than a fifth of its resources waits for its
operator.

A global that has never been used takes over the identity of the one that was
saved, so that its zones follow. Any other keeps its own.

It says what it would do and asks; where there is no terminal it takes --yes.`,
		Example: `  meridian cluster snapshot restore meridian-2026-03-01.snapshot --dry-run
  meridian cluster snapshot restore meridian-2026-03-01.snapshot --yes`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.restoreSnapshot(cmd.Context(), args[0], o) },
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "check the file and show the effect, change nothing")
	bindKeyFile(cmd, &o.keyFile)
	cmd.Flags().BoolVar(&o.dropRevocations, "drop-revocations", false, "take keys, records of tokens and revocations from the snapshot: what was revoked since is valid again")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	a.bindZoneServers(cmd)
	return cmd
}

func (a *app) restoreSnapshot(ctx context.Context, path string, o *restoreOptions) error {
	saved, err := a.readSnapshot(path, o.keyFile)
	if err != nil {
		return err
	}
	c, err := a.connectServers(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	info, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{})
	if err != nil {
		return err
	}
	if info.GetRole() != "global" { // which says the revision of its global
		if err := aboutZoneServers(ctx, c, info); err != nil {
			return err
		}
	}
	if saved.snap != nil {
		if err := checkSnapshotFits(c, info, saved.snap.Metadata[consensus.BackupZone]); err != nil {
			return err
		}
	}
	if saved.snap == nil {
		a.Message("This replaces everything in cluster %s, which is at revision %d, by a snapshot that is encrypted with key %s.", info.GetClusterId(), info.GetRevision(), saved.key)
		a.Message("The servers need that key. What the snapshot holds is checked by them; --encryption-key-file FILE shows it here.")
		if o.dropRevocations {
			a.Warn(droppedRevocations)
		}
	} else {
		a.announceRestore(info, saved.snap.Summary(), o.dropRevocations)
	}
	if o.dryRun {
		a.Message("Dry run: nothing was changed.")
		return nil
	}
	if err := a.confirm(ctx, o.yes, path == "-"); err != nil {
		return err
	}
	var source io.Reader = bytes.NewReader(saved.data)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return exit.Usagef("%w", err)
		}
		defer func() { _ = f.Close() }() // read only
		source = f
	}
	response, err := upload(ctx, c, source, o.dropRevocations)
	if err != nil {
		return err
	}
	return a.printRestored(o.output.Value, response)
}

// aboutZoneServers has info tell of what the servers of a zone store.
func aboutZoneServers(ctx context.Context, c *client.Client, info *meridianv1.InfoResponse) error {
	servers, err := members(ctx, c)
	if err != nil {
		return err
	}
	info.ClusterId, info.Revision = servers.GetClusterId(), 0
	for _, m := range servers.GetMembers() {
		info.Revision = max(info.GetRevision(), m.GetAppliedRevision())
	}
	return nil
}

// checkSnapshotFits refuses the snapshot of a zone for a global, or for another zone, and that
// of a global for a zone.
func checkSnapshotFits(c *client.Client, info *meridianv1.InfoResponse, of string) error {
	zone := ""
	if info.GetRole() != "global" {
		zone = info.GetName()
	}
	name := func(zone string) string {
		if zone == "" {
			return "a global"
		}
		return "zone " + zone
	}
	if of != zone {
		return exit.Usagef("the snapshot is of %s, and %s is a server of %s", name(of), c.Target, name(zone))
	}
	return nil
}

// droppedRevocations is what --drop-revocations does to a cluster's own snapshot.
const droppedRevocations = "tokens revoked since are valid again, and those issued with keys made since are not"

// announceRestore says what is about to happen.
func (a *app) announceRestore(info *meridianv1.InfoResponse, s store.Summary, dropRevocations bool) {
	saved := ""
	if taken := s.Metadata[consensus.BackupTaken]; taken != "" {
		saved = fmt.Sprintf(", saved %s by %s", taken, print.OrDash(s.Metadata[consensus.BackupServer]))
	}
	a.Message("This replaces everything in cluster %s, which is at revision %d,", info.GetClusterId(), info.GetRevision())
	a.Message("by %s of cluster %s, incarnation %d, at revision %d%s.", print.Plural(s.Resources, "resource"), print.OrDash(s.Epoch.ClusterID), s.Epoch.Incarnation, s.Revision, saved)
	if info.GetRole() == "global" {
		a.Message("What was written since is lost; zones take the state over.")
	} else {
		a.Message("What was written to zone %s since is lost. What is the global's stays, and so do registrations of proxies.", info.GetName())
	}
	switch {
	case s.Epoch.ClusterID != info.GetClusterId() && info.GetRole() != "global":
		a.Warn("the snapshot is of other servers of the zone: tokens that these have issued are not valid after it")
	case s.Epoch.ClusterID != info.GetClusterId():
	case dropRevocations:
		a.Warn(droppedRevocations)
	default:
		a.Message("Revocations, keys and records of tokens made since are kept.")
	}
	if s.Epoch.ClusterID != info.GetClusterId() && info.GetRole() == "global" {
		a.Warn("the snapshot is of another cluster; a global that was never used takes over its identity, and its zones follow; any other keeps its own")
	}
	if s.Unreadable > 0 {
		a.Warn(print.Plural(s.Unreadable, "resource") + " in it cannot be used by this release of the command: a newer one wrote them")
	}
}

// confirm asks for confirmation, unless yes is given. It is asked before anything is
// changed, so that an operator who interrupts the question is told so.
func (a *app) confirm(ctx context.Context, yes, inputTaken bool) error {
	if yes {
		return nil
	}
	if inputTaken || !print.IsTerminal(a.stdin) {
		return errNoTerminal()
	}
	_, _ = fmt.Fprint(a.Stderr, "Type yes to continue: ")
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() { // a read of a terminal cannot be stopped: at an interrupt it is left behind
		text, err := bufio.NewReader(a.stdin).ReadString('\n')
		read <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(a.Stderr)
		return exit.Failf(exit.Interrupted, "nothing was changed: interrupted before the answer")
	case answer := <-read:
		switch {
		case answer.err != nil && !errors.Is(answer.err, io.EOF):
			return fmt.Errorf("read the answer: %w", answer.err)
		case strings.TrimSpace(answer.text) != "yes":
			return exit.Failf(exit.No, "nothing was changed: the answer was not yes")
		}
		return nil
	}
}

func errNoTerminal() error {
	return exit.Usagef("no terminal to ask for confirmation: use --yes")
}

// upload sends a state and waits until it is in place.
func upload(ctx context.Context, c *client.Client, source io.Reader, dropRevocations bool) (*meridianv1.RestoreSnapshotResponse, error) {
	ctx, watch := watchProgress(ctx, c.Timeout)
	defer watch.end()
	stream, err := c.RestoreSnapshot(ctx)
	if err != nil {
		return nil, explainStream(ctx, c, err)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := io.ReadFull(source, buf)
		if n > 0 {
			if sendErr := stream.Send(&meridianv1.RestoreSnapshotRequest{Data: buf[:n], DropRevocations: dropRevocations}); sendErr != nil {
				break // the control plane has ended the stream; below it says why
			}
			watch.allow(c.Timeout)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("nothing was changed: read the snapshot: %w", err)
		}
	}
	watch.allow(max(c.Timeout, restorePatience))
	response, err := stream.CloseAndRecv()
	if err == nil {
		return response, nil
	}
	if errors.Is(context.Cause(ctx), errNoProgress) {
		return nil, exit.Failf(exit.Timeout, "the control plane at %s did not say in time that the snapshot is restored", c.Target).
			With("It is, or it will be, or it never will, each as a whole: look at what is there before restoring it again.")
	}
	return nil, c.Explain(ctx, err)
}

// restoredView is the outcome as JSON.
type restoredView struct {
	Saved       uint64 `json:"saved"`
	Revision    uint64 `json:"revision"`
	Resources   uint64 `json:"resources"`
	ClusterID   string `json:"clusterId"`
	Incarnation uint64 `json:"incarnation"`
	// Kept is what the state has from the one before it.
	Kept keptView `json:"kept,omitzero"`
}

// keptView counts what a restored state has from the state before it.
type keptView struct {
	Revocations uint32 `json:"revocations"`
	Keys        uint32 `json:"keys"`
	Tokens      uint32 `json:"tokens"`
	DeletedKeys uint32 `json:"deletedKeys"`
}

func (a *app) printRestored(f print.Format, r *meridianv1.RestoreSnapshotResponse) error {
	k := r.GetKept()
	if f.Structured() {
		return a.WriteValue(f, restoredView{
			Saved: r.GetRevision(), Revision: r.GetEffective(), Resources: r.GetResources(),
			ClusterID: r.GetClusterId(), Incarnation: r.GetIncarnation(),
			Kept: keptView{k.GetRevocations(), k.GetKeys(), k.GetTokens(), k.GetDeletedKeys()},
		})
	}
	if k.GetRevocations()+k.GetKeys()+k.GetTokens()+k.GetDeletedKeys() > 0 {
		a.Message("Kept from the state before: %s, %s, %s of tokens; %s of the snapshot stay deleted.",
			count(k.GetRevocations(), "revocation"), count(k.GetKeys(), "signing key"), count(k.GetTokens(), "record"), count(k.GetDeletedKeys(), "signing key"))
	}
	return a.Println(fmt.Sprintf("restored %s; incarnation %d of cluster %s begins at revision %d",
		print.Plural(int(r.GetResources()), "resource"), r.GetIncarnation(), r.GetClusterId(), r.GetEffective())) //nolint:gosec // a count
}

func count(n uint32, noun string) string { return print.Plural(int(n), noun) }
