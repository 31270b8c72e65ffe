package simnet

import (
	"errors"
	"io/fs"
	"sync"
	"syscall"
	"time"
)

// Op is what a node does with its disk; values combine.
type Op uint16

// What a node does with its disk.
const (
	// WriteLog appends to the log or cuts it.
	WriteLog Op = 1 << iota
	// SyncLog is the end of WriteLog and WriteValue: what was written is visible,
	// and lost in a crash. Only a Disk tells it from the writing.
	SyncLog
	// WriteValue writes the term or a vote.
	WriteValue
	// WriteSnapshot writes a part of a snapshot.
	WriteSnapshot
	// WriteIdentity writes whose disk this is.
	WriteIdentity
	// ReadLog reads an entry.
	ReadLog
	// ReadValue reads the term or a vote.
	ReadValue
	// ReadSnapshot opens a snapshot or reads a part of it.
	ReadSnapshot

	// Writes are all that change the disk, Reads all others.
	Writes = WriteLog | SyncLog | WriteValue | WriteSnapshot | WriteIdentity
	Reads  = ReadLog | ReadValue | ReadSnapshot
)

// ErrCrashed is what an operation ends with that a crash interrupted, and every
// later one of the node that crashed.
var ErrCrashed = errors.New("the machine crashed")

// EIO is what a disk that cannot read or write returns.
func EIO(op string) error { return &fs.PathError{Op: op, Path: "disk", Err: syscall.EIO} }

// Faults are what goes wrong with a disk. The zero value is a good disk with
// unlimited space. Methods may be called from any goroutine, at any time.
type Faults struct {
	// mu is never held while anything waits, so that the wait counts as one for
	// testing/synctest.
	mu sync.Mutex
	// hung are the operations that wait until resumed is closed.
	hung    Op
	resumed chan struct{}
	// failing is what the operations in failOps return, failTimes more times;
	// always when that is negative.
	failing   error
	failOps   Op
	failTimes int
	// limited says that free bytes are left.
	limited bool
	free    uint64
	// slow is how long each operation in slowOps takes.
	slow    time.Duration
	slowOps Op
}

// Hang lets operations begin and not end until Resume, or until the disk crashes.
func (f *Faults) Hang(ops Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hung = ops
	if f.resumed == nil {
		f.resumed = make(chan struct{})
	}
}

// Resume ends all hangs.
func (f *Faults) Resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hung = 0
	if f.resumed != nil {
		close(f.resumed)
		f.resumed = nil
	}
}

// Fail lets operations fail, with no effect on the disk: the next so many, or
// all from now on when times is negative. A nil error ends it.
func (f *Faults) Fail(err error, times int, ops Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing, f.failTimes, f.failOps = err, times, ops
}

// Slow lets each operation take so long; 0 ends it.
func (f *Faults) Slow(each time.Duration, ops Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow, f.slowOps = each, ops
}

// Full fills the disk, or gives it unlimited space. Every write to a full
// disk fails, small ones too.
func (f *Faults) Full(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limited, f.free = full, 0
}

// SetFree leaves so many bytes, which writes use up.
func (f *Faults) SetFree(bytes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limited, f.free = true, bytes
}

// before is called before each operation that writes so many bytes. It waits
// while the operation hangs, and returns what it fails with.
func (f *Faults) before(op Op, bytes int, crashed <-chan struct{}) error {
	if err := f.wait(op, crashed); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing != nil && f.failOps&op != 0 && f.failTimes != 0 {
		f.failTimes--
		return f.failing
	}
	if f.limited && op&Writes != 0 && op != SyncLog {
		if f.free == 0 || f.free < uint64(bytes) {
			return &fs.PathError{Op: "write", Path: "disk", Err: syscall.ENOSPC}
		}
		f.free -= uint64(bytes)
	}
	return nil
}

func (f *Faults) wait(op Op, crashed <-chan struct{}) error {
	for {
		f.mu.Lock()
		var slow time.Duration
		if f.slowOps&op != 0 {
			slow = f.slow
		}
		resumed := f.resumed
		if f.hung&op == 0 {
			resumed = nil
		}
		f.mu.Unlock()
		switch {
		case resumed != nil:
			select {
			case <-resumed:
				continue
			case <-crashed:
				return ErrCrashed
			}
		case slow > 0:
			timer := time.NewTimer(slow)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-crashed:
				return ErrCrashed
			}
		}
		select {
		case <-crashed:
			return ErrCrashed
		default:
			return nil
		}
	}
}

// space returns how many bytes are left, of how many.
func (f *Faults) space(total uint64) (free uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limited {
		return min(f.free, total)
	}
	return total
}
