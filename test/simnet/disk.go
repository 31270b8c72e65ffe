package simnet

import (
	"encoding/json"
	"sync"
)

// diskSize is what a Disk says it holds.
const diskSize = 1 << 40

// Disk is a disk in memory that outlives the nodes that use it, one after another,
// each through a Mount. What was synced is told apart from what was only written:
// Crash drops the latter. It keeps what it is given as bytes, without a checksum
// of its own, and returns them as they are.
//
// It works inside testing/synctest: whatever waits, waits on a channel.
type Disk struct {
	Faults
	name string

	// mu guards what follows. It is never held while anything waits.
	mu sync.Mutex
	// session is that of the Mount that has the disk, nil while none has.
	session *session
	// lossy says that syncs are not done, only reported.
	lossy bool
	// unsynced undo what a crash loses, the newest last.
	unsynced []func()

	// largest is the size of the largest write to the log.
	largest int

	identity  []byte
	records   []record
	values    map[string][]byte
	snapshots []*snapshot // newest first
	nextID    int
}

// session is one node's use of the disk.
type session struct {
	crashed chan struct{}
	// writer holds a token while the log is not being written to.
	writer chan struct{}
}

// NewDisk returns an empty disk. Its name appears in messages.
func NewDisk(name string) *Disk {
	return &Disk{name: name, values: map[string][]byte{}}
}

// Crash ends the use of the disk by the node that has it, as when its machine
// loses power: what was not synced is gone, and whatever that node still does
// with the disk fails with ErrCrashed and has no effect. What hangs, ends so too.
// The node must be cut off from its peers first, for it is not told, and closed
// afterwards. Another may open the disk at once.
func (d *Disk) Crash() { d.crash(false) }

// CrashTorn is Crash, except that a write to the log which was under way is there
// in part: the first half of its entries, the last of them cut in the middle.
func (d *Disk) CrashTorn() { d.crash(true) }

func (d *Disk) crash(torn bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != nil {
		close(d.session.crashed)
		d.session = nil
	}
	last := len(d.records)
	for i := len(d.unsynced) - 1; i >= 0; i-- {
		var half []record
		if torn && i == len(d.unsynced)-1 {
			half = d.records[:last:last]
		}
		d.unsynced[i]()
		if added := len(half) - len(d.records); added > 0 {
			half = half[:len(d.records)+(added+1)/2]
			tail := &half[len(half)-1]
			*tail = record{index: tail.index, data: tail.data[:len(tail.data)/2]}
			d.records = half
		}
	}
	d.unsynced = nil
}

// Lossy lets the disk report syncs that it does not do: a crash then loses every
// write since. It is what a volatile cache that ignores flushes does, which no
// protocol survives on a majority.
func (d *Disk) Lossy(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lossy = on
}

// Name is the disk's name.
func (d *Disk) Name() string { return d.name }

// change alters the disk, if the session has not crashed.
func (d *Disk) change(s *session, alter func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-s.crashed:
		return ErrCrashed
	default:
		alter()
		return nil
	}
}

// The rest damages a disk at rest: what is stored changes, and nothing is told.
// Each says whether there was anything to damage.

// FlipIdentity flips a bit of the identity, counted from its beginning, or from
// its end when negative, and wrapped round.
func (d *Disk) FlipIdentity(bit int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return flip(&d.identity, bit)
}

// FlipEntry flips a bit of a log entry.
func (d *Disk) FlipEntry(index uint64, bit int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.records {
		if d.records[i].index == index {
			return flip(&d.records[i].data, bit)
		}
	}
	return false
}

// FlipValue flips a bit of the term ("CurrentTerm") or the vote ("LastVoteTerm",
// "LastVoteCand").
func (d *Disk) FlipValue(key string, bit int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	value := d.values[key]
	ok := flip(&value, bit)
	if ok {
		d.values[key] = value
	}
	return ok
}

// FlipSnapshot flips a bit of a snapshot; 0 is the newest.
func (d *Disk) FlipSnapshot(n, bit int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return n < len(d.snapshots) && flip(&d.snapshots[n].data, bit)
}

// FlipSnapshotMeta flips a bit of what is written about a snapshot: its index,
// its term and the members.
func (d *Disk) FlipSnapshotMeta(n, bit int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return n < len(d.snapshots) && flip(&d.snapshots[n].meta, bit)
}

// TruncateSnapshot leaves the first part of a snapshot.
func (d *Disk) TruncateSnapshot(n, keep int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n >= len(d.snapshots) || keep >= len(d.snapshots[n].data) {
		return false
	}
	s := *d.snapshots[n]
	s.data = s.data[:keep:keep]
	d.snapshots[n] = &s
	return true
}

// DropEntries removes entries from the middle of the log, or from its end.
func (d *Disk) DropEntries(first, last uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := len(d.records)
	d.records = without(d.records, first, last)
	return len(d.records) < before
}

// DropValue removes a value.
func (d *Disk) DropValue(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.values[key]
	delete(d.values, key)
	return ok
}

// Entries returns the first and the last index of the log, zeros when it is
// empty.
func (d *Disk) Entries() (first, last uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.records) == 0 {
		return 0, 0
	}
	return d.records[0].index, d.records[len(d.records)-1].index
}

// Snapshots returns the number of snapshots.
func (d *Disk) Snapshots() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.snapshots)
}

// Snapshot names the newest snapshot, "" when there is none. Each has a name of
// its own.
func (d *Disk) Snapshot() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.snapshots) == 0 {
		return ""
	}
	return d.snapshots[0].id
}

// LargestWrite is the size of the largest write to the log so far, in bytes.
func (d *Disk) LargestWrite() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.largest
}

// NodeName returns the name of the server that the disk belongs to, "" while it
// is new.
func (d *Disk) NodeName() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var id struct {
		NodeID string `json:"nodeId"`
	}
	if json.Unmarshal(d.identity, &id) != nil {
		return ""
	}
	return id.NodeID
}

// flip replaces the bytes, which may have been handed out, by a copy with one
// bit changed.
func flip(data *[]byte, bit int) bool {
	if len(*data) == 0 {
		return false
	}
	changed := append([]byte(nil), *data...)
	at := bit % (8 * len(changed))
	if at < 0 {
		at += 8 * len(changed)
	}
	changed[at/8] ^= 1 << (at % 8)
	*data = changed
	return true
}
