package simnet

import (
	"fmt"

	"github.com/hashicorp/go-hclog"

	"meridian/internal/raftlog"
)

// Mount is a Disk as one node uses it: a raftlog.Storage. After a crash another
// Mount may have the disk, and what the node of this one still does, to the release
// when it is closed, does not concern it.
type Mount struct {
	*Disk
	session *session
}

var _ raftlog.Storage = (*Mount)(nil)

// Mount returns a way to the disk, for one node.
func (d *Disk) Mount() *Mount {
	ended := &session{crashed: make(chan struct{}), writer: make(chan struct{}, 1)}
	close(ended.crashed)
	return &Mount{Disk: d, session: ended}
}

// Acquire takes the disk for the node.
func (m *Mount) Acquire() error {
	d := m.Disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != nil {
		return fmt.Errorf("%w: %s", raftlog.ErrDataDirInUse, d.name)
	}
	m.session = &session{crashed: make(chan struct{}), writer: make(chan struct{}, 1)}
	m.session.writer <- struct{}{}
	d.session = m.session
	return nil
}

// Release lets another node have the disk, unless one has it already. It does not
// discard: a start that failed may be repeated on what it left.
func (m *Mount) Release(bool) {
	m.Disk.mu.Lock()
	defer m.Disk.mu.Unlock()
	if m.Disk.session == m.session {
		m.Disk.session = nil
	}
}

// Identity returns what SetIdentity stored.
func (m *Mount) Identity() ([]byte, error) {
	d := m.Disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.identity == nil && len(d.records) > 0 {
		return nil, fmt.Errorf("%w: %s holds a log but no identity", raftlog.ErrForeignDataDir, d.name)
	}
	return append([]byte(nil), d.identity...), nil
}

// SetIdentity replaces the identity.
func (m *Mount) SetIdentity(data []byte) error {
	if err := m.before(WriteIdentity, len(data), m.session.crashed); err != nil {
		return err
	}
	return m.change(m.session, func() {
		m.identity = append([]byte(nil), data...)
	})
}

// OpenLog opens the log, which has no journal.
func (m *Mount) OpenLog(verify func(raftlog.LogFile) error, _ raftlog.JournalMark) (raftlog.LogFile, error) {
	log := &diskLog{disk: m.Disk, session: m.session}
	if err := verify(log); err != nil {
		return nil, err
	}
	return log, nil
}

// RemoveLog removes the log and the values beside it.
func (m *Mount) RemoveLog() error {
	return m.change(m.session, func() { m.records, m.values = nil, map[string][]byte{} })
}

// OpenSnapshots opens the snapshots.
func (m *Mount) OpenSnapshots(retain int, _ hclog.Logger) (raftlog.SnapshotFiles, error) {
	return &diskSnapshots{disk: m.Disk, session: m.session, retain: retain}, nil
}

// Space returns what SetFree and Full left.
func (m *Mount) Space() (raftlog.Space, error) {
	return raftlog.Space{Free: m.space(diskSize), Total: diskSize}, nil
}
