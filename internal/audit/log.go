package audit

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Names below the log's directory.
const (
	// CurrentFile is the file that writes go to. Those of the other chains are beside
	// it.
	CurrentFile = "audit" + fileSuffix
	// HeadFile is the checkpoint of the log's end.
	HeadFile = "head.json"
	// fileSuffix ends the names of the files of records.
	fileSuffix = ".log"
)

const (
	dirPerm  = 0o700
	filePerm = 0o600
)

// Defaults of Config.
const (
	DefaultMaxBytes = 64 << 20
	DefaultMaxFiles = 10
	// DefaultRefusalBytes and DefaultRefusalFiles are those of each chain of refusals.
	DefaultRefusalBytes = 16 << 20
	DefaultRefusalFiles = 4
	// SyncEvery is how long a record may take to reach the disk, and the window in
	// which refusals are counted at first.
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
	// RefusalBytes and RefusalFiles are the same for each chain of refusals.
	RefusalBytes int64
	RefusalFiles int
	// Sign signs the checkpoint; nil leaves it unsigned. Roots, unless nil, issued the
	// certificates that signed it before.
	Sign  Signer
	Roots *x509.CertPool
	// Required refuses writes while their records cannot be stored, and has a write be
	// answered once its record is on disk.
	Required bool
	// Sent, unless nil, receives every record that was written, with its line. It must
	// not block, nor change the line.
	Sent func(r Record, line []byte)
	// Now is the clock. Required.
	Now func() time.Time
	// Logger receives failures, which do not fail the requests that are recorded.
	Logger *slog.Logger
}

// Log writes records. It is safe for concurrent use.
type Log struct {
	cfg    Config
	chains []*chain // in the order of chainNames
	writes *chain   // the first of them
	// refusals are the others, by name.
	refusals   map[string]*refusals
	checkpoint *checkpoint
	listing    chan struct{} // of capacity 1: held by the caller of List that reads

	past past // set once, by Open

	// unsaved is why the checkpoint could not be saved the last time.
	unsaved struct {
		sync.Mutex
		failure error
	}

	// late are records that wait for the next flush: those of callers that
	// must not wait for a disk.
	late struct {
		sync.Mutex
		records []Record
		// unlessHad are written only if no file has one of their revision.
		unlessHad []Record
	}
}

// Open opens the log of a directory, making it if needed. A record that was
// partly written at a crash is removed; a file whose end does not verify is renamed,
// where Verify finds it, and the chain continues from the checkpoint.
func Open(cfg Config) (*Log, error) {
	cfg.MaxBytes, cfg.MaxFiles = cmp.Or(cfg.MaxBytes, DefaultMaxBytes), cmp.Or(cfg.MaxFiles, DefaultMaxFiles)
	cfg.RefusalBytes, cfg.RefusalFiles = cmp.Or(cfg.RefusalBytes, DefaultRefusalBytes), cmp.Or(cfg.RefusalFiles, DefaultRefusalFiles)
	if err := os.MkdirAll(cfg.Dir, dirPerm); err != nil {
		return nil, fmt.Errorf("make the directory of the audit log: %w", err)
	}
	checkpoint, note := openCheckpoint(cfg.Dir, cfg.Sign, cfg.Roots)
	l := &Log{cfg: cfg, checkpoint: checkpoint, listing: make(chan struct{}, 1), refusals: map[string]*refusals{}}
	notes := []string{note}
	for _, name := range chainNames {
		c := &chain{
			name: name, base: baseOf(name), dir: cfg.Dir, maxBytes: cfg.RefusalBytes, maxFiles: cfg.RefusalFiles,
			now: cfg.Now, log: cfg.Logger, checkpoint: checkpoint, sent: cfg.Sent,
		}
		if name == "" {
			c.maxBytes, c.maxFiles, l.writes = cfg.MaxBytes, cfg.MaxFiles, c
		} else {
			l.refusals[name] = newRefusals(c)
		}
		l.chains = append(l.chains, c)
		end, note, err := c.resume()
		if err != nil {
			return nil, errors.Join(err, l.closeFiles())
		}
		notes = append(notes, note)
		if name == "" {
			l.past.writes, l.past.first = end.writes, end.first
			if older, err := rotated(cfg.Dir, c.base); err == nil {
				l.past.older = older
			}
		}
	}
	for _, note := range notes {
		if note != "" {
			cfg.Logger.Warn("the audit log was repaired", "what", note)
			l.Write(Record{Method: "audit/open", Who: serverItself, Decision: Noted, Message: note})
		}
	}
	return l, nil
}

// serverItself is the author of what a server does on its own behalf.
var serverItself = Who{Name: "mesh-system:server", Source: "server"}

// Write appends a record; its Chain, Seq, Time and Prev are the log's to set. Refusals
// are counted where there are many. Texts and lists are bounded, with a mark where
// something is left out. A failure is reported to the Logger and by Err; the record is
// kept and written once that is possible, and lost if there are too many until then.
func (l *Log) Write(r Record) {
	if name := chainOf(r); name != "" {
		l.refusals[name].write(bounded(r))
		return
	}
	_ = l.store(r) // reported by Err
}

