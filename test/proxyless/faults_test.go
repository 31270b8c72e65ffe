package proxyless

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// always calls until so many calls in a row ended alike that half of them would not.
func always(t *testing.T, conn *grpc.ClientConn, want codes.Code) {
	t.Helper()
	for n := 0; n < 40; n++ {
		if _, err := call(t.Context(), conn, "/a.S/M"); status.Code(err) != want {
			n = 0
			require.NoError(t, t.Context().Err())
		}
	}
}

// A client delays and aborts calls as the entries of a MeshHTTPFault say, one after the
// other; a route with an entry of its own has its own.
func TestFaults(t *testing.T) {
	z, one := newZone(t), start(t, "one")
	z.apply(z.dataplane(one, "v1"))
	z.apply(z.put(resource.KindGRPCRoute, "m", "g", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"backendRefs":[{"kind":"Service","name":"backend"}]}]}`))
	conn := z.dial("xds:///backend")
	require.Equal(t, map[string]int{"one": 5}, answered(t, conn, 5, "/a.S/M"))
	fault := func(entries string) {
		z.apply(z.put(resource.KindMeshHTTPFault, "m", "p", `{"targetRef":{"kind":"Service","name":"web"},"to":[{"targetRef":{"kind":"Service","name":"backend"},"default":{"http":[`+entries+`]}}]}`))
	}
	code := func() codes.Code {
		_, err := call(t.Context(), conn, "/a.S/M")
		return status.Code(err)
	}
	become := func(want codes.Code) {
		t.Helper()
		for code() != want {
			require.NoError(t, t.Context().Err())
		}
	}
	fault(`{"delay":{"percentage":100,"value":"120ms"},"responseBandwidth":{"percentage":100,"limit":"1 kbps"}},{"abort":{"percentage":0,"httpStatus":404}},{"abort":{"percentage":100,"httpStatus":403}}`)
	become(codes.PermissionDenied)
	begun := time.Now()
	require.Equal(t, codes.PermissionDenied, code())
	require.GreaterOrEqual(t, time.Since(begun), 120*time.Millisecond)
	fault(`{"abort":{"percentage":50,"httpStatus":403}}`)
	become(codes.OK)
	aborted := 0
	const calls = 400
	for range calls {
		if code() == codes.PermissionDenied {
			aborted++
		}
	}
	// The deviation is 10: more than seven times as far does not happen.
	require.InDelta(t, calls/2, aborted, 75)
	fault(``)
	always(t, conn, codes.OK) // what was before serves half of the calls
	require.Equal(t, map[string]int{"one": 5}, answered(t, conn, 5, "/a.S/M"))
}

// A client meets the faults that the inbounds which it calls have for callers with its tags,
// where all of them have the same and no Envoy makes them; and its own before these.
func TestFaultsOfWhomIsCalled(t *testing.T) {
	z, one, two := newZone(t), start(t, "one"), start(t, "two")
	z.apply(z.dataplane(one, "v1"), z.dataplane(two, "v2"))
	conn := z.dial("xds:///backend")
	become := func(want codes.Code) {
		t.Helper()
		for {
			_, err := call(t.Context(), conn, "/a.S/M")
			if status.Code(err) == want {
				return
			}
			require.NoError(t, t.Context().Err())
		}
	}
	become(codes.OK)
	from := func(caller, target string) {
		z.apply(z.put(resource.KindMeshHTTPFault, "m", "p", `{"targetRef":`+target+`,"from":[{"targetRef":`+caller+`,"default":{"http":[{"abort":{"percentage":100,"httpStatus":403}}]}}]}`))
	}
	const web, other, every = `{"kind":"Service","name":"web"}`, `{"kind":"Service","name":"other"}`, `{"kind":"Mesh"}`
	from(web, every)
	become(codes.PermissionDenied)
	from(other, every)
	become(codes.OK)
	from(every, every)
	become(codes.PermissionDenied)
	// Instances that differ have none.
	from(web, `{"kind":"ServiceSubset","name":"backend","tags":{"version":"v1"}}`)
	become(codes.OK)
	// The clusters of a route have what their instances have.
	split := func(v1, v2 int) {
		z.apply(z.put(resource.KindTrafficRoute, "m", "r", fmt.Sprintf(`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],
			"conf":{"split":[{"weight":%d,"destination":{"kuma.io/service":"backend","version":"v1"}},{"weight":%d,"destination":{"kuma.io/service":"backend","version":"v2"}}]}}`, v1, v2)))
	}
	split(50, 50)
	become(codes.PermissionDenied)
	become(codes.OK) // the other cluster is there, too
	failed := 0
	for calls := 0; calls < 200; calls++ {
		name, err := call(t.Context(), conn, "/a.S/M")
		switch status.Code(err) {
		case codes.OK:
			require.Equal(t, "two", name)
		case codes.PermissionDenied:
			failed++
		case codes.Unavailable: // the test's server sends changes in no order
			calls--
			require.NoError(t, t.Context().Err())
		default:
			require.NoError(t, err)
		}
	}
	require.Greater(t, failed, 20)
	require.Less(t, failed, 180)
	split(0, 100)
	always(t, conn, codes.OK) // what was before serves half of the calls
	require.Equal(t, map[string]int{"two": 10}, answered(t, conn, 10, "/a.S/M"))
	split(100, 0)
	become(codes.PermissionDenied)

	// An Envoy in front of the instance makes them itself.
	z.feed.Listening(policy.DataplaneKey("m", "one"), true, false)
	z.apply()
	become(codes.OK)
	z.feed.Listening(policy.DataplaneKey("m", "one"), false, false)
	z.apply()
	become(codes.PermissionDenied)

	// The client's own faults come first, and the older kind has them, too.
	z.apply(z.put(resource.KindMeshHTTPFault, "m", "own", `{"targetRef":`+web+`,"to":[{"targetRef":`+every+`,"default":{"http":[{"abort":{"percentage":100,"httpStatus":404}}]}}]}`))
	become(codes.Unimplemented)
	z.apply(store.Delete(resource.Key{Kind: resource.KindMeshHTTPFault, Mesh: "m", Name: "own"}), store.Delete(resource.Key{Kind: resource.KindMeshHTTPFault, Mesh: "m", Name: "p"}))
	become(codes.OK)
	z.apply(z.put(resource.KindFaultInjection, "m", "f", `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{"abort":{"percentage":100,"httpStatus":403}}}`))
	become(codes.PermissionDenied)
	z.apply(store.Delete(resource.Key{Kind: resource.KindFaultInjection, Mesh: "m", Name: "f"}))
	become(codes.OK)
}
