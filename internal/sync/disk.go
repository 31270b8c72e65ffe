package zonesync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
)

// ErrReplicaInUse means that another process has the replica open. One process
// at a time keeps a replica: stop the other one, or give this one a data
// directory of its own.
var ErrReplicaInUse = errors.New("zonesync: the replica is in use by another process")

// replicaFile is the name of the replica in a zone's data directory.
const replicaFile = "replica.db"

// The file's buckets. Records hold what is served; quarantine holds newer bytes
// of a key that cannot be used, beside the last good record, if any; about holds
// one entry, the ReplicaState.
var (
	recordsBucket    = []byte("records")
	quarantineBucket = []byte("quarantine")
	aboutBucket      = []byte("about")
	stateKey         = []byte("state")
)

// recordVersion is the first byte of every value; a CRC-32C over it, the key
// and the payload follows, then the payload.
const (
	recordVersion  = 1
	recordOverhead = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sealRecord(key, payload []byte) []byte {
	out := make([]byte, recordOverhead, recordOverhead+len(payload))
	out[0] = recordVersion
	binary.BigEndian.PutUint32(out[1:], recordSum(key, payload))
	return append(out, payload...)
}

func recordSum(key, payload []byte) uint32 {
	sum := crc32.Update(crc32.Checksum([]byte{recordVersion}, castagnoli), castagnoli, key)
	return crc32.Update(sum, castagnoli, payload)
}

// openRecord checks a value and returns a copy of its payload.
func openRecord(key, value []byte) ([]byte, error) {
	if len(value) < recordOverhead {
		return nil, fmt.Errorf("%w record: %d bytes", errMalformed, len(value))
	}
	if value[0] != recordVersion {
		return nil, fmt.Errorf("%w record: version %d", errMalformed, value[0])
	}
	payload := value[recordOverhead:]
	if binary.BigEndian.Uint32(value[1:]) != recordSum(key, payload) {
		return nil, fmt.Errorf("%w record: checksum", errMalformed)
	}
	return bytes.Clone(payload), nil
}

// contents is what a replica file holds.
type contents struct {
	state     *syncv1.ReplicaState // nil: none, or lost
	good, bad []change
	// damage says what was found damaged, for the operator, and strays which
	// keys to remove.
	damage []string
	strays []stray
}

type stray struct{ bucket, key []byte }

// disk is the replica's file.
type disk struct {
	db   *bolt.DB
	path string
}

// openDisk opens or creates the replica in a directory and reads and verifies
// all of it. What is damaged is left out and reported; a file whose structure
// is damaged is set aside and what could be read goes into a new one.
func openDisk(dir string, options bolt.Options) (*disk, *contents, error) {
	path := filepath.Join(dir, replicaFile)
	c, intact, err := survey(path, options)
	if err != nil {
		return nil, nil, err
	}
	if intact {
		d, err := openForWriting(path, options, c, false)
		if !errors.Is(err, errMalformed) {
			return d, c, err
		}
		c.damage = append(c.damage, err.Error())
	}
	aside, err := setAside(path)
	if err != nil {
		return nil, nil, err
	}
	c.damage = append(c.damage, "the file was damaged and is set aside as "+filepath.Base(aside))
	d, err := openForWriting(path, options, c, true)
	return d, c, err
}

// openForWriting opens a file whose contents have been read, or with refill a
// new one that takes them over. Damage that reading did not meet, such as in the
// list of free pages, is errMalformed.
func openForWriting(path string, options bolt.Options, c *contents, refill bool) (d *disk, err error) {
	defer catchDamage(&err)()
	db, err := openBolt(path, options)
	if err != nil {
		return nil, err
	}
	d = &disk{db: db, path: path}
	if err := d.prepare(c, refill); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

// catchDamage returns a function to defer that turns the library's panics on a
// damaged file, and faults of the memory map, into errMalformed.
func catchDamage(err *error) func() {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			*err = fmt.Errorf("%w replica: %v", errMalformed, p)
		}
	}
}

func openBolt(path string, options bolt.Options) (*bolt.DB, error) {
	options.Timeout = time.Second
	db, err := bolt.Open(path, 0o600, &options)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s", ErrReplicaInUse, path)
	}
	if err != nil {
		return nil, fmt.Errorf("zonesync: open replica: %w", err)
	}
	return db, nil
}

// survey reads a file without changing it. intact is false when its structure
// is damaged; what was read before the damage is returned. The library panics on
// a damaged page, and memory maps fault beyond a truncated file's end; both stay
// in here. Opening read-only matters: it is the library's one way that neither
// starts goroutines, whose panics nobody could catch, nor reads the list of free
// pages.
func survey(path string, options bolt.Options) (c *contents, intact bool, err error) {
	c = &contents{}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return c, true, nil
	}
	options.ReadOnly = true
	db, err := openBolt(path, options)
	switch {
	case errors.Is(err, ErrReplicaInUse), errors.Is(err, fs.ErrPermission):
		return nil, false, err
	case err != nil:
		c.damage = append(c.damage, err.Error())
		return c, false, nil
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := c.read(db); err != nil {
		c.damage = append(c.damage, err.Error())
		return c, false, nil
	}
	return c, true, nil
}

