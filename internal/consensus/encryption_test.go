package consensus

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/atrest"
	"meridian/internal/raftlog"
	"meridian/internal/store"
)

func encryptionKeys(t testing.TB, lines ...string) *atrest.Keys {
	t.Helper()
	for i, line := range lines {
		if len(line) == 1 {
			lines[i] = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(line), 32))
		}
	}
	keys, err := atrest.Parse([]byte(strings.Join(lines, "\n")))
	require.NoError(t, err)
	return keys
}

// filesWith are the files below a directory that contain a text.
func filesWith(t testing.TB, dir, text string) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			found = append(found, path)
		}
		return err
	}))
	return found
}

// contents are the files below a directory with what they hold.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	}))
	return all
}

// Encryption is turned on, its key is rotated, and it is turned off again, each by
// a restart with another file of keys. With a key that does not fit nothing is
// changed.
func TestEncryptionAtRest(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.Snapshots.TrailingLogs = 3
	marker := base64.StdEncoding.EncodeToString([]byte("123456789012345678"))
	secret := func(name string) store.Op { return put(name, 123456789012345678) }
	start := func(keys *atrest.Keys) (*Node, *store.Store) {
		t.Helper()
		cfg.Encryption = keys
		return open(t, cfg)
	}
	requireSecrets := func(st *store.Store, names ...string) {
		t.Helper()
		for _, name := range names {
			value, _ := stored(t, st.View(), name)
			require.Equal(t, 123456789012345678, value, name)
		}
	}
	requireRefused := func(keys *atrest.Keys, key string) {
		t.Helper()
		before := contents(t, dir)
		cfg.Encryption = keys
		_, err := Open(context.Background(), cfg, store.New(store.DefaultOptions()))
		require.ErrorIs(t, err, raftlog.ErrNoKey)
		require.ErrorContains(t, err, "it is encrypted with key "+key)
		require.NotErrorIs(t, err, raftlog.ErrCorrupt, "nothing is damaged, and nothing is to be moved away")
		require.Equal(t, before, contents(t, dir), "nothing was changed")
	}

	// As many snapshots as are kept: each is written again.
	snapshots := func(n *Node, name string) {
		t.Helper()
		for range cfg.Snapshots.Retain {
			propose(t, n, secret(name))
			require.NoError(t, n.Snapshot())
		}
	}

	n, _ := start(nil)
	snapshots(n, "plain")
	propose(t, n, secret("plain-log"))
	require.NoError(t, n.Close())
	require.NotEmpty(t, filesWith(t, dir, marker), "what the test looks for is there to be found")

	a, ab, b := encryptionKeys(t, "a"), encryptionKeys(t, "b", "a"), encryptionKeys(t, "b")
	keyA, _ := a.First()
	keyB, _ := b.First()
	n, st := start(a)
	require.Empty(t, filesWith(t, dir, marker), "what was there is written again, into new files")
	requireSecrets(st, "plain", "plain-log")
	snapshots(n, "encrypted")
	propose(t, n, secret("encrypted-log"))
	require.Empty(t, filesWith(t, dir, marker))
	require.NoError(t, n.Close())

	requireRefused(nil, keyA.String())
	requireRefused(b, keyA.String())

	n, st = start(ab)
	requireSecrets(st, "plain", "plain-log", "encrypted", "encrypted-log")
	require.NoError(t, n.Close())
	kept, err := filepath.Glob(filepath.Join(dir, "raft", "snapshots", "*"))
	require.NoError(t, err)
	require.Len(t, kept, cfg.Snapshots.Retain)
	requireRefused(a, keyB.String())
	n, st = start(b)
	requireSecrets(st, "plain", "plain-log", "encrypted", "encrypted-log")
	require.Empty(t, filesWith(t, dir, marker))
	require.NoError(t, n.Close())

	n, _ = start(encryptionKeys(t, atrest.Off, "b"))
	require.NoError(t, n.Close())
	require.NotEmpty(t, filesWith(t, dir, marker))
	n, st = start(nil)
	requireSecrets(st, "plain", "plain-log", "encrypted", "encrypted-log")
	require.NoError(t, n.Close())
}

// A rewrite that a crash cut off is done by the next start. When that has nothing to
// write again, such as with the key that was to be given up, what was left is removed
// all the same: it may hold in plain text what is encrypted.
func TestEncryptionAfterACrash(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	n, _ := open(t, cfg)
	fill(t, n, 1, 600)
	require.NoError(t, n.Snapshot())
	propose(t, n, put("k", 7))
	require.NoError(t, n.Close())
	left := filepath.Join(dir, "raft", "log.db.new")
	require.NoError(t, os.WriteFile(left, []byte("half of a log"), 0o600))
	cfg.Encryption = encryptionKeys(t, "a")
	n, st := open(t, cfg)
	value, _ := stored(t, st.View(), "k")
	require.Equal(t, 7, value)
	require.NoFileExists(t, left)
	require.NoError(t, n.Close())

	require.NoError(t, os.WriteFile(left, []byte("a log in plain text"), 0o600))
	_, st = open(t, cfg)
	value, _ = stored(t, st.View(), "k")
	require.Equal(t, 7, value)
	require.NoFileExists(t, left)
}

// A backup is as the disk is, and needs the key where it is restored.
func TestEncryptedBackups(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Encryption = encryptionKeys(t, "a")
	n, _ := open(t, cfg)
	propose(t, n, put("k", 123456789012345678))
	var file bytes.Buffer
	_, err := n.SaveBackup(t.Context(), &file, false)
	require.NoError(t, err)
	require.NotContains(t, file.String(), base64.StdEncoding.EncodeToString([]byte("123456789012345678")))
	id, err := atrest.Complete(bytes.NewReader(file.Bytes()))
	require.NoError(t, err)
	want, _ := cfg.Encryption.First()
	require.Equal(t, want, id)

	for name, tc := range map[string]struct {
		keys *atrest.Keys
		fail string
	}{
		"the key":      {keys: encryptionKeys(t, "a")},
		"also the key": {keys: encryptionKeys(t, "b", "a")},
		"no key":       {fail: fmt.Sprintf(`server "one" leads and cannot read it: the key is not there: it is encrypted with key %s`, want)},
		"another key":  {keys: encryptionKeys(t, "b"), fail: "the key is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			cfg.Encryption = tc.keys
			n, st := open(t, cfg)
			before := st.View()
			_, err := n.restorer.Restore(t.Context(), bytes.NewReader(file.Bytes()), false)
			if tc.fail != "" {
				require.ErrorIs(t, err, ErrBadBackup)
				require.ErrorContains(t, err, tc.fail)
				require.Same(t, before, st.View())
				return
			}
			require.NoError(t, err)
			value, _ := stored(t, st.View(), "k")
			require.Equal(t, 123456789012345678, value)
			_, err = n.restorer.Restore(t.Context(), bytes.NewReader(file.Bytes()[:file.Len()-1]), false)
			require.ErrorIs(t, err, ErrBadBackup)
			require.ErrorIs(t, err, atrest.ErrDamaged)
		})
	}
}
