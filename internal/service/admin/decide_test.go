package admin

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/batch"
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
		Writer: newest, Access: authz.New(own.View), Applied: own.Applied, Remembers: own.Remembers,
		Preview: PreviewOf(own),
		View:    func() store.Reader { return own.View() },
		Stores:  func() []*store.Store { return []*store.Store{own} },
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

// TestAForgottenRequestIsNotRepeated: a request that is sent again after its id was
// forgotten is refused, for it may have taken effect; one that is remembered is
// answered, and one that was first sent after anything that is forgotten is made.
func TestAForgottenRequestIsNotRepeated(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opts := store.DefaultOptions()
	opts.Requests = store.Requests{MaxAge: 15 * time.Minute, MaxBytes: 64 << 20}
	st := store.New(opts)
	log := committest.New(st)
	require.NoError(t, (authz.Defaults{}).Ensure(t.Context(), st.View, log, func() time.Time { return now }))
	s := New(Config{
		Writer: log, Access: authz.New(st.View), Applied: st.Applied, Remembers: st.Remembers,
		Preview: PreviewOf(st),
		View:    func() store.Reader { return st.View() },
		Stores:  func() []*store.Store { return []*store.Store{st} },
		Source:  func(*resource.Descriptor) Source { return st },
		Owns:    func(*resource.Descriptor) error { return nil },
		Now:     func() time.Time { return now },
	})
	apply := func(id string, age time.Duration) error {
		sent, _ := metadata.FromOutgoingContext(batch.WithAge(t.Context(), age))
		_, err := s.ApplyBatch(metadata.NewIncomingContext(t.Context(), sent), &meridianv1.ApplyRequest{
			RequestId: id, Resources: []*meridianv1.Resource{message("Mesh", "", id, "{}")},
		})
		return err
	}
	// Requests between these: a jump of the clock counts a third of MaxAge at most.
	pass := func(id string) {
		now = now.Add(5 * time.Minute)
		require.NoError(t, apply(id, 0))
		now = now.Add(5 * time.Minute)
	}
	require.NoError(t, apply("first", 0))
	pass("between-1")
	require.NoError(t, apply("second", 0))
	require.NoError(t, apply("first", 10*time.Minute), "it is remembered")
	pass("between-2")
	require.NoError(t, apply("third", 0))

	err := apply("first", 20*time.Minute)
	require.Equal(t, rpcerr.EffectUnknown, rpcerr.EffectOf(err))
	require.True(t, rpcerr.HasReason(err, "REQUEST_FORGOTTEN"), "%v", err)
	require.NoError(t, apply("second", 10*time.Minute))
	require.NoError(t, apply("lost", 10*time.Minute), "no id of that time is forgotten: it was not applied")
}
