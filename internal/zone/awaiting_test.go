package zone

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/resource"
	"meridian/internal/xds/enforce"
)

// saying is a connection to a server that says what a test has it say, and fails where that is
// nil.
type saying chan *peerv1.AwaitProxiesResponse

var errSilent = errors.New("silent")

func (saying) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return errSilent }

func (s saying) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &sayingStream{ctx: ctx, said: s}, nil
}

type sayingStream struct {
	grpc.ClientStream
	ctx  context.Context
	said saying
}

func (*sayingStream) SendMsg(any) error { return nil }
func (*sayingStream) CloseSend() error  { return nil }

func (s *sayingStream) RecvMsg(into any) error {
	select {
	case response := <-s.said:
		if response == nil {
			return errSilent
		}
		proto.Merge(into.(proto.Message), response)
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func proxyKey(name string) resource.Key {
	return resource.Key{Kind: resource.KindDataplane, Mesh: "default", Name: name}
}

// A wait is for the proxies of all servers: one of which nothing is known is waited for, too,
// unless its proxies have gone to the others. One that fails is asked again.
func TestTheProxiesOfOtherServersAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two, three := make(saying), make(saying)
		lost := map[string]bool{}
		a := awaitServers(t.Context(), []cluster.Peer{{Name: "two", Conn: two}, {Name: "three", Conn: three}}, func(s string) bool { return lost[s] }, 7)
		defer a.stop()
		behind := func() (map[resource.Key]enforce.State, []string) {
			synctest.Wait()
			states := map[resource.Key]enforce.State{}
			unknown := a.behind(states)
			return states, unknown
		}
		_, unknown := behind()
		require.Equal(t, []string{"three", "two"}, unknown)

		two <- encodeBehind(map[resource.Key]enforce.State{proxyKey("a"): enforce.Pending, proxyKey("b"): enforce.Rejected})
		three <- encodeBehind(nil)
		states, unknown := behind()
		require.Empty(t, unknown)
		require.Equal(t, map[resource.Key]enforce.State{proxyKey("a"): enforce.Pending, proxyKey("b"): enforce.Rejected}, states)

		two <- nil // its connection fails
		states, unknown = behind()
		require.Empty(t, states)
		require.Equal(t, []string{"two"}, unknown)
		lost["two"] = true
		_, unknown = behind()
		require.Empty(t, unknown)
		lost["two"] = false

		two <- encodeBehind(map[resource.Key]enforce.State{proxyKey("b"): enforce.Rejected}) // when asked again
		states, unknown = behind()
		require.Empty(t, unknown)
		require.Len(t, states, 1)
		two <- encodeBehind(nil)
		states, unknown = behind()
		require.Empty(t, states)
		require.Empty(t, unknown)
	})
	require.Empty(t, (*awaiting)(nil).behind(nil), "in a zone of one")
	require.Nil(t, (*otherServers)(nil).awaiting(t.Context(), 1))
}

// Where more are behind than are named, those that are pending are named first: the wait is
// not over because all that are named have rejected it.
func TestPendingProxiesAreNamedFirst(t *testing.T) {
	states := map[resource.Key]enforce.State{proxyKey("z"): enforce.Pending}
	for i := range maxAwaited {
		states[proxyKey(fmt.Sprint("a-", i))] = enforce.Rejected
	}
	behind := encodeBehind(states).GetBehind()
	require.Len(t, behind, maxAwaited)
	require.Equal(t, "z", behind[0].GetDataplane().GetName())
}
