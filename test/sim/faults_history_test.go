package sim

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/history"
)

// historyFaults replace the state of the global, and bound its past.
var historyFaults = []fault{
	{"restore a backup", 3, restoreBackup},
	{"bound the contents of old revisions", 2, boundHistory},
}

// restoreBackup saves a backup, lets some time pass and restores it, while
// everything continues.
func restoreBackup(w *world, rng *rand.Rand) (func(), bool) {
	p := w.any(rng).process()
	if p == nil {
		return nil, false
	}
	var backup bytes.Buffer
	ctx, cancel := context.WithTimeout(p.ctx, w.plan.times(5*time.Second))
	defer cancel()
	if _, err := p.node.SaveBackup(ctx, &backup, rng.IntN(2) == 0); err != nil {
		return nil, false
	}
	snap, err := store.ReadSnapshot(bytes.NewReader(backup.Bytes()))
	if err != nil {
		w.violate("backup", "%s wrote a backup that cannot be read: %v", p.s, err)
		return nil, false
	}
	w.rec.Note("%s saves a backup at revision %d", p.s, snap.Revision)
	return func() { w.restore(w.leader(rng), backup.Bytes(), snap) }, true
}

// restore restores a backup through a server.
func (w *world) restore(s *server, backup []byte, snap *store.Snapshot) {
	p := s.process()
	if p == nil {
		return
	}
	states := map[resource.Key]history.State{}
	for _, r := range snap.Resources {
		states[r.Key()] = stateOf(r)
	}
	record := w.rec.Call(history.Op{Server: s.name, Kind: history.Restore, Restored: states})
	ctx, cancel := context.WithTimeout(p.ctx, w.plan.times(10*time.Second))
	defer cancel()
	before := p.store.View().Epoch()
	restored, err := p.node.Restore(ctx, bytes.NewReader(backup), false)
	if p.ctx.Err() != nil {
		err = consensus.ErrUnknownOutcome
	}
	if err == nil && restored.Epoch.Incarnation <= before.Incarnation {
		w.violate("I4", "the restore through %s continued the history %v: %v", s, before, restored.Epoch)
	}
	w.rec.Note("the backup of revision %d is restored through %s: %d, %v", snap.Revision, s, restored.Revision, err)
	w.rec.Return(record, func(op *history.Op) {
		switch {
		case err == nil:
			op.Outcome, op.Revision = history.Done, restored.Revision
		case errors.Is(err, consensus.ErrUnknownOutcome):
			op.Err = err.Error()
		default:
			op.Outcome, op.Err = history.Refused, err.Error()
		}
	})
}
