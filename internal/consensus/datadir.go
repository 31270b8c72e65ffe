package consensus

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	identityFile   = "identity.json"
	lockFile       = "LOCK"
	raftDir        = "raft"
	logFile        = "log.db"
	snapshotsDir   = "snapshots"
	identityFormat = 1
)

// identity says whose data directory this is. It is the first file written.
type identity struct {
	FormatVersion int    `json:"formatVersion"`
	Role          Role   `json:"role"`
	ClusterID     string `json:"clusterId"`
	NodeID        string `json:"nodeId"`
	// Bootstrapped says that the log has been begun: from then on an empty one
	// is a lost one.
	Bootstrapped bool `json:"bootstrapped"`
}

// dataDir is a data directory that this process holds the lock of.
type dataDir struct {
	path string
	lock *os.File
	id   identity
	// made lists what this process created in a directory that was new, so that
	// a failed start leaves nothing behind; nil once there is something to keep.
	made []string
}

// openDataDir locks the directory and checks that it is the configured node's.
// It writes nothing but the lock; claim writes the identity.
func openDataDir(cfg Config) (_ *dataDir, err error) {
	d := &dataDir{path: cfg.DataDir}
	if _, err := os.Stat(d.path); errors.Is(err, fs.ErrNotExist) {
		d.made = append(d.made, d.path)
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, dataDirError(d.path, err)
	}
	lockPath := filepath.Join(d.path, lockFile)
	if _, err := os.Stat(lockPath); errors.Is(err, fs.ErrNotExist) {
		d.made = append(d.made, lockPath)
	}
	d.lock, err = acquireLock(lockPath)
	if err != nil {
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("%w: %s", ErrDataDirInUse, d.path)
		}
		d.discard()
		return nil, dataDirError(d.path, err)
	}
	if err := d.readIdentity(cfg); err != nil {
		d.discard()
		return nil, err
	}
	return d, nil
}

// NodeIn returns the node id that a data directory was first used with, "" when
// it has not been used or cannot be read: Open says what is wrong with it.
func NodeIn(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil {
		return ""
	}
	var id identity
	if json.Unmarshal(data, &id) != nil {
		return ""
	}
	return id.NodeID
}

func (d *dataDir) readIdentity(cfg Config) error {
	path := filepath.Join(d.path, identityFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(d.path, raftDir)); err == nil {
			return fmt.Errorf("%w: %s holds a raft log but no %s", ErrForeignDataDir, d.path, identityFile)
		}
		return nil
	}
	if err != nil {
		return dataDirError(d.path, err)
	}
	d.made = nil
	if err := json.Unmarshal(data, &d.id); err != nil {
		return corruptf("%s: %w", path, err)
	}
	if d.id.FormatVersion != identityFormat {
		return fmt.Errorf("%w: %s has format %d, this release reads %d", ErrForeignDataDir, path, d.id.FormatVersion, identityFormat)
	}
	for _, part := range []struct{ what, have, want string }{
		{"a " + string(d.id.Role) + ", not of a " + string(cfg.Role), string(d.id.Role), string(cfg.Role)},
		{fmt.Sprintf("cluster %q, not %q", d.id.ClusterID, cfg.ClusterID), d.id.ClusterID, cfg.ClusterID},
		{fmt.Sprintf("a server with the name %q, not %q", d.id.NodeID, cfg.NodeID), d.id.NodeID, cfg.NodeID},
	} {
		if part.want != "" && part.have != part.want {
			return fmt.Errorf("%w: %s is of %s", ErrForeignDataDir, d.path, part.what)
		}
	}
	return nil
}

// claim makes an unused directory the configured node's.
func (d *dataDir) claim(cfg Config) error {
	if d.id.FormatVersion != 0 {
		return nil
	}
	clusterID := cfg.ClusterID
	if clusterID == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		clusterID = hex.EncodeToString(b[:])
	}
	d.id = identity{FormatVersion: identityFormat, Role: cfg.Role, ClusterID: clusterID, NodeID: cfg.NodeID}
	d.made = append(d.made, filepath.Join(d.path, identityFile), filepath.Join(d.path, raftDir))
	return d.writeIdentity()
}

// markBootstrapped records that the log has been begun.
func (d *dataDir) markBootstrapped() error {
	if d.id.Bootstrapped {
		return nil
	}
	d.id.Bootstrapped = true
	return d.writeIdentity()
}

func (d *dataDir) writeIdentity() error {
	data, err := json.MarshalIndent(d.id, "", "  ")
	if err != nil {
		return fmt.Errorf("consensus: encode identity: %w", err)
	}
	if err := writeFile(filepath.Join(d.path, identityFile), append(data, '\n')); err != nil {
		return dataDirError(d.path, err)
	}
	return nil
}

func (d *dataDir) logPath() string      { return filepath.Join(d.path, raftDir, logFile) }
func (d *dataDir) raftPath() string     { return filepath.Join(d.path, raftDir) }
func (d *dataDir) snapshotPath() string { return filepath.Join(d.path, raftDir, snapshotsDir) }

// keep says that the directory now holds something worth keeping.
func (d *dataDir) keep() { d.made = nil }

// discard removes what this process created, unless keep was called, and
// releases the lock.
func (d *dataDir) discard() {
	for i := len(d.made) - 1; i >= 0; i-- {
		if d.made[i] == filepath.Join(d.path, raftDir) {
			_ = os.RemoveAll(d.made[i])
			continue
		}
		_ = os.Remove(d.made[i]) // a directory others have put files into stays
	}
	d.release()
}

// release lets other processes have the directory.
func (d *dataDir) release() {
	if d.lock != nil {
		_ = d.lock.Close()
		d.lock = nil
	}
}

// writeFile replaces a file so that after a crash it has the old content or the
// new.
func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory survive a power cut.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
