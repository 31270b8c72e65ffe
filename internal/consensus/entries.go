package consensus

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/resource"
	"meridian/internal/store"
)

const (
	// maxShared and maxSharedBytes bound what shares one entry, by the number of batches
	// and their size in bytes. A batch that is larger has an entry of its own.
	maxShared      = 256
	maxSharedBytes = 256 << 10
)

// entries writes batches to the log of the leader. Those that wait at the same time share
// an entry, where each of them allows it and they write different resources: it is one
// message to each follower, one sync of each log and one step of each store. Nothing
// waits in order to share: a batch that comes alone is written at once.
type entries struct {
	*core
	formats *formats
	queue   portions[*queued]
	pace    pace
}

func newEntries(c *core, f *formats) *entries {
	e := &entries{core: c, formats: f}
	atOnce := func() int { return e.pace.atOnce(c.cfg.WritesAtOnce) }
	e.queue = portions[*queued]{atOnce: atOnce, size: func(w *queued) int { return len(w.command) }, serve: e.writeAll, run: e.requests.Go}
	return e
}

// queued is a batch that is to be written.
type queued struct {
	command, note []byte
	scope         store.Scope
	// answer is called once, when it is known what became of it.
	answer func(answer)
}

// answer is what became of a batch.
type answer struct {
	result store.Result
	index  uint64
	err    error
}

// write writes a batch and returns before that is done.
func (e *entries) write(w *queued) {
	if !w.scope.Shareable || len(w.command) > maxSharedBytes || !e.formats.permits(store.FormatOfShared) {
		e.requests.Go(func() { e.commit([]*queued{w}) })
		return
	}
	e.queue.add(w)
}

// writeAll writes batches, as few entries as there can be. Several are written at the
// same time, for which raft syncs its log once.
func (e *entries) writeAll(batches []*queued) {
	all := byEntry(batches)
	var others sync.WaitGroup
	for _, batches := range all[1:] {
		others.Go(func() { e.commit(batches) })
	}
	e.commit(all[0])
	others.Wait()
}

// byEntry arranges batches by the entries that they share. Batches of one resource
// are in different ones.
func byEntry(batches []*queued) [][]*queued {
	var all [][]*queued
	next := map[resource.Key]int{} // the first entry that does not write a resource, nor any after it
	for _, w := range batches {
		entry := 0
		for _, key := range w.scope.Keys {
			entry = max(entry, next[key])
		}
		for _, key := range w.scope.Keys {
			next[key] = entry + 1
		}
		if entry == len(all) {
			all = append(all, nil)
		}
		all[entry] = append(all[entry], w)
	}
	return all
}

// commit writes one entry and answers its batches.
func (e *entries) commit(batches []*queued) {
	began := time.Now()
	results, index, err := e.writeEntry(batches)
	if err == nil {
		e.pace.took(time.Since(began))
		e.transferring.accepted()
	}
	for i, w := range batches {
		a := answer{index: index, err: err}
		if err == nil {
			a.result, a.err = results[i], results[i].Err
		}
		w.answer(a)
	}
}

// writeEntry writes one entry and returns what the state machine made of each batch.
func (e *entries) writeEntry(batches []*queued) (results []store.Result, index uint64, err error) {
	entry := raft.Log{Data: batches[0].command, Extensions: batches[0].note}
	if len(batches) > 1 {
		commands, notes := make([][]byte, len(batches)), make([][]byte, len(batches))
		for i, w := range batches {
			commands[i], notes[i] = w.command, w.note
		}
		joined, err := store.CombineCommands(e.cfg.Clock(), commands, notes)
		if err != nil {
			return nil, 0, err
		}
		entry = raft.Log{Data: joined}
	}
	future := e.raft.ApplyLog(entry, e.cfg.ApplyTimeout)
	if err := future.Error(); err != nil {
		return nil, 0, e.proposeError(err)
	}
	response := future.Response()
	if err, halted := response.(error); halted {
		return nil, 0, unknownOutcome(err)
	}
	result, _ := response.(store.Result)
	if len(batches) == 1 {
		return []store.Result{result}, future.Index(), nil
	}
	return result.Batches, future.Index(), nil
}
