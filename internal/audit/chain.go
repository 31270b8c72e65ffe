package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"meridian/internal/atomicfile"
)

// chain is one sequence of records, each of which holds the hash of the one before,
// in files of its own. It is safe for concurrent use.
type chain struct {
	// name is in the records; base begins the names of the files.
	name, base string
	dir        string
	maxBytes   int64
	maxFiles   int
	now        func() time.Time
	log        *slog.Logger
	checkpoint *checkpoint
	// sent receives every line that was written, unless nil. It does not block.
	sent func(r Record, line []byte)

	mu   sync.Mutex // guards all below
	file *recordFile
	size int64
	// unsynced is what was written to the file since its last sync: its end.
	unsynced []byte
	first    uint64 // of the current file; 0 when it is empty
	head     Mark   // the last record written
	synced   uint64 // the last record known to be on disk
	failure  error  // of the last write or sync
	// unwritten are records that could not be written, oldest first, and lost counts
	// those that were too many for it.
	unwritten []Record
	lost      uint64
	noted     bool // that there are such records

	syncing sync.Mutex // held by the one caller of durable that syncs

	// shown is what Head and Err return, as of the end of the last write or sync:
	// they do not wait for a disk that hangs.
	shown struct {
		sync.Mutex
		head    Mark
		failure error
	}
}

// maxUnwritten is how many records are kept until they can be written.
const maxUnwritten = 4096

// maxUnsynced is how many bytes are kept until they are on disk.
const maxUnsynced = 4 << 20

// recordFile is a file whose sync, once it has failed, does not succeed any more:
// the kernel may have dropped what was not on disk, and reports it once.
type recordFile struct {
	*os.File
	sync func() error

	syncing sync.Mutex // guards failure, and is held while the file is synced
	failure error
}

// Sync brings the content to the disk.
func (f *recordFile) Sync() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	if f.failure == nil {
		f.failure = f.sync()
	}
	return f.failure
}

// failed returns why a sync failed, or nil.
func (f *recordFile) failed() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	return f.failure
}

func (c *chain) path(file string) string { return filepath.Join(c.dir, file) }

// current is the path of the file that is written.
func (c *chain) current() string { return c.path(c.base + fileSuffix) }

// full is the path of a full file that begins with a record.
func (c *chain) full(first uint64) string {
	return c.path(fmt.Sprintf("%s-%020d%s", c.base, first, fileSuffix))
}

// resume finds the end of the chain and opens the current file. The note says
// what was repaired.
func (c *chain) resume() (end fileEnd, note string, err error) {
	checkpoint := c.checkpoint.of(c.name)
	c.head = Mark{Hash: zeroHash}
	if err := c.removeTemporary(); err != nil {
		return fileEnd{}, "", err
	}
	// What the last run wrote and could not sync may be in the kernel's memory alone.
	if err := atomicfile.DropCache(c.current()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileEnd{}, "", err
	}
	end, err = lastRecord(c.current())
	found := end
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && end.lines == 0:
		if err := c.resumeRotated(); err != nil {
			return found, "", err
		}
	case err != nil:
		return found, "", err
	case end.bad != nil:
		aside := c.full(max(end.first, 1))
		if err := os.Rename(c.current(), aside); err != nil {
			return found, "", fmt.Errorf("set a damaged file of the audit log aside: %w", err)
		}
		c.head = checkpoint
		note = fmt.Sprintf("the last record of %s does not verify (%v): the file was set aside", filepath.Base(aside), end.bad)
		end = fileEnd{}
	default:
		c.head, c.first = end.head, end.first
	}
	if c.head.Hash == "" {
		c.head.Hash = zeroHash
	}
	if checkpoint.Seq > c.head.Seq {
		note = fmt.Sprintf("records %d to %d of %s are missing at the end", c.head.Seq+1, checkpoint.Seq, filepath.Base(c.current()))
		c.head = checkpoint
	}
	if err := c.open(end.size); err != nil {
		return found, "", err
	}
	if end.torn > 0 {
		note = fmt.Sprintf("a torn record of %d bytes was cut off", end.torn)
	}
	if c.head.First = checkpoint.First; c.head.First == 0 {
		c.head.First = c.oldest()
	}
	c.showLocked()
	return found, note, nil
}

// removeTemporary removes what a crash in replaceLocked left.
func (c *chain) removeTemporary() error {
	files, err := filepath.Glob(c.path("." + c.base + fileSuffix + ".*"))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	if err != nil {
		return fmt.Errorf("remove a temporary file of the audit log: %w", err)
	}
	return nil
}

// oldest is the first record in the files, 0 where there is none.
func (c *chain) oldest() uint64 {
	if files, err := rotated(c.dir, c.base); err == nil && len(files) > 0 {
		if first, err := firstRecord(files[0]); err == nil {
			return first
		}
	}
	return c.first
}

