package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"syscall"
)

// failed deals with a write that may or may not be on disk, and with a read that
// does not return what was written. Before raft runs it returns err, for Open to
// return. After that it tells the host, which ends the process, and does not
// return: nothing may be decided on storage in this state. Only if the node is
// closed while the process ends does it return err.
func (s *logStore) failed(err error) error {
	_ = s.report(err)
	if s.running.Load() {
		<-s.host.closing()
	}
	return err
}

// report is failed for a snapshot that cannot be read, which raft takes as an
// error: it neither sends the snapshot nor restores from it.
func (s *logStore) report(err error) error {
	s.mu.Lock()
	if s.failure == nil {
		s.failure = err
	}
	s.mu.Unlock()
	if s.running.Load() && !s.closing() {
		s.host.storageFailed(err)
	}
	return err
}

func (s *logStore) closing() bool {
	select {
	case <-s.host.closing():
		return true
	default:
		return false
	}
}

// neverReturn ends the calling goroutine, which is one of raft's, in place of an
// error that raft v1.7.3 answers with a panic: a term that cannot be saved
// (setCurrentTerm), a committed entry that cannot be read (processLogs). It is
// reached after failed only, when the node is closed. Before raft runs it returns
// err.
func (s *logStore) neverReturn(err error) error {
	if s.running.Load() {
		s.host.shutDownRaft()
		runtime.Goexit()
	}
	return err
}

// failureSoFar returns the first failure, nil while there is none.
func (s *logStore) failureSoFar() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// isNoSpace says that a write failed for want of room before it changed
// anything: bbolt writes the pages of a transaction to places not in use, and
// then the one that makes them count. A sync that fails is another matter: what
// it was to keep may be lost, whatever the error says.
func isNoSpace(err error) bool {
	var op *fs.PathError
	return errors.As(err, &op) && (op.Op == "write" || op.Op == "truncate") &&
		(errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

// isShortage says that something failed for want of what the process may use,
// which says nothing about the disk.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// repair says how a server comes back whose storage is damaged: alone in its
// cluster, beside others, or, while it starts, unknown.
func repair(cfg Config, where string, others, known bool) string {
	if cfg.Role == RoleZone {
		return fmt.Sprintf("to bring it back: put a backup of %s in its place", where)
	}
	const (
		restore = "start it with an empty one and run \"meridian cluster snapshot restore FILE\" with the last saved snapshot"
		rejoin  = "run \"meridian generate server-token --valid-for 1h --bundle\" against another server and start this one with an empty one and --join-bundle FILE"
	)
	switch {
	case !known:
		return fmt.Sprintf("to bring it back, move %s away; if there are other servers, %s; if not, %s", where, rejoin, restore)
	case others:
		return fmt.Sprintf("to bring it back, move %s away, %s", where, rejoin)
	default:
		return fmt.Sprintf("to bring it back, move %s away, %s", where, restore)
	}
}
