package admin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// §1.1: labels are limited when they are written.
func TestLabelsAreChecked(t *testing.T) {
	f := newFixture(t, nil)
	large := trafficLog("a", "x")
	large.Labels = map[string]string{"note": strings.Repeat("v", resource.MaxLabelValue+1)}
	_, err := f.apply("1", large)
	requireCode(t, err, rpcerr.Invalid, "takes 4097 bytes")
	large.Labels = map[string]string{"note": strings.Repeat("v", resource.MaxLabelValue)}
	_, err = f.apply("2", large)
	require.NoError(t, err)
}

// A batch counts with everything that it holds, not its specs alone.
func TestBatchesCountEverything(t *testing.T) {
	f := newFixture(t, nil)
	var large []*meridianv1.Resource
	for i := range 17 << 20 / (resource.MaxLabelBytes - 400) {
		m := trafficLog(fmt.Sprintf("p%d", i), "x")
		m.Labels = map[string]string{}
		for _, name := range []string{"a", "b", "c"} {
			m.Labels[name] = strings.Repeat("v", resource.MaxLabelValue)
		}
		m.Name, m.Labels["d"] = m.Name+"."+strings.Repeat("n", 240), strings.Repeat("v", resource.MaxLabelValue-100)
		large = append(large, m)
	}
	_, err := f.apply("1", large...)
	requireCode(t, err, rpcerr.Invalid, "MiB of resources; a batch has at most 16 MiB: split it")
	require.True(t, rpcerr.HasReason(err, "BATCH_TOO_LARGE"))

	_, err = f.apply("2", large[:len(large)/2]...)
	require.NoError(t, err)
	_, err = f.apply("3", large[len(large)/2:]...)
	require.NoError(t, err)
	var keys []*meridianv1.ResourceKey
	for _, m := range large {
		keys = append(keys, &meridianv1.ResourceKey{Kind: m.GetKind(), Mesh: m.GetMesh(), Name: m.GetName()})
	}
	_, err = batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: "4", Keys: keys})
	requireCode(t, err, rpcerr.Invalid, "the batch removes", "split it")
	_, err = batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: "5", Keys: keys[:len(keys)/2]})
	require.NoError(t, err)
}

// Resources that an earlier release stored with labels of any size are loaded,
// listed in messages of a bounded size, and can be deleted.
func TestLargeLabelsOfAnEarlierRelease(t *testing.T) {
	f := newFixture(t, nil)
	huge := map[string]string{"\x1b[2J": strings.Repeat("v", 7<<20)}
	txn := store.Txn{}
	for _, name := range []string{"a", "b"} {
		m := trafficLog(name, "x")
		r := store.Restore(resource.Meta{Key: resource.Key{Kind: "TrafficLog", Mesh: "default", Name: name}, Labels: huge}, m.GetSpec())
		_, unreadable := r.Spec().(*store.Unreadable)
		require.False(t, unreadable)
		txn.Ops = append(txn.Ops, store.Put(r))
	}
	require.NoError(t, f.store.Apply(f.store.Revision()+1, txn).Err)
	all := &listStream{Ctx: f.ctx}
	require.NoError(t, f.service.List(&meridianv1.ListRequest{}, all))
	require.Contains(t, listed(all), "TrafficLog/a")
	require.Contains(t, listed(all), "TrafficLog/b")
	for _, page := range all.Sent {
		require.Less(t, proto.Size(page), 8<<20, "each has a message of its own")
	}
	_, err := batch.Delete(f.ctx, f, &meridianv1.DeleteRequest{RequestId: "1", Keys: []*meridianv1.ResourceKey{{Kind: "TrafficLog", Mesh: "default", Name: "a"}}})
	require.NoError(t, err)
}
