package raftlog

import (
	"errors"
	"io/fs"
	"runtime"
	"syscall"
	"time"
)

// Attach gives the log its host, before raft runs. stalled is called on a
// goroutine of its own each time that no write has ended for limit.
func (s *Log) Attach(host Host, limit time.Duration, stalled func(since time.Duration)) {
	s.host, s.stall.limit, s.stall.stalled = host, limit, stalled
}

// Running says that raft runs: from now on a failure ends the process.
func (s *Log) Running() { s.running.Store(true) }

// Path names the log, for messages.
func (s *Log) Path() string { return s.path }

// Stuck returns for how long no write has ended that should have by now, 0 when
// none is overdue.
func (s *Log) Stuck() time.Duration { return s.stall.stuck() }

// Slowest returns the longest that a small write has taken since the last call.
func (s *Log) Slowest() time.Duration { return s.stall.takeSlowest() }

// failed deals with a write that may or may not be on disk, and with a read that
// does not return what was written. Before raft runs it returns err, for Open to
// return. After that it tells the host, which ends the process, and does not
// return: nothing may be decided on storage in this state. Only if the node is
// closed while the process ends does it return err.
func (s *Log) failed(err error) error {
	_ = s.report(err)
	if s.running.Load() {
		<-s.host.Closing()
	}
	return err
}

// report is failed for a snapshot that cannot be read, which raft takes as an
// error: it neither sends the snapshot nor restores from it.
func (s *Log) report(err error) error {
	s.mu.Lock()
	if s.failure == nil {
		s.failure = err
	}
	s.mu.Unlock()
	if s.running.Load() && !s.closing() {
		s.host.StorageFailed(err)
	}
	return err
}

// closing reports whether the node that owns the log is being closed.
func (s *Log) closing() bool {
	select {
	case <-s.host.Closing():
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
func (s *Log) neverReturn(err error) error {
	if s.running.Load() {
		s.host.ShutDownRaft()
		runtime.Goexit()
	}
	return err
}

// Failure returns the first failure, nil while there is none.
func (s *Log) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// isNoSpace says that a write failed for lack of space before it changed
// anything: bbolt writes the pages of a transaction to places not in use, and
// then the one that makes them count. A sync that fails is another matter: what
// it was to keep may be lost, whatever the error says.
func isNoSpace(err error) bool {
	var op *fs.PathError
	return errors.As(err, &op) && (op.Op == "write" || op.Op == "truncate") && lacksSpace(err)
}

// lacksSpace says that something failed for lack of space.
func lacksSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isShortage says that something failed for want of what the process may use,
// which says nothing about the disk.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}
