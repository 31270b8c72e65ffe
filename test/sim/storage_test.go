package sim

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"

	zonesync "meridian/internal/sync"
)

// replicaStorage is the disk of a zone's replica, in memory. It outlives the zone's
// processes; each of them has a session, which ends with a crash.
type replicaStorage struct {
	mu      sync.Mutex
	entries map[string]zonesync.Entry
	session *storageSession
	full    bool
	// unsynced makes writes fail after they are visible. durable, unless nil, is
	// what a crash leaves: the entries before the first such write.
	unsynced bool
	durable  map[string]zonesync.Entry
	// hung is closed when writes may continue.
	hung chan struct{}
	// written, unless nil, is called after the next write, which does not return.
	written func()
}

// storageSession is one process's use of a replicaStorage.
type storageSession struct {
	m    *replicaStorage
	gone chan struct{}
}

var errPowerLost = errors.New("the machine lost power")

func newStorage() *replicaStorage { return &replicaStorage{entries: map[string]zonesync.Entry{}} }

// open begins a session; the one before has ended.
func (m *replicaStorage) open() *storageSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = &storageSession{m: m, gone: make(chan struct{})}
	return m.session
}

// crash ends the session: whatever it still does fails and has no effect.
func (m *replicaStorage) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session != nil {
		close(m.session.gone)
		m.session = nil
	}
	if m.durable != nil {
		m.entries, m.durable = m.durable, nil
	}
	m.written = nil
}

// crashAfterWrite calls f once a write is durable that the process is not told
// of: between persisting and acknowledging.
func (m *replicaStorage) crashAfterWrite(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written = f
}

func (m *replicaStorage) setFull(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = full
}

// setUnsynced makes writes fail when they are synced, or ends that.
func (m *replicaStorage) setUnsynced(unsynced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsynced = unsynced
}

func (m *replicaStorage) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hung == nil {
		m.hung = make(chan struct{})
	}
}

func (m *replicaStorage) resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hung != nil {
		close(m.hung)
		m.hung = nil
	}
}

// flip damages an entry at rest. It reports whether there was one.
func (m *replicaStorage) flip(n, bit int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.entries) == 0 {
		return false
	}
	at := slices.Sorted(maps.Keys(m.entries))[n%len(m.entries)]
	e := m.entries[at]
	e.Value = slices.Clone(e.Value)
	bit %= 8 * len(e.Value)
	e.Value[bit/8] ^= 1 << (bit % 8)
	m.entries[at] = e
	return true
}

func (s *storageSession) Write(entries []zonesync.Entry) error {
	m := s.m
	m.mu.Lock()
	hung := m.hung
	m.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-s.gone:
			return errPowerLost
		}
	}
	m.mu.Lock()
	if m.session != s {
		m.mu.Unlock()
		return errPowerLost
	}
	if m.full {
		m.mu.Unlock()
		return syscall.ENOSPC
	}
	if m.unsynced && m.durable == nil {
		m.durable = maps.Clone(m.entries)
	}
	for _, e := range entries {
		at := e.Bucket + "\x00" + string(e.Key)
		if e.Value == nil {
			delete(m.entries, at)
		} else {
			m.entries[at] = e
		}
	}
	if m.unsynced {
		m.mu.Unlock()
		return syscall.EIO
	}
	m.durable = nil
	written := m.written
	m.written = nil
	m.mu.Unlock()
	if written != nil {
		written()
		<-s.gone
		return errPowerLost
	}
	return nil
}

func (s *storageSession) Read(visit func(bucket string, key, value []byte)) error {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session != s {
		return errPowerLost
	}
	for _, e := range m.entries {
		visit(e.Bucket, e.Key, e.Value)
	}
	return nil
}

func (s *storageSession) Close() error { return nil }
