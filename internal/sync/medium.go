package zonesync

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
)

// Medium keeps a replica's records: the file replica.db, unless
// ReplicaConfig.Medium says otherwise. What is stored is opaque to it and
// carries checksums, so that a medium which returns something else than was
// written is found out. One goroutine uses it at a time.
type Medium interface {
	// Write makes changes durable before it returns. With an error, all of them
	// or none are visible to Read, and the next Write that succeeds makes durable
	// what is visible.
	Write(entries []Entry) error
	// Read visits everything that was written, in any order. The arguments are
	// not kept.
	Read(visit func(bucket string, key, value []byte)) error
	// Close ends the use of the medium.
	Close() error
}

// Entry is one change of a Medium: the new value of a key, nil to remove it.
type Entry struct {
	Bucket     string
	Key, Value []byte
}

// keeper is where a replica is kept: a medium, but in tests of its failures.
type keeper interface {
	// save writes operations and state as one; they are durable when it returns.
	save(writes []write, state *syncv1.ReplicaState) error
	// read returns what is durable.
	read() (*contents, error)
	close() error
}

// records seals what a replica holds into the entries of a medium.
type records struct{ medium Medium }

// openMedium reads and verifies everything that a medium holds. What is damaged
// is left out, removed and reported.
func openMedium(m Medium) (*contents, error) {
	c, err := records{m}.read()
	if err != nil {
		return nil, err
	}
	if gone := c.removals(); len(gone) > 0 {
		if err := m.Write(gone); err != nil {
			return nil, fmt.Errorf("zonesync: prepare replica: %w", err)
		}
	}
	return c, nil
}

func (k records) save(writes []write, state *syncv1.ReplicaState) error {
	entries := make([]Entry, 0, len(writes)+1)
	for _, w := range writes {
		entries = appendWrite(entries, w)
	}
	about, err := stateEntry(state)
	if err == nil {
		err = k.medium.Write(append(entries, about))
	}
	if err != nil {
		return fmt.Errorf("zonesync: save replica: %w", err)
	}
	return nil
}

func (k records) read() (*contents, error) {
	c := &contents{}
	if err := k.medium.Read(c.visit); err != nil {
		return nil, fmt.Errorf("zonesync: read replica: %w", err)
	}
	return c, nil
}

func (k records) close() error { return k.medium.Close() }

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

// removals takes what is damaged off the medium.
func (c *contents) removals() []Entry {
	out := make([]Entry, 0, len(c.strays))
	for _, s := range c.strays {
		out = append(out, Entry{Bucket: s.bucket, Key: s.key})
	}
	return out
}

// entries is everything that could be read, for a new medium.
func (c *contents) entries() ([]Entry, error) {
	out := make([]Entry, 0, len(c.good)+len(c.bad)+1)
	for _, ch := range c.good {
		out = append(out, recordEntry(recordsBucket, diskKey(ch.meta.Key), ch.raw))
	}
	for _, ch := range c.bad {
		out = append(out, recordEntry(quarantineBucket, diskKey(ch.meta.Key), ch.raw))
	}
	if c.state == nil {
		return out, nil
	}
	about, err := stateEntry(c.state)
	return append(out, about), err
}
