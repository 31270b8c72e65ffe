package controlplane

import (
	"context"
	"fmt"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/consensus"
	"meridian/internal/past"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// readPast returns an earlier state of what this server keeps itself.
func (b *Base) readPast(ctx context.Context, at *meridianv1.PointInTime) (*store.Past, error) {
	return past.Read(ctx, b.Store, at, b.Now())
}

// registerHistory adds the metrics of the contents that are kept.
func (b *Base) registerHistory() {
	b.Gauge("meridian_history_revisions", "Revisions whose contents are kept.", func() float64 {
		revisions, _ := b.Store.PastSize()
		return float64(revisions)
	})
	b.Gauge("meridian_history_bytes", "What these contents take in memory and in a snapshot, in bytes.", func() float64 {
		_, bytes := b.Store.PastSize()
		return float64(bytes)
	})
	b.Gauge("meridian_history_oldest_revision", "The oldest revision that can be read.", func() float64 { return float64(b.Store.OldestState()) })
}

// KeepHistory has the contents of old revisions kept as the options of this server say,
// where it is the leader and they are not. While a server of an earlier release is a
// member, they stay as they are: it could not apply the entry. Call it again then.
func (b *Base) KeepHistory(ctx context.Context) error {
	want := b.Options.History.Retention()
	if !b.Node.IsLeader() || b.Store.Retention() == want {
		return nil
	}
	_, err := b.Node.Propose(ctx, store.Txn{Retention: &want})
	switch {
	case rpcerr.HasReason(err, consensus.ReasonMemberTooOld):
		b.Log.Debug("the contents of old revisions are not kept yet", "error", err)
		return nil
	case err != nil:
		return fmt.Errorf("keep the contents of old revisions: %w", err)
	}
	return nil
}
