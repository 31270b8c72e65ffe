package proxyless

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meridian/internal/identity"
	"meridian/internal/meshca/meshcatest"
	"meridian/internal/resource"
)

// Once the token of a dataplane is revoked, who has a certificate that was issued on it is
// denied, also over a connection that is open; who has one of another token is not, and
// leaves the connection that it opened with the old one by itself, without a failed call.
func TestARevokedTokenEndsItsIdentity(t *testing.T) {
	z := newZone(t)
	z.apply(z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
	ca := meshcatest.Authority(t, "m")
	web := func(dataplane, token string) *meshcatest.Holder {
		return meshcatest.IssueOn(t, ca, "m", dataplane, token, resource.Tags{resource.ServiceTag: "web"})
	}
	own := newFiles(t)
	own.put(meshcatest.IssueOn(t, ca, "m", "backend-1", "backend", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, own)
	open := func(h *meshcatest.Holder) *grpc.ClientConn {
		conn, err := grpc.NewClient(server.address, grpc.WithTransportCredentials(presenting(t, h.Pair(t))))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		answer, err := call(t.Context(), conn, "/a.S/M")
		require.NoError(t, err)
		require.Equal(t, "backend-1", answer)
		return conn
	}
	stolen, other := open(web("web-1", "stolen")), open(web("web-2", "other"))

	// web-1 has been given another token, and a certificate on it, and is in the middle of
	// its calls.
	files := newFiles(t)
	files.put(web("web-1", "stolen"), ca.Roots())
	z.joins()
	renewed := z.dialMember(files)
	_, err := call(t.Context(), renewed, "/a.S/M")
	require.NoError(t, err)
	files.put(web("web-1", "new"), ca.Roots())
	for caller := ""; !strings.Contains(caller, identity.Credential("new")); { // until gRPC has read it
		conn, err := z.newMember(files)
		require.NoError(t, err)
		_, err = call(t.Context(), conn, "/a.S/M")
		require.NoError(t, errors.Join(err, conn.Close()))
		caller, _ = server.caller.Load().(string)
	}
	_, err = call(t.Context(), renewed, "/a.S/M")
	require.NoError(t, err)
	require.Contains(t, server.caller.Load(), identity.Credential("stolen"), "its connection lasts")

	z.apply(z.put(resource.KindTokenRevocation, "", "stolen", `{"use":"dataplane-token","id":"stolen"}`))
	z.follow(server)
	var denied error
	for status.Code(denied) != codes.PermissionDenied {
		_, denied = call(t.Context(), stolen, "/a.S/M")
		require.NoError(t, t.Context().Err())
	}
	require.ErrorContains(t, denied, `matched a deny policy "revoked-token"`)
	_, err = callBare(t, server.address, presenting(t, web("web-1", "stolen").Pair(t)))
	require.Equal(t, codes.PermissionDenied, status.Code(err), "by a new connection: %v", err)
	_, err = callBare(t, server.address, presenting(t, web("web-1", "new").Pair(t)))
	require.NoError(t, err, "the same dataplane, on another token")
	_, err = call(t.Context(), other, "/a.S/M")
	require.NoError(t, err)
	for err = denied; err != nil; { // until the server has had it connect again
		_, err = call(t.Context(), renewed, "/a.S/M")
		require.NoError(t, t.Context().Err())
	}

	// That the list changes again, and ends, fails no call of others.
	var load sync.WaitGroup
	stop := make(chan struct{})
	load.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := call(t.Context(), renewed, "/a.S/M"); err != nil {
				t.Errorf("a call failed: %v", err)
				return
			}
		}
	})
	z.apply(z.put(resource.KindTokenRevocation, "", "another", `{"use":"dataplane-token","id":"another"}`))
	z.follow(server)
	require.Empty(t, server.xds.Settle())
	for err = nil; status.Code(err) != codes.PermissionDenied; {
		_, err = callBare(t, server.address, presenting(t, web("web-3", "another").Pair(t)))
	}
	close(stop)
	load.Wait()
}