func (c *contents) read(db *bolt.DB) (err error) {
	defer catchDamage(&err)()
	return db.View(func(tx *bolt.Tx) error {
		if b := tx.Bucket(aboutBucket); b != nil {
			c.readState(b)
		}
		if err := c.readRecords(tx, quarantineBucket, &c.bad); err != nil {
			return err
		}
		return c.readRecords(tx, recordsBucket, &c.good)
	})
}

func (c *contents) readState(b *bolt.Bucket) {
	raw := b.Get(stateKey)
	if raw == nil {
		return
	}
	payload, err := openRecord(stateKey, raw)
	if err == nil {
		s := &syncv1.ReplicaState{}
		if err = proto.Unmarshal(payload, s); err == nil {
			c.state = s
			return
		}
	}
	c.damage = append(c.damage, fmt.Sprintf("the record of revision and epoch: %v", err))
}

func (c *contents) readRecords(tx *bolt.Tx, bucket []byte, into *[]change) error {
	b := tx.Bucket(bucket)
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, v []byte) error {
		ch, err := readRecord(k, v)
		if err != nil {
			c.damage = append(c.damage, fmt.Sprintf("%s: %v", readableKey(k), err))
			c.strays = append(c.strays, stray{bucket: bucket, key: bytes.Clone(k)})
			return nil
		}
		*into = append(*into, ch)
		return nil
	})
}

func readRecord(k, v []byte) (change, error) {
	payload, err := openRecord(k, v)
	if err != nil {
		return change{}, err
	}
	ch, err := decodeChange(payload)
	if err != nil {
		return change{}, err
	}
	if ch.deleted || !bytes.Equal(diskKey(ch.meta.Key), k) {
		return change{}, fmt.Errorf("%w record: it is about %s", errMalformed, ch.meta.Key)
	}
	return ch, nil
}

// readableKey prints a disk key, which may be damaged, for people.
func readableKey(k []byte) string {
	return fmt.Sprintf("%q", bytes.ReplaceAll(k, []byte{0}, []byte("/")))
}

// setAside renames a damaged file to a name that is free.
func setAside(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.damaged-%d", path, n)
		if _, err := os.Stat(aside); err == nil {
			continue
		}
		if err := os.Rename(path, aside); err != nil {
			return "", fmt.Errorf("zonesync: set the damaged replica aside: %w", err)
		}
		return aside, nil
	}
}

// prepare makes the buckets, removes what is damaged and, in a new file, writes
// what was saved from the old one.
func (d *disk) prepare(c *contents, refill bool) error {
	err := d.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{recordsBucket, quarantineBucket, aboutBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		if !refill {
			for _, s := range c.strays {
				if err := tx.Bucket(s.bucket).Delete(s.key); err != nil {
					return err
				}
			}
			return nil
		}
		for _, ch := range c.good {
			if err := putRecord(tx, recordsBucket, diskKey(ch.meta.Key), ch.raw); err != nil {
				return err
			}
		}
		for _, ch := range c.bad {
			if err := putRecord(tx, quarantineBucket, diskKey(ch.meta.Key), ch.raw); err != nil {
				return err
			}
		}
		if c.state != nil {
			return putState(tx, c.state)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("zonesync: prepare replica: %w", err)
	}
	return nil
}

func putRecord(tx *bolt.Tx, bucket, key, payload []byte) error {
	return tx.Bucket(bucket).Put(key, sealRecord(key, payload))
}

func putState(tx *bolt.Tx, s *syncv1.ReplicaState) error {
	payload, err := proto.Marshal(s)
	if err != nil {
		return err
	}
	return putRecord(tx, aboutBucket, stateKey, payload)
}

// save writes operations and state in one transaction that is on the medium when
// it returns.
func (d *disk) save(writes []write, state *syncv1.ReplicaState) (err error) {
	defer catchDamage(&err)()
	err = d.db.Update(func(tx *bolt.Tx) error {
		records, quarantine := tx.Bucket(recordsBucket), tx.Bucket(quarantineBucket)
		for _, w := range writes {
			if err := saveWrite(records, quarantine, w); err != nil {
				return fmt.Errorf("%s: %w", w.key, err)
			}
		}
		return putState(tx, state)
	})
	if err != nil {
		return fmt.Errorf("zonesync: save replica: %w", err)
	}
	return nil
}

func saveWrite(records, quarantine *bolt.Bucket, w write) error {
	key := diskKey(w.key)
	if w.bad {
		return quarantine.Put(key, sealRecord(key, w.raw))
	}
	if err := quarantine.Delete(key); err != nil {
		return err
	}
	if w.raw == nil {
		return records.Delete(key)
	}
	return records.Put(key, sealRecord(key, w.raw))
}

func (d *disk) read() (*contents, error) {
	c := &contents{}
	return c, c.read(d.db)
}

func (d *disk) close() error { return d.db.Close() }
