package consensus

import (
	"context"
	"fmt"
	"io"
	"time"

	"meridian/internal/resource"
	"meridian/internal/version"
)

// What a backup says about itself, beside the state's own revision and epoch.
const (
	// BackupServer is the server that wrote it.
	BackupServer = "server"
	// BackupRelease is the release that server ran.
	BackupRelease = "release"
	// BackupTaken is when it was written, by that server's clock (RFC 3339).
	BackupTaken = "taken"
	// BackupZone is the zone whose state it is (Config.Zone); absent for a global's.
	BackupZone = "zone"
)

// SaveBackup writes the whole state as a file that Restore takes, and returns
// the revision that it is as of: the newest state, or with stale whatever this
// server has applied, which needs no leader. It blocks no write, however slow w
// is.
//
// The file holds every secret of the cluster; it is encrypted where the disk is
// (Config.Encryption). It is complete when SaveBackup
// returns without an error, and its last record says so.
//
// Errors: those of Read unless stale; those of w.
func (n *Node) SaveBackup(ctx context.Context, w io.Writer, stale bool) (resource.Revision, error) {
	if !stale {
		if _, err := n.reader.Read(ctx); err != nil {
			return 0, err
		}
	}
	view := n.st.View()
	out, err := n.cfg.Encryption.Writer(w)
	if err != nil {
		return 0, fmt.Errorf("save a backup: %w", err)
	}
	about := map[string]string{
		BackupServer:  n.cfg.NodeID,
		BackupRelease: version.String(),
		BackupTaken:   n.cfg.Clock().UTC().Format(time.RFC3339),
	}
	if n.cfg.Zone != "" {
		about[BackupZone] = n.cfg.Zone
	}
	err = view.WriteBackup(out, about)
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return 0, fmt.Errorf("save a backup: %w", err)
	}
	return view.Revision(), nil
}
