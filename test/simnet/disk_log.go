package simnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

// record is an entry as bytes.
type record struct {
	index uint64
	data  []byte
}

// diskLog is a node's way to the log of a Disk. One writer at a time, as in a
// file; readers do not wait.
type diskLog struct {
	disk    *Disk
	session *session
}

var _ raftlog.LogFile = (*diskLog)(nil)

// Name says which disk it is on.
func (l *diskLog) Name() string { return l.disk.name + "/log" }

// Flush does nothing: there is no journal.
func (l *diskLog) Flush() error { return nil }

// Close does nothing: what was written is there.
func (l *diskLog) Close() error { return nil }

// FirstIndex returns the index of the first entry, 0 when there is none.
func (l *diskLog) FirstIndex() (uint64, error) {
	first, _ := l.disk.Entries()
	return first, nil
}

// LastIndex returns the index of the last entry, 0 when there is none.
func (l *diskLog) LastIndex() (uint64, error) {
	_, last := l.disk.Entries()
	return last, nil
}

// GetLog reads an entry.
func (l *diskLog) GetLog(index uint64, log *raft.Log) error {
	if err := l.disk.before(ReadLog, 0, l.session.crashed); err != nil {
		return err
	}
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	at := find(l.disk.records, index)
	if at == len(l.disk.records) || l.disk.records[at].index != index {
		return raft.ErrLogNotFound
	}
	return decodeRecord(l.disk.records[at].data, log)
}

// WriteLogs writes entries, replacing those that have the same index.
func (l *diskLog) WriteLogs(logs []*raft.Log) (sync func() error, err error) {
	added := make([]record, len(logs))
	size := 0
	for i, log := range logs {
		added[i] = record{index: log.Index, data: encodeRecord(log)}
		size += len(added[i].data)
	}
	return l.begin(WriteLog, size, func() (undo func()) {
		before := l.disk.records
		l.disk.records = with(before, added)
		return func() { l.disk.records = before }
	})
}

// DeleteRange removes entries.
func (l *diskLog) DeleteRange(first, last uint64) error {
	return l.write(WriteLog, 1, func() (undo func()) {
		before := l.disk.records
		l.disk.records = without(before, first, last)
		return func() { l.disk.records = before }
	})
}

// Set writes a value.
func (l *diskLog) Set(key, value []byte) error {
	return l.write(WriteValue, len(key)+len(value), func() (undo func()) {
		before, existed := l.disk.values[string(key)]
		l.disk.values[string(key)] = append([]byte(nil), value...)
		return func() {
			if existed {
				l.disk.values[string(key)] = before
			} else {
				delete(l.disk.values, string(key))
			}
		}
	})
}

// Get reads a value.
func (l *diskLog) Get(key []byte) ([]byte, error) {
	if err := l.disk.before(ReadValue, 0, l.session.crashed); err != nil {
		return nil, err
	}
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	value, ok := l.disk.values[string(key)]
	if !ok {
		return nil, errors.New("not found") // raft compares the text
	}
	return append([]byte(nil), value...), nil
}

// write waits for its turn, writes, and syncs.
func (l *diskLog) write(op Op, size int, alter func() (undo func())) error {
	sync, err := l.begin(op, size, alter)
	if err != nil {
		return err
	}
	return sync()
}

// begin waits for its turn and writes. It is the next writer's turn after the sync.
func (l *diskLog) begin(op Op, size int, alter func() (undo func())) (sync func() error, err error) {
	select {
	case <-l.session.writer:
	case <-l.session.crashed:
		return nil, ErrCrashed
	}
	end := func() { l.session.writer <- struct{}{} }
	d := l.disk
	err = d.before(op, size, l.session.crashed)
	if err == nil {
		err = d.change(l.session, func() { d.unsynced, d.largest = append(d.unsynced, alter()), max(d.largest, size) })
	}
	if err != nil {
		end()
		return nil, err
	}
	return func() error {
		defer end()
		if err := d.before(SyncLog, 0, l.session.crashed); err != nil {
			return fmt.Errorf("fdatasync: %w", err)
		}
		return d.change(l.session, func() {
			if !d.lossy {
				d.unsynced = nil
			}
		})
	}, nil
}

// find returns where an index is or would be.
func find(records []record, index uint64) int {
	return sort.Search(len(records), func(i int) bool { return records[i].index >= index })
}

// with returns the records with others added, in the place of any with the same
// index. What it appends to stays as it is.
func with(records, added []record) []record {
	if len(added) == 0 {
		return records
	}
	at := find(records, added[0].index)
	if at == len(records) {
		return append(records, added...)
	}
	kept := without(records, added[0].index, added[len(added)-1].index)
	return append(append(kept[:at:at], added...), kept[at:]...)
}

// without returns the records but those from first to last. It does not alter
// its input, which a crash may return to.
func without(records []record, first, last uint64) []record {
	from, to := find(records, first), find(records, last+1)
	switch {
	case from >= to:
		return records
	case to == len(records):
		return records[:from:from]
	case from == 0:
		return records[to:]
	}
	return append(records[:from:from], records[to:]...)
}

func encodeRecord(log *raft.Log) []byte {
	b := binary.BigEndian.AppendUint64(nil, log.Index)
	b = binary.BigEndian.AppendUint64(b, log.Term)
	b = append(b, byte(log.Type))
	b = binary.BigEndian.AppendUint32(b, uint32(len(log.Data)))
	b = append(b, log.Data...)
	return append(b, log.Extensions...)
}

func decodeRecord(b []byte, log *raft.Log) error {
	const head = 21
	if len(b) < head || uint64(len(b)-head) < uint64(binary.BigEndian.Uint32(b[17:])) {
		return fmt.Errorf("an entry of %d bytes is cut short", len(b))
	}
	size := int(binary.BigEndian.Uint32(b[17:]))
	rest := append([]byte(nil), b[head:]...)
	*log = raft.Log{
		Index: binary.BigEndian.Uint64(b), Term: binary.BigEndian.Uint64(b[8:]), Type: raft.LogType(b[16]),
		Data: rest[:size:size], Extensions: rest[size:],
	}
	return nil
}
