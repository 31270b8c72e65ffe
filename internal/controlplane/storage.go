package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meridian/internal/audit"
	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/server"
	"meridian/internal/store"
)

// Storage is what a server keeps on its own disk: the resources that it owns, and
// the record of who wrote them.
type Storage struct {
	// Store holds the resources in memory, Node keeps them on disk and, with the
	// other servers of a cluster, equal.
	Store *store.Store
	Node  *consensus.Node
	// Writer proposes to Node and records in Audit what became of it. Audit also
	// records who was refused.
	Writer *audit.Writer
	Audit  *server.Audit
}

// NodeConfig returns the configuration that the nodes of all servers share, with
// the store that the node is to fill.
func (b *Base) NodeConfig(role consensus.Role, s *store.Store) consensus.Config {
	b.Store = s
	b.Writer = audit.NewWriter(b.Name, b.Now, consensus.ErrUnknownOutcome)
	config := consensus.DefaultConfig(b.Options.DataDir)
	config.NodeID, config.Role, config.Logger, config.Encryption = b.Name, role, b.Log, b.Encryption
	config.Events.Applied, config.Events.Snapshotting = b.Writer.Applied, b.Writer.Settle
	config.Events.Stalled = func(file string, since time.Duration) {
		b.Log.Error("the disk hangs: a write to the log does not finish", "file", file, "since", since)
	}
	config.Events.Fatal = b.fail
	return config
}

// OpenNode opens the node and restores the store.
func (b *Base) OpenNode(ctx context.Context, config consensus.Config) (err error) {
	b.Node, err = consensus.Open(ctx, config, b.Store)
	if err != nil {
		b.Node = nil
	}
	if errors.Is(err, raftlog.ErrDataDirInUse) || errors.Is(err, raftlog.ErrDataDirReadOnly) || errors.Is(err, raftlog.ErrForeignDataDir) || errors.Is(err, raftlog.ErrNoKey) {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return err
}

// openRecords opens the audit log. The data directory must be the server's own by
// then: two processes cannot write one log.
func (b *Base) openRecords() (err error) {
	if err := server.RemoveAddresses(b.Options.DataDir); err != nil {
		return err
	}
	if b.Audit, err = server.OpenAudit(b.Options, b.PKI, b.Metrics, b.Now, b.Log); err != nil {
		return err
	}
	b.Writer.Open(b.Node, b.Audit.Log)
	b.Health.Add(server.Check{Name: "audit", Ready: b.Audit.Ready}, server.DiskCheck(b.Node.Disk))
	return nil
}

// close closes the storage, as far as it was opened.
func (b *Base) close() error {
	var errs []error
	if b.Node != nil {
		errs = append(errs, b.Node.Close())
	}
	if b.Audit != nil {
		errs = append(errs, b.Audit.Close())
	}
	return errors.Join(errs...)
}
