package admin

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// follower is a server whose own state lags behind what was acknowledged until
// it asks for a read point.
type follower struct {
	newest, own *store.Store
	reads       int
}

func (f *follower) Propose(_ context.Context, txn store.Txn) (store.Result, error) {
	r := f.newest.Apply(f.newest.Revision()+1, txn)
	return r, r.Err
}

func (f *follower) Read(context.Context) (resource.Revision, error) {
	f.reads++
	var file bytes.Buffer
	if err := f.newest.WriteSnapshot(&file); err != nil {
		return 0, err
	}
	snap, err := store.ReadSnapshot(&file)
	if err != nil {
		return 0, err
	}
	return f.newest.Revision(), f.own.Reset(snap)
}

// A refusal is given on the newest state only, and a write that is not refused
// asks nobody for it.
func TestRefusedOnTheNewestStateOnly(t *testing.T) {
	f := &follower{newest: store.New(store.DefaultOptions()), own: store.New(store.DefaultOptions())}
	now := func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	everybody := authz.Defaults{}
	require.NoError(t, everybody.Ensure(t.Context(), f.newest.View, f, now))
	_, err := f.Read(t.Context())
	require.NoError(t, err)
	f.reads = 0
	s := New(Config{
		Writer: f, Access: authz.New(f.own.View), Applied: f.own.Applied,
		Preview: func(txn store.Txn) (store.Result, store.Reader) { return f.own.Preview(txn) },
		View:    func() store.Reader { return f.own.View() },
		Source:  func(*resource.Descriptor) Source { return f.own },
		Owns:    func(*resource.Descriptor) error { return nil },
		Now:     now,
	})
	mesh := &meridianv1.ApplyRequest{RequestId: "a", Resources: []*meridianv1.Resource{message("Mesh", "", "demo", "{}")}}
	_, err = s.Apply(t.Context(), mesh)
	require.NoError(t, err)
	require.Zero(t, f.reads, "a write that is not refused needs no read point")

	// The mesh is not in this server's own state yet.
	_, err = s.Delete(t.Context(), &meridianv1.DeleteRequest{RequestId: "b", Keys: []*meridianv1.ResourceKey{{Kind: "Mesh", Name: "demo"}}})
	require.NoError(t, err)
	require.Equal(t, 1, f.reads)

	_, err = s.Delete(t.Context(), &meridianv1.DeleteRequest{RequestId: "c", Keys: []*meridianv1.ResourceKey{{Kind: "Mesh", Name: "demo"}}})
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.Greater(t, f.reads, 1, "that there is none is said after a look at the newest state")
	f.reads = 0

	_, err = s.Apply(t.Context(), &meridianv1.ApplyRequest{DryRun: true, Resources: mesh.GetResources()})
	require.NoError(t, err)
	require.Equal(t, 1, f.reads, "a dry run tells what the newest state would become")
}
