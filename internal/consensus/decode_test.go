package consensus

import (
	"bytes"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"meridian/internal/store"
)

// entryAt is an entry that names a request.
func entryAt(t *testing.T, index uint64, id string) *raft.Log {
	t.Helper()
	data, err := store.EncodeCommand(store.Txn{RequestID: id, Time: time.Unix(1, 0)})
	require.NoError(t, err)
	return &raft.Log{Index: index, Type: raft.LogCommand, Data: data}
}

// Entries are decoded when they are written, and what is known of one is used for these
// bytes alone.
func TestEntriesAreDecodedWhenTheyAreWritten(t *testing.T) {
	var d decoder
	first, second, third := entryAt(t, 1, "first"), entryAt(t, 2, "second"), entryAt(t, 3, "third")
	d.begin([]*raft.Log{first, {Index: 4, Type: raft.LogNoop}})
	d.begin([]*raft.Log{second, third})
	d.end()
	txn, ok := d.take(first)
	require.True(t, ok)
	require.Equal(t, "first", txn.RequestID)
	_, ok = d.take(first)
	require.False(t, ok, "it was taken")

	_, ok = d.take(&raft.Log{Index: 2, Type: raft.LogCommand, Data: bytes.Clone(second.Data)})
	require.False(t, ok, "other bytes, though equal")
	txn, err := d.txn(third)
	require.NoError(t, err)
	require.Equal(t, "third", txn.RequestID)
	require.Empty(t, d.waiting)
	require.Zero(t, d.bytes)

	d.begin([]*raft.Log{second})
	d.end()
	require.Empty(t, d.waiting, "it was applied before it was decoded")
}

// An end of the log that another leader's takes the place of is forgotten.
func TestEntriesThatAreWrittenOverAreForgotten(t *testing.T) {
	var d decoder
	d.begin([]*raft.Log{entryAt(t, 1, "a"), entryAt(t, 2, "b"), entryAt(t, 3, "c")})
	d.end()
	other := entryAt(t, 2, "other")
	d.begin([]*raft.Log{other})
	d.end()
	require.Len(t, d.waiting, 2)
	txn, ok := d.take(other)
	require.True(t, ok)
	require.Equal(t, "other", txn.RequestID)
	require.Empty(t, d.waiting)
	require.Zero(t, d.bytes)
}

// What waits to be applied is bounded, and what cannot be decoded is left to the state
// machine, which stops at it.
func TestDecodingAheadIsBounded(t *testing.T) {
	var d decoder
	for i := range uint64(decodeEntries + 10) {
		d.begin([]*raft.Log{entryAt(t, i+1, "x")})
		d.end()
	}
	require.Len(t, d.waiting, decodeEntries)
	last := entryAt(t, decodeEntries+5, "last")
	txn, err := d.txn(last)
	require.NoError(t, err)
	require.Equal(t, "last", txn.RequestID)
	require.Empty(t, d.waiting)

	d.begin([]*raft.Log{{Index: 5000, Type: raft.LogCommand, Data: make([]byte, decodeBytes+1)}})
	broken := &raft.Log{Index: 5001, Type: raft.LogCommand, Data: []byte("broken")}
	d.begin([]*raft.Log{broken})
	d.end()
	require.Empty(t, d.waiting)
	_, err = d.txn(broken)
	require.ErrorIs(t, err, store.ErrUnknownFormat)
}

// A server applies what was decoded while it was written. That its disk takes longer than
// decoding is not certain of any one write.
func TestServersApplyWhatWasDecodedBefore(t *testing.T) {
	n, _ := open(t, testConfig(t.TempDir()))
	for i := 0; i < 1000 && n.decoder.known() == 0; i++ {
		result := propose(t, n, put("k", i))
		require.NoError(t, result.Err)
	}
	require.Positive(t, n.decoder.known())
}
