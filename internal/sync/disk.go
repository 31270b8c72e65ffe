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
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"meridian/internal/boltcheck"
)

// ErrReplicaInUse means that another process has the replica open. One process
// at a time keeps a replica: stop the other one, or give this one a data
// directory of its own.
var ErrReplicaInUse = errors.New("the replica is in use by another process")

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

// openRecord checks a value and returns its payload, which is part of it.
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
	return payload, nil
}

// disk is the replica's file.
type disk struct{ db *bolt.DB }

// lockWait is how long another process may hold the file before it counts as in
// use.
const lockWait = time.Second

// mappedBytes is the address space that is reserved for the file, in bytes. While a file
// outgrows what is mapped, bbolt copies every node of the transaction: a first sync of
// 100,000 policies spent a seventh of its time on that. It takes no memory.
const mappedBytes = 256 << 20

// openDisk opens or creates the replica in a directory and reads and verifies
// all of it. What is damaged is left out and reported; a file whose structure
// is damaged is set aside and what could be read goes into a new one, so that
// bbolt, which trusts what it reads, is only ever given an intact file.
func openDisk(dir string, options bolt.Options, decode Decoder) (*disk, *contents, error) {
	path := filepath.Join(dir, replicaFile)
	c := &contents{decode: decode}
	intact, err := survey(path, c)
	if err != nil {
		return nil, nil, err
	}
	aside := ""
	if !intact {
		aside, err = setAside(path)
		if err != nil {
			return nil, nil, err
		}
		c.damage = append(c.damage, "the file was damaged and is set aside as "+filepath.Base(aside))
	}
	options.Timeout, options.NoFreelistSync, options.FreelistType, options.InitialMmapSize = lockWait, true, bolt.FreelistMapType, mappedBytes
	db, err := bolt.Open(path, 0o600, &options)
	if err != nil {
		return nil, nil, openError(path, err)
	}
	d := &disk{db: db}
	if err := d.prepare(c, aside); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return d, c, nil
}

func openError(path string, err error) error {
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w: %s", ErrReplicaInUse, path)
	}
	return fmt.Errorf("open replica: %w", err)
}

// survey reads a file without changing it into contents. intact is false when its
// structure is damaged; what can be read all the same is in the contents.
func survey(path string, c *contents) (intact bool, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && info.Size() == 0) {
		return true, nil // bbolt makes it
	}
	if err != nil {
		return false, openError(path, err)
	}
	damage, err := boltcheck.Salvage(path, c.visit)
	if err != nil {
		return false, openError(path, err)
	}
	c.finish()
	for _, d := range damage {
		c.damage = append(c.damage, d.Error())
	}
	return len(damage) == 0, nil
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
			return "", fmt.Errorf("set the damaged replica aside: %w", err)
		}
		return aside, nil
	}
}

// prepare makes the buckets, removes what is damaged and, in a new file, writes
// what can be read of the old one, which was set aside; empty: there was none.
func (d *disk) prepare(c *contents, aside string) error {
	err := d.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{recordsBucket, quarantineBucket, aboutBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	entries := c.removals()
	if err == nil && aside != "" {
		entries, err = entriesOf(aside)
	}
	if err == nil && len(entries) > 0 {
		err = d.Write(entries)
	}
	if err != nil {
		return fmt.Errorf("prepare replica: %w", err)
	}
	return nil
}

// Write changes the file in one transaction, which is on the disk when Write
// returns.
func (d *disk) Write(entries []Entry) error {
	return d.db.Update(func(tx *bolt.Tx) error {
		for _, e := range entries {
			bucket := tx.Bucket([]byte(e.Bucket))
			var err error
			if e.Value == nil {
				err = bucket.Delete(e.Key)
			} else {
				err = bucket.Put(e.Key, e.Value)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", readableKey(e.Key), err)
			}
		}
		return nil
	})
}

// Read visits every entry.
func (d *disk) Read(visit func(bucket string, key, value []byte)) error {
	return d.db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				visit(string(name), k, v)
				return nil
			})
		})
	})
}

// Close releases the file.
func (d *disk) Close() error { return d.db.Close() }
