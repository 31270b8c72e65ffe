package admin

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/commit/committest"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// A refusal is given on the newest state only, and a write that is not refused
// needs no read point.
func TestRefusedOnTheNewestStateOnly(t *testing.T) {
	// own lags behind what was acknowledged until the server asks for a read point.
	newest, own := committest.New(store.New(store.DefaultOptions())), store.New(store.DefaultOptions())
	reads := 0
	newest.Reading(func() error {
		reads++
		var file bytes.Buffer
		if err := newest.WriteSnapshot(&file); err != nil {
			return err
		}
		snap, err := store.ReadSnapshot(&file)
		if err != nil {
			return err
		}
		return own.Reset(snap)
	})
	now := func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	defaults := authz.Defaults{}
	require.NoError(t, defaults.Ensure(t.Context(), newest.View, newest, now))
	_, err := newest.Read(t.Context())
	require.NoError(t, err)
	reads = 0
	s := New(Config{
		Writer: newest, Access: authz.New(own.View), Applied: own.Applied,
		Preview: func(txn store.Txn) (store.Result, store.Reader) { return own.Preview(txn) },
		View:    func() store.Reader { return own.View() },
		Source:  func(*resource.Descriptor) Source { return own },
		Owns:    func(*resource.Descriptor) error { return nil },
		Now:     now,
	})
	mesh := &meridianv1.ApplyRequest{RequestId: "a", Resources: []*meridianv1.Resource{message("Mesh", "", "demo", "{}")}}
	_, err = s.ApplyBatch(t.Context(), mesh)
	require.NoError(t, err)
	require.Zero(t, reads, "a write that is not refused needs no read point")

	// The mesh is not in this server's own state yet.
	_, err = s.DeleteBatch(t.Context(), &meridianv1.DeleteRequest{RequestId: "b", Keys: []*meridianv1.ResourceKey{{Kind: "Mesh", Name: "demo"}}})
	require.NoError(t, err)
	require.Equal(t, 1, reads)

	_, err = s.DeleteBatch(t.Context(), &meridianv1.DeleteRequest{RequestId: "c", Keys: []*meridianv1.ResourceKey{{Kind: "Mesh", Name: "demo"}}})
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.Greater(t, reads, 1, "that there is none is said after a look at the newest state")
	reads = 0

	_, err = s.ApplyBatch(t.Context(), &meridianv1.ApplyRequest{DryRun: true, Resources: mesh.GetResources()})
	require.NoError(t, err)
	require.Equal(t, 1, reads, "a dry run tells what the newest state would become")
}
