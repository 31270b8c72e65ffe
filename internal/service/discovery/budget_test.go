package discovery_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
	"meridian/internal/xds"
)

type delta = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

// limited opens a zone whose xDS streams share a budget, with one dataplane. No time
// passes for the budget: however slow the machine is, no stream has to make way.
func limited(t *testing.T, all, ofToken int64) *zone {
	start := time.Now()
	return limitedAt(t, all, ofToken, func() time.Time { return start })
}

// limitedAt is limited, where time passes.
func limitedAt(t *testing.T, all, ofToken int64, now func() time.Time) *zone {
	z := open(t, limits.NewPatient(all, ofToken, limits.XDSPatience, now))
	z.set(web("web-1"), 1)
	z.run()
	return z
}

// ask opens a stream of a token that asks for endpoints.
func (z *zone) ask(token string, names ...string) delta {
	z.t.Helper()
	stream, err := z.client.DeltaAggregatedResources(metadata.AppendToOutgoingContext(z.t.Context(), "token", token))
	require.NoError(z.t, err)
	err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: gRPCNode, TypeUrl: xds.Endpoints.URL(), ResourceNamesSubscribe: names})
	if !errors.Is(err, io.EOF) { // it was refused already: Recv has the reason
		require.NoError(z.t, err)
	}
	return stream
}

// answer receives a response and accepts it.
func answer(t *testing.T, stream delta) {
	t.Helper()
	r, err := stream.Recv()
	require.NoError(t, err)
	require.NoError(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}))
}

// exhausted requires that a stream ends for a limit.
func exhausted(t *testing.T, stream delta, limit string) {
	t.Helper()
	for {
		_, err := stream.Recv()
		if err == nil {
			continue
		}
		err = rpcerr.FromStatus(err)
		require.True(t, rpcerr.HasReason(err, "LIMIT_REACHED"), "%v", err)
		var told *rpcerr.Error
		require.ErrorAs(t, err, &told)
		require.Equal(t, limit, told.Metadata["limit"], "%v", err)
		return
	}
}

// manyNames are as many bytes of names as a request may have.
func manyNames(round int) []string {
	names := make([]string, 2000)
	for i := range names {
		names[i] = fmt.Sprintf("%d-%010d", round, i)
	}
	return names
}

// What one token's streams subscribe to is bounded, whatever its proxies are called; those
// of other tokens have space. What has gone is given back.
func TestNamesOfATokenAreBounded(t *testing.T) {
	z := limited(t, 4<<20, 2<<20)
	for range 3 {
		greedy := z.ask("m/greedy")
		for round := range 20 {
			if greedy.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.Listener.URL(), ResourceNamesSubscribe: manyNames(round)}) != nil {
				break // it has ended
			}
		}
		exhausted(t, greedy, limits.LimitXDSToken)
		require.Eventually(t, func() bool { return z.service.Streams() == 0 }, time.Minute, time.Millisecond)
	}
	answer(t, z.ask("m/greedy", "x"))
	answer(t, z.ask("m/other", "x"))
}

// Streams themselves count: as many as a token's share has space for, and those of all.
func TestStreamsOfATokenAreBounded(t *testing.T) {
	z := limited(t, 10*limits.XDSStreamBytes, 6*limits.XDSStreamBytes)
	for range 5 {
		answer(t, z.ask("m/a", "x"))
	}
	exhausted(t, z.ask("m/a", "x"), limits.LimitXDSToken)
	for range 4 {
		answer(t, z.ask("m/b", "x"))
	}
	exhausted(t, z.ask("m/c", "x"), limits.LimitXDS)
}

