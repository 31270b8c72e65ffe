package raftlog

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"
)

// Formats of a data directory. A release without journals reads flushedFormat only.
const (
	// flushedFormat says that all entries are in the log file.
	flushedFormat = 1
	// journalFormat says that some may be in the journal beside it only.
	journalFormat = 2
)

// Identity names the server that a data directory belongs to. It is the first
// file written.
type Identity struct {
	FormatVersion int    `json:"formatVersion"`
	Role          string `json:"role"`
	ClusterID     string `json:"clusterId"`
	NodeID        string `json:"nodeId"`
	// Disk tells this directory from others that a server of the same name had or
	// will have; "" in the one that its cluster began with.
	Disk string `json:"disk,omitempty"`
	// Bootstrapped says that the log has been begun: from then on an empty one
	// is a lost one.
	Bootstrapped bool `json:"bootstrapped"`
	// Joining says that the server is to become a member of a cluster that exists
	// and has not held all of its state yet. The cluster's id may not be known.
	Joining bool `json:"joining,omitempty"`
	// RecoveryID is the name that the cluster gets when its recovery with this
	// server alone has reached the log, at RecoveryEntry.
	RecoveryID    string `json:"recoveryId,omitempty"`
	RecoveryEntry uint64 `json:"recoveryEntry,omitempty"`
	// Removed says that the cluster told this server that it is no member any more:
	// it was removed, or its disk was replaced. Its own log may not know that.
	Removed bool `json:"removed,omitempty"`
	// Former are the names that the cluster had before its recoveries, the newest
	// first, with spaces between.
	Former string `json:"former,omitempty"`
	// Checksum is the CRC32C of all that, in hexadecimal.
	Checksum string `json:"checksum,omitempty"`
}

// checksum returns what Checksum should be.
func (id Identity) checksum() (string, error) {
	id.Checksum = ""
	data, err := json.Marshal(id)
	if err != nil {
		return "", fmt.Errorf("encode identity: %w", err)
	}
	return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli)), nil
}

// decodeIdentity reads an identity, and nothing else: a key that is not known is
// one that was damaged. One without a checksum is of an older release.
func decodeIdentity(data []byte) (id Identity, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&id); err != nil {
		return Identity{}, err
	}
	sum, err := id.checksum()
	if err == nil && id.Checksum != "" && id.Checksum != sum {
		err = errors.New("checksum mismatch")
	}
	return id, err
}

// DataDir is a storage that this node holds, and whose it is.
type DataDir struct {
	Storage
	// mu guards id and writing once the node runs. It is not held during a write.
	mu sync.Mutex
	id Identity
	// writing is closed when the change of id that is being written is; nil when
	// there is none.
	writing chan struct{}
	// started says that the storage holds something worth keeping.
	started bool
}

// Owner is the node that a data directory is opened for. Empty fields are taken
// from the directory.
type Owner struct {
	// Role is what the directory is used for.
	Role string
	// ClusterID and NodeID name the cluster and the server.
	ClusterID, NodeID string
	// Joining makes an unused directory one of a server that joins a cluster. Disk
	// is what tells the directory from others then; "" draws it.
	Joining bool
	Disk    string
}

// OpenDataDir takes the storage and checks that it is the owner's. It writes
// nothing but the lock; Claim writes the identity.
//
// Errors: ErrDataDirInUse, ErrDataDirReadOnly, ErrForeignDataDir, ErrCorrupt.
func OpenDataDir(storage Storage, owner Owner) (*DataDir, error) {
	d := &DataDir{Storage: storage}
	if err := d.Acquire(); err != nil {
		return nil, err
	}
	if err := d.readIdentity(owner); err != nil {
		d.Discard()
		return nil, err
	}
	return d, nil
}

// NodeIn returns the node id that a data directory was first used with, "" when
// it has not been used or cannot be read: Open says what is wrong with it.
func NodeIn(dir string) string { return identityIn(dir).NodeID }

// ServerIn is the same for what raft knows the server by.
func ServerIn(dir string) raft.ServerID { return identityIn(dir).ServerID() }

// ClusterIn is the same for the id of the cluster.
func ClusterIn(dir string) string { return identityIn(dir).ClusterID }

// ClusterBefore reports whether the directory's cluster went by a name before it
// was recovered.
func ClusterBefore(dir, cluster string) bool {
	return slices.Contains(strings.Fields(identityIn(dir).Former), cluster)
}

func identityIn(dir string) (id Identity) {
	data, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil || json.Unmarshal(data, &id) != nil {
		return Identity{}
	}
	return id
}

