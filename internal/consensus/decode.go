package consensus

import (
	"sync"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
	"meridian/internal/store"
)

const (
	// decodeBytes bounds the entries that are decoded while the log writes them, in
	// bytes: those of one write, and those that wait to be applied.
	decodeBytes = 1 << 20
	// decodeEntries bounds how many wait to be applied.
	decodeEntries = 1024
)

// decodingLog is the log as raft writes to it: entries are decoded while they are
// written, which leaves a processor idle, and not when they are to be applied, for
// which the caller waits.
type decodingLog struct {
	*raftlog.Log
	decoder *decoder
}

var _ raft.MonotonicLogStore = decodingLog{}

// StoreLog implements raft.LogStore.
func (l decodingLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l decodingLog) StoreLogs(entries []*raft.Log) error {
	l.decoder.begin(entries)
	return l.Log.StoreLogs(entries)
}

// decoder decodes entries before they are applied. What it knows of one is used only
// for the same bytes: an entry that it has not seen, or of which another server's took
// the place, is decoded when it is applied, by the same function.
type decoder struct {
	working sync.WaitGroup

	mu sync.Mutex // guards all below
	// waiting are entries that were not applied yet, in the order of the log.
	waiting []decoded
	bytes   int
	// applied is the last entry that was asked for, ahead how many were known by then.
	applied, ahead uint64
}

// decoded is an entry with what its data says.
type decoded struct {
	index uint64
	data  []byte
	txn   store.Txn
}

// begin has entries decoded, unless there are too many.
func (d *decoder) begin(entries []*raft.Log) {
	var commands []decoded
	bytes := 0
	for _, e := range entries {
		if e.Type == raft.LogCommand && len(e.Data) > 0 {
			commands = append(commands, decoded{index: e.Index, data: e.Data})
			bytes += len(e.Data)
		}
	}
	if len(commands) > 0 && bytes <= decodeBytes {
		d.working.Go(func() { d.decode(commands) })
	}
}

func (d *decoder) decode(entries []decoded) {
	for _, e := range entries {
		if !d.wanted(e) {
			continue
		}
		var err error
		if e.txn, err = store.DecodeCommand(e.data); err != nil {
			return // the state machine says so when it is to apply it
		}
		d.add(e)
	}
}

// wanted reports whether there is a use, and space, for an entry.
func (d *decoder) wanted(e decoded) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.index > d.applied && len(d.waiting) < decodeEntries && d.bytes+len(e.data) <= decodeBytes
}

func (d *decoder) add(e decoded) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.index <= d.applied {
		return
	}
	// What stands there was cut off the end of the log, and is written over.
	for n := len(d.waiting); n > 0 && d.waiting[n-1].index >= e.index; n-- {
		d.bytes -= len(d.waiting[n-1].data)
		d.waiting = d.waiting[:n-1]
	}
	d.waiting = append(d.waiting, e)
	d.bytes += len(e.data)
}

// take returns what an entry says that is to be applied, and forgets it with those
// before it; false where that is not known.
func (d *decoder) take(entry *raft.Log) (txn store.Txn, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applied = max(d.applied, entry.Index)
	n := 0
	for ; n < len(d.waiting) && d.waiting[n].index <= entry.Index; n++ {
		if e := d.waiting[n]; e.index == entry.Index && same(e.data, entry.Data) {
			txn, ok = e.txn, true
			d.ahead++
		}
		d.bytes -= len(d.waiting[n].data)
		d.waiting[n] = decoded{}
	}
	if d.waiting = d.waiting[n:]; len(d.waiting) == 0 {
		d.waiting = nil
	}
	return txn, ok
}

// same reports whether two slices are the same bytes in memory.
func same(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// txn returns what an entry says. A nil decoder has decoded nothing.
func (d *decoder) txn(entry *raft.Log) (store.Txn, error) {
	if d != nil {
		if txn, ok := d.take(entry); ok {
			return txn, nil
		}
	}
	return store.DecodeCommand(entry.Data)
}

// end waits for what is being decoded.
func (d *decoder) end() { d.working.Wait() }
