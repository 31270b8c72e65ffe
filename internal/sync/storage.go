package zonesync

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
)

// ReplicaStorage keeps a replica's records: the file replica.db, unless
// ReplicaConfig.Storage is set. Values are opaque to it and carry checksums, so
// that a storage which returns other values than were written is detected. One goroutine uses it at a time.
type ReplicaStorage interface {
	// Write makes changes durable before it returns. With an error, all of them
	// or none are visible to Read, and the next Write that succeeds makes durable
	// what is visible.
	Write(entries []Entry) error
	// Read visits everything that was written, in any order. The arguments are
	// not kept.
	Read(visit func(bucket string, key, value []byte)) error
	// Close ends the use of the storage.
	Close() error
}

// Entry is one change of the storage: the new value of a key, nil to remove it.
type Entry struct {
	Bucket     string
	Key, Value []byte
}

// records seals what a replica holds into storage entries.
type records struct {
	storage ReplicaStorage
	decode  Decoder
}

// openStorage reads and verifies everything that the storage holds. What is damaged
// is left out, removed and reported.
func openStorage(m ReplicaStorage, decode Decoder) (*contents, error) {
	c, err := records{m, decode}.read()
	if err != nil {
		return nil, err
	}
	if gone := c.removals(); len(gone) > 0 {
		if err := m.Write(gone); err != nil {
			return nil, fmt.Errorf("prepare replica: %w", err)
		}
	}
	return c, nil
}

// save writes operations and state as one; they are durable when it returns.
func (k records) save(writes []write, state *syncv1.ReplicaState) error {
	entries := make([]Entry, 0, 2*len(writes)+1) // each is at most two
	for _, w := range writes {
		entries = appendWrite(entries, w)
	}
	about, err := stateEntry(state)
	if err == nil {
		err = k.storage.Write(append(entries, about))
	}
	if err != nil {
		return fmt.Errorf("save replica: %w", err)
	}
	return nil
}

// read returns what is durable.
func (k records) read() (*contents, error) {
	c := &contents{decode: k.decode}
	if err := k.storage.Read(c.visit); err != nil {
		return nil, fmt.Errorf("read replica: %w", err)
	}
	c.finish()
	return c, nil
}

func recordEntry(bucket, key, payload []byte) Entry {
	return Entry{Bucket: string(bucket), Key: key, Value: sealRecord(key, payload)}
}

func stateEntry(s *syncv1.ReplicaState) (Entry, error) {
	payload, err := proto.Marshal(s)
	if err != nil {
		return Entry{}, err
	}
	return recordEntry(aboutBucket, stateKey, payload), nil
}

// appendWrite puts bytes that cannot be used beside the last good record, and
// those that can in the place of both.
func appendWrite(entries []Entry, w write) []Entry {
	key := diskKey(w.key)
	if w.bad {
		return append(entries, recordEntry(quarantineBucket, key, w.raw))
	}
	entries = append(entries, Entry{Bucket: string(quarantineBucket), Key: key})
	if w.raw == nil {
		return append(entries, Entry{Bucket: string(recordsBucket), Key: key})
	}
	return append(entries, recordEntry(recordsBucket, key, w.raw))
}
