package admin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// end is the last message of a page, which says where the list continues.
func end(page *listStream) *meridianv1.ListResponse {
	if len(page.Sent) == 0 {
		return nil
	}
	return page.Sent[len(page.Sent)-1]
}

func (f *fixture) page(req *meridianv1.ListRequest) (*listStream, error) {
	p := &listStream{Ctx: f.ctx}
	return p, f.service.List(req, p)
}

// Pages are of one revision, whatever is written between them, and together they are
// the list.
func TestPagesAreOfOneRevision(t *testing.T) {
	f := newFixture(t, nil)
	var stored []*meridianv1.Resource
	want := []string{"Mesh/default"}
	for i := range 10 {
		stored = append(stored, trafficLog(fmt.Sprintf("p%d", i), "x"))
		want = append(want, fmt.Sprintf("TrafficLog/p%d", i))
	}
	_, err := f.apply("1", stored...)
	require.NoError(t, err)
	for limit := range uint32(12) {
		req := &meridianv1.ListRequest{Kinds: []string{"TrafficLog", "Mesh"}, Limit: limit}
		var got []string
		var revision uint64
		for n := 0; n == 0 || req.PageToken != ""; n++ {
			p, err := f.page(req)
			require.NoError(t, err)
			if n == 0 {
				revision = end(p).GetRevision()
			}
			require.Equal(t, revision, end(p).GetRevision())
			if limit > 0 {
				require.LessOrEqual(t, len(listed(p)), int(limit))
			}
			got, req.PageToken = append(got, listed(p)...), end(p).GetNextPageToken()
			id := fmt.Sprintf("%d-%d", limit, n)
			_, err = f.apply("a"+id, trafficLog("p5-new", id))
			require.NoError(t, err)
			_, err = batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: "d" + id, Keys: []*meridianv1.ResourceKey{{Kind: "TrafficLog", Mesh: "default", Name: "p5-new"}}})
			require.NoError(t, err)
		}
		require.Equal(t, want, got, "limit %d", limit)
	}
}

// A page is bounded by bytes, too.
func TestPagesAreBoundedByBytes(t *testing.T) {
	f := newFixture(t, nil)
	var txn store.Txn
	for i := range 5 {
		m := trafficLog(fmt.Sprintf("p%d", i), "x")
		r := store.Restore(resource.Meta{
			Key: resource.Key{Kind: "TrafficLog", Mesh: "default", Name: m.GetName()}, Labels: map[string]string{"note": strings.Repeat("v", 7<<20)},
		}, m.GetSpec())
		txn.Ops = append(txn.Ops, store.Put(r))
	}
	require.NoError(t, f.store.Apply(f.store.Revision()+1, txn).Err)
	req := &meridianv1.ListRequest{Kinds: []string{"TrafficLog"}}
	for _, want := range []int{2, 2, 1} {
		p, err := f.page(req)
		require.NoError(t, err)
		require.Len(t, listed(p), want)
		req.PageToken = end(p).GetNextPageToken()
	}
	require.Empty(t, req.PageToken)
}

func TestPagesThatAreNotRetained(t *testing.T) {
	f := newFixture(t, nil)
	_, err := f.apply("1", trafficLog("a", "x"), trafficLog("b", "x"))
	require.NoError(t, err)
	p, err := f.page(&meridianv1.ListRequest{Limit: 1})
	require.NoError(t, err)
	require.NotEmpty(t, end(p).GetNextPageToken())
	token, err := readPageToken(end(p).GetNextPageToken())
	require.NoError(t, err)

	another := *token
	another.At = store.Position{Revisions: token.At.Revisions, Histories: []uint64{token.At.Histories[0] + 1}}
	future := *token
	future.At = store.Position{Revisions: []resource.Revision{token.At.Revisions[0] + 1000}, Histories: token.At.Histories}
	fewer := *token
	fewer.At = store.Position{}
	for name, wrong := range map[string]pageToken{"another history": another, "a revision that is not written": future, "another server's stores": fewer} {
		text, err := wrong.encode()
		require.NoError(t, err)
		_, err = f.page(&meridianv1.ListRequest{PageToken: text})
		requireCode(t, err, rpcerr.OutOfRange, "list from the beginning")
		require.True(t, rpcerr.HasReason(err, ReasonPageExpired), name)
	}
	for _, wrong := range []string{"x", "!!", strings.Repeat("A", maxPageToken+1)} {
		_, err = f.page(&meridianv1.ListRequest{PageToken: wrong})
		requireCode(t, err, rpcerr.Invalid, "page_token is not one that a list has returned")
	}
}

// A token grants nothing: a page shows what its caller may read.
func TestPageTokensGrantNothing(t *testing.T) {
	s := newGranted(t)
	s.must("data", permissionIn("demo", "a", "backend"), permissionIn("demo", "b", "other"), timeoutIn("demo", "c"))
	p := &listStream{Ctx: user("ann")}
	require.NoError(t, s.List(&meridianv1.ListRequest{Limit: 1}, p))
	require.NotEmpty(t, end(p).GetNextPageToken())
	eve := &listStream{Ctx: user("eve")}
	require.NoError(t, s.List(&meridianv1.ListRequest{PageToken: end(p).GetNextPageToken()}, eve))
	require.Empty(t, listed(eve))
}

// FuzzPageToken: whatever a token is, a list answers with a page or an error of the
// caller's.
func FuzzPageToken(f *testing.F) {
	for _, seed := range []pageToken{{}, {At: store.Position{Revisions: []resource.Revision{1}, Histories: []uint64{0}}, After: resource.Key{Kind: "Mesh", Name: "a"}}} {
		text, err := seed.encode()
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add("e30")
	s := store.New(store.DefaultOptions())
	mesh, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: "Mesh", Name: "default"}}, []byte("{}"))
	require.NoError(f, err)
	require.NoError(f, s.Apply(1, store.Txn{Ops: []store.Op{store.Put(mesh)}}).Err)
	f.Fuzz(func(t *testing.T, text string) {
		token, err := readPageToken(text)
		if err != nil {
			requireCode(t, err, rpcerr.Invalid)
			return
		}
		if token == nil {
			require.Empty(t, text)
			return
		}
		view, at, err := store.ReadAt([]*store.Store{s}, &token.At)
		if err == nil {
			require.LessOrEqual(t, view.Revision(), s.Revision())
			require.Equal(t, token.At.Revisions, at.Revisions)
		}
	})
}
