package audit

import (
	"bytes"
	"context"
	"encoding/json"
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

// Names below the log's directory.
const (
	// CurrentFile is the file that is written.
	CurrentFile = "audit.log"
	// HeadFile is the checkpoint of the log's end.
	HeadFile = "head.json"
	// rotatedPattern is the name of a full file, by its first record.
	rotatedPattern = "audit-%020d.log"
)

const (
	dirPerm  = 0o700
	filePerm = 0o600
)

// Defaults of Config.
const (
	DefaultMaxBytes = 64 << 20
	DefaultMaxFiles = 10
	// SyncEvery is how long a record may take to reach the disk, and how long
	// equal refusals are gathered.
	SyncEvery = time.Second
)

// Config says where and how a log is kept.
type Config struct {
	// Dir holds the files. Required.
	Dir string
	// MaxBytes is how big a file grows before the next one is begun; MaxFiles is
	// how many are kept, the current one included.
	MaxBytes int64
	MaxFiles int
	// Now is the clock. Required.
	Now func() time.Time
	// Logger receives failures, which do not fail the requests that are recorded.
	Logger *slog.Logger
}

// Head is the checkpoint of a log: a record that is on disk. With a
// copy of it Verify can check that the log still contains that record.
type Head struct {
	Seq  uint64    `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
}

// Log writes records. It is safe for concurrent use.
type Log struct {
	cfg Config

	mu      sync.Mutex // guards all below
	file    *os.File
	size    int64
	first   uint64 // of the current file; 0 when it is empty
	head    Head   // the last record written
	synced  uint64 // the last record known to be on disk
	failure error  // of the last write or sync
	burst   burst

	past past // set once, by Open

	// late are records that wait for the next flush: those of callers that
	// must not wait for a disk.
	late struct {
		sync.Mutex
		records []Record
		// unlessHad are written only if no file has one of their revision.
		unlessHad []Record
	}

	// shown is what Head and Err return, as of the end of the last write or sync:
	// they do not wait for a disk that hangs.
	shown struct {
		sync.Mutex
		head    Head
		failure error
	}
}

// Open opens the log of a directory, making it if needed. A record that was
// partly written at a crash is removed; a file whose end does not verify is renamed,
// where Verify finds it, and the chain continues from the checkpoint.
func Open(cfg Config) (*Log, error) {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.MaxFiles <= 0 {
		cfg.MaxFiles = DefaultMaxFiles
	}
	l := &Log{cfg: cfg, head: Head{Hash: zeroHash}}
	defer l.showLocked()
	if err := os.MkdirAll(cfg.Dir, dirPerm); err != nil {
		return nil, fmt.Errorf("make the directory of the audit log: %w", err)
	}
	note, err := l.resume()
	if err != nil {
		return nil, err
	}
	if note != "" {
		cfg.Logger.Warn("the audit log was repaired", "what", note)
		l.Write(Record{Method: "audit/open", Who: serverItself, Decision: Noted, Message: note})
	}
	return l, nil
}

// serverItself is the author of what a server does on its own behalf.
var serverItself = Who{Name: "mesh-system:server", Source: "server"}

// resume finds the end of the chain and opens the current file. The note says
// what was repaired.
func (l *Log) resume() (note string, err error) {
	checkpoint, err := ReadHead(filepath.Join(l.cfg.Dir, HeadFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		note = "the checkpoint cannot be read: " + err.Error()
	}
	path := filepath.Join(l.cfg.Dir, CurrentFile)
	end, err := lastRecord(path)
	l.past.revisions, l.past.first = end.revisions, end.first
	if older, err := rotated(l.cfg.Dir); err == nil {
		l.past.older = older
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && end.lines == 0:
		if err := l.resumeRotated(); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	case end.bad != nil:
		aside := filepath.Join(l.cfg.Dir, fmt.Sprintf(rotatedPattern, max(end.first, 1)))
		if err := os.Rename(path, aside); err != nil {
			return "", fmt.Errorf("set a damaged file of the audit log aside: %w", err)
		}
		l.head = checkpoint
		note = fmt.Sprintf("the last record of %s does not verify (%v): the file was set aside", filepath.Base(aside), end.bad)
		end = fileEnd{}
	default:
		l.head, l.first = end.head, end.first
	}
	if l.head.Hash == "" {
		l.head.Hash = zeroHash
	}
	if checkpoint.Seq > l.head.Seq {
		note = fmt.Sprintf("records %d to %d are missing at the end", l.head.Seq+1, checkpoint.Seq)
		l.head = checkpoint
	}
	if err := l.openCurrent(end.size); err != nil {
		return "", err
	}
	if end.torn > 0 {
		note = fmt.Sprintf("a torn record of %d bytes was cut off", end.torn)
	}
	return note, nil
}

// resumeRotated continues after the newest full file, when the current one is
// missing or empty.
func (l *Log) resumeRotated() error {
	files, err := rotated(l.cfg.Dir)
	if err != nil || len(files) == 0 {
		return err
	}
	end, err := lastRecord(files[len(files)-1])
	if err != nil {
		return err
	}
	if end.bad == nil {
		l.head = end.head
	}
	return nil
}

// openCurrent opens the file that is written, cut to size.
func (l *Log) openCurrent(size int64) error {
	f, err := os.OpenFile(filepath.Join(l.cfg.Dir, CurrentFile), os.O_WRONLY|os.O_CREATE, filePerm)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	if err := errors.Join(f.Chmod(filePerm), f.Truncate(size)); err != nil {
		return errors.Join(fmt.Errorf("open the audit log: %w", err), f.Close())
	}
	if _, err := f.Seek(size, io.SeekStart); err != nil {
		return errors.Join(fmt.Errorf("open the audit log: %w", err), f.Close())
	}
	l.file, l.size = f, size
	if err := atomicfile.SyncDir(l.cfg.Dir); err != nil {
		return fmt.Errorf("sync the directory of the audit log: %w", err)
	}
	return nil
}

// Write appends a record; its Seq, Time and Prev are the log's to set. Equal
// refusals within SyncEvery are counted into one record. Texts and lists are bounded,
// with a mark where something is left out. A failure is reported
// to the Logger and by Err; the record is then lost, and the next one verifies
// all the same.
func (l *Log) Write(r Record) {
	r = bounded(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.showLocked()
	if (r.Decision == Denied || r.Decision == Refused) && l.burst.aggregate(r) {
		return
	}
	targets := r.Targets
	for part := 0; ; part++ {
		r.Targets, targets = targets[:min(maxTargets, len(targets))], targets[min(maxTargets, len(targets)):]
		if part > 0 || len(targets) > 0 {
			r.Part = part + 1
		}
		l.appendLocked(r)
		if len(targets) == 0 {
			return
		}
	}
}

func (l *Log) appendLocked(r Record) {
	if l.file == nil {
		return // closed
	}
	r.Seq, r.Time, r.Prev = l.head.Seq+1, l.cfg.Now().UTC(), l.head.Hash
	line, hash, err := encodeRecord(r)
	if err == nil {
		err = l.rotateLocked(int64(len(line)))
	}
	if err == nil {
		err = l.writeLocked(line)
	}
	if err != nil {
		l.failLocked(err)
		return
	}
	if l.first == 0 {
		l.first = r.Seq
	}
	l.head = Head{Seq: r.Seq, Hash: hash, Time: r.Time}
}

// writeLocked writes a whole line or, when it cannot, leaves the file as it was.
func (l *Log) writeLocked(line []byte) error {
	n, err := l.file.Write(line)
	if err == nil {
		l.size += int64(n)
		return nil
	}
	err = fmt.Errorf("write an audit record: %w", err)
	if n > 0 {
		_, seek := l.file.Seek(l.size, io.SeekStart)
		err = errors.Join(err, l.file.Truncate(l.size), seek)
	}
	return err
}

func (l *Log) failLocked(err error) {
	if l.failure == nil {
		l.cfg.Logger.Error("audit records are being lost", "error", err)
	}
	l.failure = err
}

// rotateLocked begins the next file when a line does not fit into the current
// one, and removes the oldest ones that are too many.
func (l *Log) rotateLocked(line int64) error {
	if l.size == 0 || l.size+line <= l.cfg.MaxBytes {
		return nil
	}
	if err := l.syncLocked(); err != nil {
		return err
	}
	full := filepath.Join(l.cfg.Dir, fmt.Sprintf(rotatedPattern, l.first))
	if err := os.Rename(l.file.Name(), full); err != nil {
		return fmt.Errorf("rotate the audit log: %w", err)
	}
	old := l.file
	if err := l.openCurrent(0); err != nil {
		// The full file is still open and still the end of the chain: go back.
		return errors.Join(err, os.Rename(full, old.Name()))
	}
	l.first = 0
	err := old.Close()
	files, listErr := rotated(l.cfg.Dir)
	for len(files) > l.cfg.MaxFiles-1 {
		err = errors.Join(err, os.Remove(files[0]))
		files = files[1:]
	}
	if err = errors.Join(err, listErr); err != nil {
		l.cfg.Logger.Warn("old files of the audit log could not be removed", "error", err)
	}
	return nil
}

// syncLocked brings everything written to the disk, and then the checkpoint.
func (l *Log) syncLocked() error {
	if l.file == nil || l.synced == l.head.Seq {
		return nil
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("sync the audit log: %w", err)
	}
	if err := writeHead(filepath.Join(l.cfg.Dir, HeadFile), l.head); err != nil {
		return err
	}
	l.synced = l.head.Seq
	return nil
}

// flush writes down the refusals that were counted, and syncs.
func (l *Log) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.showLocked()
	for _, r := range append(l.burst.flush(), l.takeLateLocked()...) {
		l.appendLocked(r)
	}
	failed := l.failure
	if err := l.syncLocked(); err != nil {
		l.failLocked(err)
		return
	}
	if failed != nil && l.probeLocked() {
		l.failure = nil
		l.cfg.Logger.Info("audit records are written again")
	}
}

// probeLocked writes a note after a failure, which shows whether it is over.
func (l *Log) probeLocked() bool {
	before := l.head.Seq
	l.appendLocked(Record{Method: "audit/write", Who: serverItself, Decision: Noted, Message: "records were lost: " + clip(l.failure.Error())})
	return l.head.Seq > before
}

// Run syncs until ctx ends.
func (l *Log) Run(ctx context.Context) error {
	tick := time.NewTicker(SyncEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.flush()
		}
	}
}

// showLocked has Head and Err return how the log stands.
func (l *Log) showLocked() {
	l.shown.Lock()
	defer l.shown.Unlock()
	l.shown.head, l.shown.failure = l.head, l.failure
}

// Err returns why records are being lost, or nil. It never waits for the disk.
func (l *Log) Err() error {
	l.shown.Lock()
	defer l.shown.Unlock()
	return l.shown.failure
}

// Head returns the last record written. It never waits for the disk.
func (l *Log) Head() Head {
	l.shown.Lock()
	defer l.shown.Unlock()
	return l.shown.head
}

// Close brings everything to the disk and closes the log. What is written later
// is lost.
func (l *Log) Close() error {
	l.flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.syncLocked(), l.file.Close())
	l.file = nil
	return err
}

// ReadHead reads a checkpoint.
func ReadHead(path string) (Head, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Head{}, err
	}
	var h Head
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&h); err != nil || len(h.Hash) != hashText {
		return Head{}, fmt.Errorf("%s is not a checkpoint", path)
	}
	return h, nil
}
