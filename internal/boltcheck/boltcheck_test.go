package boltcheck

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

// build writes a file with two buckets, one too small for a page of its own.
func build(t require.TestingT, path string, n int) map[string]string {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true})
	require.NoError(t, err)
	want := map[string]string{}
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		for bucket, count := range map[string]int{"large": n, "small": 2} {
			b, err := tx.CreateBucket([]byte(bucket))
			if err != nil {
				return err
			}
			for i := range count {
				k, v := fmt.Sprintf("key-%04d", i), fmt.Sprintf("%0*d", 1+i*37%300, i)
				want[bucket+"/"+k] = v
				if err := b.Put([]byte(k), []byte(v)); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	require.NoError(t, db.Close())
	return want
}

func TestSalvageSeesWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		path := filepath.Join(t.TempDir(), "f")
		want := build(rt, path, rapid.IntRange(0, 800).Draw(rt, "keys"))
		got := map[string]string{}
		damage, err := Salvage(path, func(bucket string, k, v []byte) { got[bucket+"/"+string(k)] = string(v) })
		require.NoError(rt, err)
		require.Empty(rt, damage)
		require.Equal(rt, want, got)
		require.NoError(rt, CheckKeys(path, nil))
	})
}

// TestDamage: whatever is flipped or cut off, the walk ends and does not panic,
// and CheckKeys and Salvage agree on whether the structure is intact.
func TestDamage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		path := filepath.Join(t.TempDir(), "f")
		build(rt, path, rapid.IntRange(0, 800).Draw(rt, "keys"))
		raw, err := os.ReadFile(path)
		require.NoError(rt, err)
		for range rapid.IntRange(0, 5).Draw(rt, "flips") {
			raw[rapid.IntRange(0, len(raw)-1).Draw(rt, "offset")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		}
		if rapid.Bool().Draw(rt, "cut") {
			raw = raw[:rapid.IntRange(1, len(raw)).Draw(rt, "size")]
		}
		require.NoError(rt, os.WriteFile(path, raw, 0o600))
		damage, err := Salvage(path, func(string, []byte, []byte) {})
		require.NoError(rt, err)
		require.Equal(rt, len(damage) == 0, CheckKeys(path, nil) == nil)
	})
}

func TestNotAFile(t *testing.T) {
	_, err := Salvage(filepath.Join(t.TempDir(), "missing"), func(string, []byte, []byte) {})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorIs(t, CheckKeys(filepath.Join(t.TempDir(), "missing"), nil), os.ErrNotExist)
}
