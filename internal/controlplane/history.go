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
