package proxyless

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meridian/internal/resource"
)

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
	become(codes.OK)
	require.Equal(t, map[string]int{"one": 5}, answered(t, conn, 5, "/a.S/M"))
}