func (d *DataDir) readIdentity(owner Owner) error {
	data, err := d.Identity()
	if err != nil || data == nil {
		return err
	}
	path := filepath.Join(d.Name(), identityFile)
	var version struct {
		FormatVersion int `json:"formatVersion"`
	}
	if json.Unmarshal(data, &version) == nil && version.FormatVersion > journalFormat {
		return fmt.Errorf("%w: %s has format %d, this release reads %d", ErrForeignDataDir, path, version.FormatVersion, journalFormat)
	}
	if d.id, err = decodeIdentity(data); err != nil {
		return Corruptf("%s: %w", path, err)
	}
	if d.id.FormatVersion < flushedFormat {
		return fmt.Errorf("%w: %s has format %d, this release reads %d", ErrForeignDataDir, path, d.id.FormatVersion, journalFormat)
	}
	for _, part := range []struct{ what, have, want string }{
		{"a " + d.id.Role + ", not of a " + owner.Role, d.id.Role, owner.Role},
		{fmt.Sprintf("cluster %q, not %q", d.id.ClusterID, owner.ClusterID), d.id.ClusterID, owner.ClusterID},
		{fmt.Sprintf("a server with the name %q, not %q", d.id.NodeID, owner.NodeID), d.id.NodeID, owner.NodeID},
	} {
		if part.want != "" && part.have != part.want && !(part.have == "" && d.id.Joining) {
			return fmt.Errorf("%w: %s is of %s", ErrForeignDataDir, d.Name(), part.what)
		}
	}
	return nil
}

// Claim makes an unused directory the configured node's.
func (d *DataDir) Claim(owner Owner) error {
	if d.id.FormatVersion != 0 {
		return nil
	}
	clusterID := owner.ClusterID
	if clusterID == "" && !owner.Joining {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		clusterID = hex.EncodeToString(b[:])
	}
	id := Identity{FormatVersion: flushedFormat, Role: owner.Role, ClusterID: clusterID, NodeID: owner.NodeID, Joining: owner.Joining}
	if id.Disk = owner.Disk; owner.Joining && id.Disk == "" {
		id.Disk = NewDisk()
	}
	return d.Change(func(now *Identity) { *now = id })
}

// NewDisk draws what tells a directory from others.
func NewDisk() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// ID returns the identity.
func (d *DataDir) ID() Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id
}

// Change makes a change to the identity, once it is on disk. Readers of the
// identity do not wait for the disk meanwhile, which may hang.
func (d *DataDir) Change(change func(*Identity)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.writing != nil {
		written := d.writing
		d.mu.Unlock()
		<-written
		d.mu.Lock()
	}
	after := d.id
	change(&after)
	if after == d.id {
		return nil
	}
	written := make(chan struct{})
	d.writing = written
	d.mu.Unlock()
	err := d.writeIdentity(after)
	d.mu.Lock()
	if err == nil {
		d.id = after
	}
	d.writing = nil
	close(written)
	return err
}

// Journaled implements JournalMark.
func (d *DataDir) Journaled() bool { return d.ID().FormatVersion == journalFormat }

// SetJournaled implements JournalMark.
func (d *DataDir) SetJournaled(journaled bool) error {
	return d.Change(func(id *Identity) {
		if id.FormatVersion = flushedFormat; journaled {
			id.FormatVersion = journalFormat
		}
	})
}

// JoinCluster notes the cluster that took this server in.
func (d *DataDir) JoinCluster(cluster string) error {
	if have := d.ID().ClusterID; have != "" && have != cluster {
		return fmt.Errorf("%w: %s is of cluster %q, not %q", ErrForeignDataDir, d.Name(), have, cluster)
	}
	return d.Change(func(id *Identity) { id.ClusterID = cluster })
}

// MarkRemoved records that this server was removed from the cluster.
func (d *DataDir) MarkRemoved() error {
	return d.Change(func(id *Identity) { id.Removed = true })
}

// MarkBootstrapped records that the log holds something: from then on an empty one is lost.
func (d *DataDir) MarkBootstrapped() error {
	return d.Change(func(id *Identity) { id.Bootstrapped = true })
}

// MarkJoined records that this server has held the cluster's whole state.
func (d *DataDir) MarkJoined() error {
	return d.Change(func(id *Identity) {
		if id.Joining {
			id.Bootstrapped, id.Joining = true, false
		}
	})
}

func (d *DataDir) writeIdentity(id Identity) error {
	var err error
	if id.Checksum, err = id.checksum(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	return d.SetIdentity(append(data, '\n'))
}

// Keep prevents Discard from removing what this start created.
func (d *DataDir) Keep() { d.started = true }

// Discard removes what this start created, unless Keep was called, and releases
// the storage.
func (d *DataDir) Discard() { d.Release(!d.started) }

// Close releases the storage.
func (d *DataDir) Close() { d.Release(false) }