// store appends a record that is no refusal. Where records are required, it is on disk
// then.
func (l *Log) store(r Record) error {
	var last uint64
	for _, part := range parts(bounded(r)) {
		seq, _, err := l.writes.write(part)
		if err != nil {
			return err
		}
		last = seq
	}
	if !l.cfg.Required {
		return nil
	}
	return l.writes.durable(last)
}

// ReasonAuditUnavailable is the reason of what is refused because it could not be
// recorded.
const ReasonAuditUnavailable = "AUDIT_UNAVAILABLE"

// Storable returns the refusal of a write that could not be recorded, where records
// are required: an *rpcerr.Error. Nothing was written then.
func (l *Log) Storable() error {
	err := l.unstorable()
	if err == nil || !l.cfg.Required {
		return nil
	}
	return rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, ReasonAuditUnavailable,
		"the audit log of this server cannot be written, and it takes no writes that it cannot record (--audit-required): %w", err), rpcerr.EffectNone)
}

// unstorable returns why a write cannot be recorded as one that is required to be, with a
// checkpoint that shows when the record is missing; or nil. It never waits for the disk.
func (l *Log) unstorable() error {
	if err := l.writes.err(); err != nil {
		return err
	}
	return l.unsavedErr()
}

// unrecorded is the error for a write that took effect and whose record is not stored
// yet. It is kept, and stored as soon as that is possible.
func unrecorded(rev resource.Revision, err error) error {
	return rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, ReasonAuditUnavailable,
		"it was written at revision %d, and its audit record is not on disk yet (--audit-required); retry it with the same request id: %w", rev, err), rpcerr.EffectUnknown)
}

// parts divides a record of many targets.
func parts(r Record) []Record {
	var out []Record
	targets := r.Targets
	for part := 0; ; part++ {
		r.Targets, targets = targets[:min(maxTargets, len(targets))], targets[min(maxTargets, len(targets)):]
		if part > 0 || len(targets) > 0 {
			r.Part = part + 1
		}
		out = append(out, r)
		if len(targets) == 0 {
			return out
		}
	}
}

// flush writes down the refusals that were counted, and syncs.
func (l *Log) flush() {
	for _, f := range l.refusals {
		f.flush(false)
	}
	for _, r := range l.takeLate() {
		l.Write(r)
	}
	for _, c := range l.chains {
		c.flush()
	}
	l.saveCheckpoint()
}

// saveCheckpoint saves the checkpoint, and reports when that begins to fail and when it
// is over. Records are written all the same: what shows that they are on disk is a sync.
func (l *Log) saveCheckpoint() {
	err := l.checkpoint.save()
	l.unsaved.Lock()
	defer l.unsaved.Unlock()
	switch {
	case err != nil && l.unsaved.failure == nil:
		l.cfg.Logger.Error("the checkpoint of the audit log cannot be written", "file", l.checkpoint.path, "error", err)
	case err == nil && l.unsaved.failure != nil:
		l.cfg.Logger.Info("the checkpoint of the audit log is written again", "file", l.checkpoint.path)
	}
	l.unsaved.failure = err
}

// unsavedErr returns why the checkpoint could not be saved, or nil. It never waits for
// the disk.
func (l *Log) unsavedErr() error {
	l.unsaved.Lock()
	defer l.unsaved.Unlock()
	return l.unsaved.failure
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

// Ready is Err for the readiness of the server.
func (l *Log) Ready() error {
	if err := l.unstorable(); err != nil && l.cfg.Required {
		return fmt.Errorf("writes are refused until the log can be written (--audit-required): %w", err)
	}
	return l.Err()
}

// Err returns why records, or the checkpoint, cannot be written, or nil. It never waits for the disk.
func (l *Log) Err() error {
	for _, c := range l.chains {
		if err := c.err(); err != nil {
			return err
		}
	}
	return l.unsavedErr()
}

// Head returns the last record of a write. It never waits for the disk.
func (l *Log) Head() Mark { return l.writes.shownHead() }

// Records returns how many records there are of each chain, by the name of its files.
// It never waits for the disk.
func (l *Log) Records() map[string]uint64 {
	out := make(map[string]uint64, len(l.chains))
	for _, c := range l.chains {
		out[c.base] = c.shownHead().Seq
	}
	return out
}

// Close brings everything to the disk and closes the log. What is written later
// is lost.
func (l *Log) Close() error {
	for _, f := range l.refusals {
		f.flush(true)
	}
	for _, r := range l.takeLate() {
		l.Write(r)
	}
	return l.closeFiles()
}

func (l *Log) closeFiles() error {
	var errs []error
	for _, c := range l.chains {
		errs = append(errs, c.close())
	}
	return errors.Join(append(errs, l.checkpoint.save())...)
}