// resumeRotated continues after the newest full file, when the current one is
// missing or empty.
func (c *chain) resumeRotated() error {
	files, err := rotated(c.dir, c.base)
	if err != nil || len(files) == 0 {
		return err
	}
	end, err := lastRecord(files[len(files)-1])
	if err != nil {
		return err
	}
	if end.bad == nil {
		c.head = end.head
	}
	return nil
}

// open opens the file that is written, cut to size.
func (c *chain) open(size int64) error {
	f, err := os.OpenFile(c.current(), os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	if err := errors.Join(f.Chmod(filePerm), f.Truncate(size)); err != nil {
		return errors.Join(fmt.Errorf("open the audit log: %w", err), f.Close())
	}
	if _, err := f.Seek(size, io.SeekStart); err != nil {
		return errors.Join(fmt.Errorf("open the audit log: %w", err), f.Close())
	}
	if err := atomicfile.SyncDir(c.dir); err != nil {
		return errors.Join(fmt.Errorf("sync the directory of the audit log: %w", err), f.Close())
	}
	c.file, c.size = &recordFile{File: f, sync: f.Sync}, size
	return nil
}

// write appends a record, and returns its place and how long its line is. A record
// that cannot be written is kept, and written before the next one that can be.
func (c *chain) write(r Record) (seq uint64, size int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.showLocked()
	if c.failure != nil {
		c.keepLocked(r)
		return 0, 0, c.failure
	}
	size, err = c.appendLocked(r)
	if err != nil {
		c.failLocked(err)
		c.keepLocked(r)
	}
	return c.head.Seq, size, err
}

func (c *chain) keepLocked(r Record) {
	if len(c.unwritten) == maxUnwritten {
		c.lost++
		return
	}
	c.unwritten = append(c.unwritten, r)
}

// errClosed means that the log was closed.
var errClosed = errors.New("the audit log is closed")

func (c *chain) appendLocked(r Record) (size int, err error) {
	if c.file == nil {
		return 0, errClosed
	}
	r.Chain, r.Seq, r.Time, r.Prev = c.name, c.head.Seq+1, c.now().UTC(), c.head.Hash
	line, hash, err := encodeRecord(r)
	if err == nil {
		err = c.rotateLocked(int64(len(line)))
	}
	if err == nil {
		err = c.writeLocked(line)
	}
	if err != nil {
		return 0, err
	}
	if c.first == 0 {
		c.first = r.Seq
	}
	c.head.Seq, c.head.Hash, c.head.Time, c.head.First = r.Seq, hash, r.Time, max(c.head.First, 1)
	if c.sent != nil {
		c.sent(r, line)
	}
	return len(line), nil
}

// writeLocked writes a whole line or, when it cannot, leaves the file as it was.
func (c *chain) writeLocked(line []byte) error {
	n, err := c.file.Write(line)
	if err == nil {
		c.size += int64(n)
		c.unsynced = append(c.unsynced, line...)
		return nil
	}
	err = fmt.Errorf("write an audit record: %w", err)
	if n > 0 {
		_, seek := c.file.Seek(c.size, io.SeekStart)
		err = errors.Join(err, c.file.Truncate(c.size), seek)
	}
	return err
}

func (c *chain) failLocked(err error) {
	if c.failure == nil && !errors.Is(err, errClosed) {
		c.log.Error("audit records cannot be written", "file", c.current(), "error", err)
	}
	c.failure = err
}

// rotateLocked begins the next file when a line does not fit into the current
// one, and removes the oldest ones that are too many. The checkpoint names the first
// record that stays before the others are removed.
func (c *chain) rotateLocked(line int64) error {
	full := c.size > 0 && c.size+line > c.maxBytes
	if full || len(c.unsynced) >= maxUnsynced {
		if err := c.syncLocked(); err != nil {
			return err
		}
	}
	if !full {
		return nil
	}
	to := c.full(c.first)
	if err := os.Rename(c.file.Name(), to); err != nil {
		return fmt.Errorf("rotate the audit log: %w", err)
	}
	old := c.file
	if err := c.open(0); err != nil {
		// The full file is still open and still the end of the chain: go back.
		return errors.Join(err, os.Rename(to, old.Name()))
	}
	c.first = 0
	err := errors.Join(old.Close(), c.removeOldestLocked())
	if err != nil {
		c.log.Warn("old files of the audit log could not be removed", "error", err)
	}
	return nil
}

func (c *chain) removeOldestLocked() error {
	files, err := rotated(c.dir, c.base)
	if err != nil || len(files) < c.maxFiles {
		return err
	}
	remove, stay := files[:len(files)-c.maxFiles+1], files[len(files)-c.maxFiles+1:]
	c.head.First = c.head.Seq + 1
	if len(stay) > 0 {
		if c.head.First, err = firstRecord(stay[0]); err != nil {
			return err
		}
	}
	c.checkpoint.set(c.name, c.head)
	if err := c.checkpoint.save(); err != nil {
		return err
	}
	for _, file := range remove {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// syncLocked brings everything written to the disk, and into the checkpoint, which
// is for the caller to save.
func (c *chain) syncLocked() error {
	if c.file == nil || c.head.Seq == 0 {
		return nil
	}
	if c.synced == c.head.Seq {
		c.unsynced = nil // nothing was written since the last sync
	} else {
		if err := c.file.Sync(); err != nil {
			return fmt.Errorf("sync the audit log: %w", err)
		}
		// Until the next sync there is about as much again: grown from nothing, it would take
		// several times the memory.
		c.synced, c.unsynced = c.head.Seq, make([]byte, 0, len(c.unsynced))
	}
	c.checkpoint.set(c.name, c.head)
	return nil
}

// replaceLocked puts a new file in the place of one that could not be synced, with
// what was on disk and what is kept of the rest: a second sync of the same file would
// prove nothing.
func (c *chain) replaceLocked() error {
	next, err := atomicfile.Create(c.current(), filePerm)
	if err != nil {
		return fmt.Errorf("write the audit log anew after a sync that failed: %w", err)
	}
	defer next.Discard()
	_, err = io.Copy(next, io.NewSectionReader(c.file, 0, c.size-int64(len(c.unsynced))))
	if err == nil {
		_, err = next.Write(c.unsynced)
	}
	if err == nil {
		err = next.Commit()
	}
	if err != nil {
		return fmt.Errorf("write the audit log anew after a sync that failed: %w", err)
	}
	old := c.file
	if err := c.open(c.size); err != nil {
		return err
	}
	c.synced, c.unsynced = c.head.Seq, nil
	_ = old.Close() // it is not needed any more
	return nil
}

// durable returns once a record is on disk. Callers at the same time share one sync.
func (c *chain) durable(seq uint64) error {
	c.syncing.Lock()
	defer c.syncing.Unlock()
	c.mu.Lock()
	file, written, synced, size := c.file, c.head.Seq, c.synced, c.size
	c.mu.Unlock()
	switch {
	case synced >= seq:
		return nil
	case file == nil:
		return errClosed
	}
	err := file.Sync()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.showLocked()
	switch {
	case err == nil:
		// Unless others synced more meanwhile, or began another file after that.
		if c.synced < written {
			c.synced, c.unsynced = written, bytes.Clone(c.unsynced[int64(len(c.unsynced))-(c.size-size):])
		}
	case c.synced < seq: // else another sync was in time
		err = fmt.Errorf("sync the audit log: %w", err)
		c.failLocked(err)
		return err
	}
	return nil
}

// flush syncs, and after a failure writes what could not be written.
func (c *chain) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.showLocked()
	if err := c.catchUpLocked(); err != nil {
		c.failLocked(err)
		return
	}
	if err := c.syncLocked(); err != nil {
		c.failLocked(err)
	}
}

// catchUpLocked writes after a failure what could not be written before, and a note of
// that. A failure without such records was one of a sync: it is over once the file has been
// replaced.
func (c *chain) catchUpLocked() error {
	if c.failure == nil || c.file == nil {
		return nil
	}
	if c.file.failed() != nil {
		if err := c.replaceLocked(); err != nil {
			return err
		}
	}
	if !c.noted && len(c.unwritten) > 0 {
		message := fmt.Sprintf("%d records are written late: %s", len(c.unwritten), clip(c.failure.Error()))
		if c.lost > 0 {
			message = fmt.Sprintf("%d records were lost, and %s", c.lost, message)
		}
		if _, err := c.appendLocked(Record{Method: "audit/write", Who: serverItself, Decision: Noted, Message: message}); err != nil {
			return err
		}
		c.lost, c.noted = 0, true
	}
	for len(c.unwritten) > 0 {
		if _, err := c.appendLocked(c.unwritten[0]); err != nil {
			return err
		}
		c.unwritten = c.unwritten[1:]
	}
	if err := c.syncLocked(); err != nil {
		return err
	}
	c.unwritten, c.noted, c.failure = nil, false, nil
	c.log.Info("audit records are written again", "file", c.current())
	return nil
}

// showLocked has shownHead and err return how the chain stands.
func (c *chain) showLocked() {
	c.shown.Lock()
	defer c.shown.Unlock()
	c.shown.head, c.shown.failure = c.head, c.failure
}

// err returns why records cannot be written, or nil. It never waits for the disk.
func (c *chain) err() error {
	c.shown.Lock()
	defer c.shown.Unlock()
	return c.shown.failure
}

// shownHead returns the last record written. It never waits for the disk.
func (c *chain) shownHead() Mark {
	c.shown.Lock()
	defer c.shown.Unlock()
	return c.shown.head
}

// close brings everything to the disk and closes the file.
func (c *chain) close() error {
	c.flush()
	if c.err() != nil {
		c.flush() // into another file
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	err := errors.Join(c.syncLocked(), c.file.Close())
	c.file = nil
	return err
}