// A client that does not read what it is sent ends for one that needs the memory, once it
// had five seconds; until then the other one waits.
func TestUnansweredResponsesMakeWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := limitedAt(t, 8<<20, 4<<20, time.Now)
		large, err := xds.New(&clusterv3.Cluster{Name: "c", AltStatName: strings.Repeat("x", 1<<20)})
		require.NoError(t, err)
		set, err := xds.NewSet(1, large)
		require.NoError(t, err)
		z.change(web("web-1"), set)
		silent := z.connect(gRPCNode) // what it is sent counts twice
		synctest.Wait()
		begun := time.Now()
		second := z.connect(gRPCNode)
		synctest.Wait()
		require.Equal(t, uint64(1), z.service.Sent(), "the second one waits")
		r, err := second.Recv()
		require.NoError(t, err)
		require.Len(t, r.GetResources(), 1)
		require.GreaterOrEqual(t, time.Since(begun), limits.XDSPatience)
		_, err = silent.Recv()
		for err == nil {
			_, err = silent.Recv()
		}
		require.ErrorContains(t, err, "no answer came for more than 5s")
		require.NoError(t, second.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResourceNames: []string{"c"}, VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}))
		synctest.Wait()
		begun = time.Now()
		_, err = z.connect(gRPCNode).Recv()
		require.NoError(t, err)
		require.Zero(t, time.Since(begun), "what is answered gives its space back")
	})
}

// A client that reads nothing is sent one response, however often its resources change,
// and delays no other; when it reads again, it has the newest ones next.
func TestAClientThatReadsNothingDelaysNoOther(t *testing.T) {
	z := limited(t, 64<<20, 64<<20)
	large := func(version int) {
		r, err := xds.New(&clusterv3.Cluster{Name: "c", ConnectTimeout: durationpb.New(time.Duration(version) * time.Second), AltStatName: strings.Repeat("x", 1<<20)}) // more than fits into its window
		require.NoError(t, err)
		set, err := xds.NewSet(resource.Revision(version), r)
		require.NoError(t, err)
		z.change(web("web-1"), set)
	}
	large(2)
	silent, reader := z.connect(gRPCNode), z.connect(gRPCNode)
	require.Equal(t, 2*time.Second, next(t, reader))
	const last = 20
	for version := 3; version <= last; version++ {
		large(version)
		require.Equal(t, time.Duration(version)*time.Second, next(t, reader))
	}
	first := next(t, silent)
	if first != last*time.Second { // it was served after the changes otherwise
		require.Equal(t, last*time.Second, next(t, silent))
	}
}

// What proxies have rejected counts, also after their streams have gone, until it is
// forgotten.
func TestRejectionsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := limited(t, 256<<10, 128<<10)
		rejected := 0
		for {
			stream := z.connect(&corev3.Node{Id: "m/web-1", UserAgentName: "gRPC", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
				xds.InstanceField: structpb.NewStringValue(fmt.Sprint(rejected)),
			}}})
			r, err := stream.Recv()
			if err != nil {
				require.ErrorContains(t, err, "the xDS streams of one token")
				break
			}
			require.NoError(t, stream.Send(&discoveryv3.DiscoveryRequest{
				TypeUrl: r.GetTypeUrl(), ResourceNames: []string{"c"}, ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Message: strings.Repeat("x", 1000)},
			}))
			rejected++
			synctest.Wait()
			require.Equal(t, uint64(rejected), z.service.Rejected())
			require.NoError(t, stream.CloseSend())
			synctest.Wait()
			require.Zero(t, z.service.Streams())
			require.Less(t, rejected, 100)
		}
		require.Greater(t, rejected, 10)
		z.touch([]resource.Key{web("web-1")}) // it changed: what was rejected is out of date
		next(t, z.connect(gRPCNode))
	})
}

// Everything that an attacker with one token has a zone keep comes to what the limit says:
// 16 MiB here, 512 MiB with the limits that a zone has without flags.
func TestWhatATokenHasAZoneKeep(t *testing.T) {
	const share = 16 << 20
	z := limited(t, 2*share, share)
	before := heap()
	var streams []delta
	for refused := false; !refused; {
		stream := z.ask("m/attacker", "first")
		streams = append(streams, stream)
		answer(t, stream)
		for round := range 4 * len(xds.Types) { // not quite as many names as a stream may have
			if refused = subscribe(stream, xds.Types[round%len(xds.Types)], manyNames(round)) != nil; refused {
				break
			}
		}
		require.Less(t, len(streams), 100)
	}
	took := heap() - before
	runtime.KeepAlive(streams)
	t.Logf("%d streams: %d MB in client and zone, of %d MB that the limit allows", len(streams), took>>20, share>>20)
	require.Less(t, took, int64(2*share))
}

// subscribe asks for more names, and accepts the response.
func subscribe(stream delta, typ xds.Type, names []string) error {
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ.URL(), ResourceNamesSubscribe: names}); err != nil {
		return err
	}
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	return stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
