package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"meridian/internal/atrest"
)

// ErrNoKey means that the storage holds something that is encrypted with a key
// that is not there. Nothing was changed. Start with the file that holds the key.
var ErrNoKey = atrest.ErrNoKey

// Encrypted is a storage whose log entries and snapshots are encrypted with the
// first of the keys, and read with any. Without a key that encrypts it writes them
// as they are.
//
// When the log is opened, everything is brought to that state: what is encrypted
// with another key or not at all is written again, into new files. Before that it
// is checked that everything can be read, so that ErrNoKey means that nothing was
// changed.
func Encrypted(storage Storage, keys *atrest.Keys) Storage {
	return &encrypted{Storage: storage, keys: keys}
}

type encrypted struct {
	Storage
	keys *atrest.Keys
}

// rewriter is a Storage that can replace what it holds by new files.
type rewriter interface {
	// RewriteLog makes a new log, with the same values and each entry as change
	// leaves it, and puts it in the place of the old one. The log is not open.
	RewriteLog(change func(*raft.Log) error) error
	// RemoveSnapshot removes a snapshot.
	RemoveSnapshot(id string) error
}

// Used implements Directory.
func (e *encrypted) Used() bool {
	d, ok := e.Storage.(Directory)
	return !ok || d.Used()
}

// OpenLog implements Storage.
func (e *encrypted) OpenLog(verify func(LogFile) error, mark JournalMark) (LogFile, error) {
	stale := false
	open := func() (LogFile, error) {
		return e.Storage.OpenLog(func(file LogFile) error {
			var err error
			if stale, err = e.examine(file); err != nil {
				return err
			}
			return verify(encryptedLog{file, e.keys})
		}, mark)
	}
	file, err := open()
	if err != nil {
		return nil, err
	}
	outdated, err := e.outdatedSnapshots()
	if err == nil && stale {
		if err = errors.Join(file.Flush(), file.Close()); err == nil {
			err = e.rewriteLog()
		}
		if err != nil {
			return nil, err
		}
		if file, err = open(); err != nil {
			return nil, err
		}
	}
	if err == nil {
		err = e.rewriteSnapshots(outdated)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return encryptedLog{file, e.keys}, nil
}

// examine looks at the keys of all entries, and reports whether some would be
// written otherwise now. Damage is for others to find.
func (e *encrypted) examine(file LogFile) (stale bool, err error) {
	first, err := file.FirstIndex()
	if err != nil {
		return false, err
	}
	last, err := file.LastIndex()
	if err != nil || last == 0 {
		return false, err
	}
	for index := first; index <= last; index++ {
		var entry raft.Log
		if file.GetLog(index, &entry) != nil {
			continue
		}
		if err := e.keys.Fits(entry.Data); errors.Is(err, ErrNoKey) {
			return false, fmt.Errorf("%s cannot be read: %w; nothing was changed", file.Name(), err)
		}
		stale = stale || !e.keys.Current(entry.Data)
	}
	return stale, nil
}

func (e *encrypted) rewriteLog() error {
	files, ok := e.Storage.(rewriter)
	if !ok {
		return fmt.Errorf("%s cannot be encrypted", e.Name())
	}
	err := files.RewriteLog(func(entry *raft.Log) error {
		plain, err := openEntry(e.keys, entry)
		if err != nil {
			return err
		}
		sealed, err := sealEntry(e.keys, &plain)
		*entry = sealed
		return err
	})
	if err != nil {
		return fmt.Errorf("encrypt the log with another key: %w", err)
	}
	return nil
}

// allSnapshots is how many snapshots are kept while they are written again: raft's
// store lists no more than it keeps, and removes the others when one is made.
const allSnapshots = 1 << 20

// outdatedSnapshots returns the snapshots that would be written otherwise now, the
// oldest first.
func (e *encrypted) outdatedSnapshots() ([]string, error) {
	snapshots, err := e.Storage.OpenSnapshots(allSnapshots, hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	metas, err := snapshots.List()
	if err != nil {
		return nil, err
	}
	var outdated []string
	for _, meta := range metas {
		_, source, err := snapshots.Open(meta.ID)
		if err != nil {
			continue // damage is for others to find
		}
		head := make([]byte, atrest.HeaderLen)
		n, _ := io.ReadFull(source, head)
		if err := source.Close(); err != nil {
			return nil, fmt.Errorf("read snapshot %s: %w", meta.ID, err)
		}
		if err := e.keys.Fits(head[:n]); errors.Is(err, ErrNoKey) {
			return nil, fmt.Errorf("the snapshot %s cannot be read: %w; nothing was changed", snapshotName(snapshots, meta.ID), err)
		}
		if !e.keys.Current(head[:n]) {
			outdated = append([]string{meta.ID}, outdated...)
		}
	}
	return outdated, nil
}

// rewriteSnapshots writes snapshots again, each before the old one is removed: a
// crash leaves both, and the next start continues.
func (e *encrypted) rewriteSnapshots(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	files, ok := e.Storage.(rewriter)
	if !ok {
		return fmt.Errorf("%s cannot be encrypted", e.Name())
	}
	inner, err := e.Storage.OpenSnapshots(allSnapshots, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	snapshots := encryptedSnapshots{inner, e.keys}
	for _, id := range ids {
		if err := rewriteSnapshot(snapshots, id); err != nil {
			return fmt.Errorf("encrypt snapshot %s with another key: %w", id, err)
		}
		if err := files.RemoveSnapshot(id); err != nil {
			return err
		}
	}
	return nil
}

func rewriteSnapshot(snapshots SnapshotFiles, id string) (err error) {
	meta, source, err := snapshots.Open(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	sink, err := snapshots.Create(meta.Version, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, peerNames{})
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, source); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// peerNames is as much of a transport as making a snapshot takes: raft writes the
// addresses of the members a second time, as its transport encodes them.
type peerNames struct{ raft.Transport }

// EncodePeer implements raft.Transport.
func (peerNames) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// OpenSnapshots implements Storage.
func (e *encrypted) OpenSnapshots(retain int, logger hclog.Logger) (SnapshotFiles, error) {
	snapshots, err := e.Storage.OpenSnapshots(retain, logger)
	if err != nil {
		return nil, err
	}
	return encryptedSnapshots{snapshots, e.keys}, nil
}

// encryptedLog encrypts what an entry says and what travels with it, its checksum
// included. Index, term and type stay as they are: the checksum covers them, too.
type encryptedLog struct {
	LogFile
	keys *atrest.Keys
}

// GetLog implements LogFile.
func (l encryptedLog) GetLog(index uint64, log *raft.Log) error {
	if err := l.LogFile.GetLog(index, log); err != nil {
		return err
	}
	plain, err := openEntry(l.keys, log)
	if err == nil {
		*log = plain
	}
	return err
}

// WriteLogs implements LogFile. It does not modify the entries.
func (l encryptedLog) WriteLogs(logs []*raft.Log) (sync func() error, err error) {
	if _, encrypts := l.keys.First(); !encrypts {
		return l.LogFile.WriteLogs(logs)
	}
	sealed := make([]raft.Log, len(logs))
	out := make([]*raft.Log, len(logs))
	for i, log := range logs {
		if sealed[i], err = sealEntry(l.keys, log); err != nil {
			return nil, err
		}
		out[i] = &sealed[i]
	}
	return l.LogFile.WriteLogs(out)
}

// sealEntry returns an entry as it is stored: the length of its extensions, the
// extensions and the data become the data.
func sealEntry(keys *atrest.Keys, log *raft.Log) (raft.Log, error) {
	stored := *log
	if _, encrypts := keys.First(); !encrypts {
		return stored, nil
	}
	plain := make([]byte, 0, binary.MaxVarintLen64+len(log.Extensions)+len(log.Data))
	plain = binary.AppendUvarint(plain, uint64(len(log.Extensions)))
	plain = append(append(plain, log.Extensions...), log.Data...)
	var err error
	stored.Data, err = keys.Seal(plain)
	stored.Extensions = nil
	return stored, err
}

// openEntry is the reverse of sealEntry.
func openEntry(keys *atrest.Keys, stored *raft.Log) (raft.Log, error) {
	log := *stored
	if !atrest.IsEncrypted(stored.Data) {
		return log, nil
	}
	plain, err := keys.Open(stored.Data)
	if err != nil {
		return log, err
	}
	length, n := binary.Uvarint(plain)
	if n <= 0 || length > uint64(len(plain)-n) {
		return log, errors.New("it does not say where its data begins")
	}
	log.Extensions, log.Data = plain[n:n+int(length):n+int(length)], plain[n+int(length):] //nolint:gosec // not longer than plain
	return log, nil
}

// encryptedSnapshots encrypts the content of snapshots. What raft writes beside it
// (index, term, members) stays as it is.
type encryptedSnapshots struct {
	SnapshotFiles
	keys *atrest.Keys
}

// Create implements raft.SnapshotStore.
func (s encryptedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotFiles.Create(version, index, term, members, membersIndex, trans)
	if err != nil {
		return nil, err
	}
	w, err := s.keys.Writer(sink)
	if err != nil {
		return nil, errors.Join(err, sink.Cancel())
	}
	return &encryptedSink{SnapshotSink: sink, w: w}, nil
}

type encryptedSink struct {
	raft.SnapshotSink
	w io.WriteCloser
}

// Write implements io.Writer.
func (s *encryptedSink) Write(p []byte) (int, error) { return s.w.Write(p) }

// Close implements io.Closer.
func (s *encryptedSink) Close() error {
	if err := s.w.Close(); err != nil {
		return errors.Join(err, s.Cancel())
	}
	return s.SnapshotSink.Close()
}

// Open implements raft.SnapshotStore.
func (s encryptedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, source, err := s.SnapshotFiles.Open(id)
	if err != nil {
		return nil, nil, err
	}
	head := make([]byte, atrest.HeaderLen)
	n, err := io.ReadFull(source, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil, errors.Join(err, source.Close())
	}
	decrypted := *meta
	if decrypted.Size, err = atrest.Size(head[:n], meta.Size); err != nil {
		return nil, nil, errors.Join(err, source.Close())
	}
	content, err := s.keys.Reader(io.MultiReader(bytes.NewReader(head[:n]), source))
	if err != nil {
		return nil, nil, errors.Join(err, source.Close())
	}
	return &decrypted, struct {
		io.Reader
		io.Closer
	}{content, source}, nil
}
