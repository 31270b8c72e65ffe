package zonesync

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// neverReads opens a stream as a zone does, in the fewest bytes, and reads nothing of
// what comes back.
func neverReads(t testing.TB, address string, hello *syncv1.Hello) net.Conn {
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	var fields bytes.Buffer
	encoder := hpack.NewEncoder(&fields)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", syncv1.SyncService_Stream_FullMethodName},
		{":authority", "global"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
		{"authorization", "Bearer secret"},
	} {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	message, err := proto.Marshal(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: hello}})
	require.NoError(t, err)
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	frames := http2.NewFramer(conn, nil)
	require.NoError(t, frames.WriteSettings())
	require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndHeaders: true}))
	require.NoError(t, frames.WriteData(1, false, append(framed, message...)))
	return conn
}

// zonesThatDoNotRead opens a stream of each of many zones, over real sockets, which
// resume or are sent everything, and reads nothing of them. It returns once the window
// of each is full; begin is called before the first opens.
func zonesThatDoNotRead(t testing.TB, zones int, mode string, begin func()) (c *cluster, address string, stop func()) {
	c = newCluster(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ReadBufferSize(0), grpc.ForceServerCodecV2(Codec()), grpc.InTapHandle(Tap)) // as servers do
	syncv1.RegisterSyncServiceServer(server, c.server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(lis) })
	big := func(v int) string { return fmt.Sprintf(`{"x":"%04000d"}`, v) }
	var ops []store.Op
	for i := range 500 {
		ops = append(ops, put(policyKey(fmt.Sprintf("p-%d", i)), big(0)))
	}
	oldest := c.write(ops...)
	for i := range 120 {
		c.write(put(policyKey(fmt.Sprintf("p-%d", i)), big(i)))
	}
	for changed := c.server.feed.changed(); c.server.feed.position().head < c.global.applied; changed = c.server.feed.changed() {
		<-changed
	}
	begin()
	conns := make([]net.Conn, zones)
	for i := range conns {
		hello := &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: fmt.Sprintf("z-%d", i), Instance: "i"}
		if mode == "resume" {
			hello.Epoch, hello.FromRevision = epochTo(c.global.store.View().Epoch()), uint64(oldest)
		}
		conns[i] = neverReads(t, lis.Addr().String(), hello)
	}
	// The window of HTTP/2 is full once as much was sent.
	for stuck := 0; stuck < zones; {
		stuck = 0
		for i := range zones {
			conn := c.server.registry.best(resource.ZoneName(fmt.Sprintf("z-%d", i)), store.Epoch{}, time.Now())
			if conn == nil {
				break
			}
			conn.mu.Lock()
			if conn.pub.sent >= 64<<10 {
				stuck++
			}
			conn.mu.Unlock()
		}
		runtime.Gosched()
	}
	return c, lis.Addr().String(), func() {
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		server.Stop()
		c.stop()
		serving.Wait()
	}
}

// Zones that open a stream and never read keep nothing from a zone that reads, and are
// sent no more than their window (I12).
func TestZonesThatDoNotRead(t *testing.T) {
	for _, mode := range []string{"resume", "snapshot"} {
		t.Run(mode, func(t *testing.T) {
			const zones = 50
			c, address, stop := zonesThatDoNotRead(t, zones, mode, func() {})
			z := c.zone("east", t.TempDir(), atAddress(address))
			require.NoError(t, c.visible(z))
			c.write(put(policyKey("another"), `{}`))
			require.NoError(t, c.visible(z))
			for i := range zones {
				conn := c.server.registry.best(resource.ZoneName(fmt.Sprintf("z-%d", i)), store.Epoch{}, time.Now())
				conn.mu.Lock()
				require.LessOrEqual(t, conn.pub.sent, uint64(64<<10+maxPart))
				conn.mu.Unlock()
			}
			z.stop()
			stop()
		})
	}
}

// TestStalledReaderDelaysNoOther is L4 and the progress watchdog: a zone that
// does not read is cut off after a minute, and meanwhile delays no other.
func TestStalledReaderDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		conn, err := grpc.NewClient("passthrough:global", grpc.WithContextDialer(c.dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(bearerToken{token: func(context.Context) (string, error) { return "secret", nil }}))
		require.NoError(t, err)
		stream, err := syncv1.NewSyncServiceClient(conn).Stream(context.Background())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{
			Hello: &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: "stuck", Instance: "i"},
		}}))
		z := c.zone("east", t.TempDir())
		c.synced2(z, "stuck")
		big := strings.Repeat("x", 64<<10)
		began := time.Now()
		for i := range 100 {
			c.write(put(policyKey(fmt.Sprintf("p-%d", i%10)), fmt.Sprintf(`"%d%s"`, i, big)))
			require.NoError(t, c.visible(z))
		}
		require.Less(t, time.Since(began), time.Second)
		require.Len(t, c.server.Zones(), 2)
		require.Equal(t, ZoneStale, func() ZoneState { <-time.After(10 * time.Second); return c.state("stuck").State }())

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var notApplied *NotAppliedError
		require.ErrorAs(t, c.applied(ctx, c.global.applied), &notApplied)
		require.Equal(t, []resource.ZoneName{"stuck"}, notApplied.Zones)
		require.ErrorIs(t, notApplied, context.DeadlineExceeded)
		waiting := make(chan error, 1)
		go func() { waiting <- c.applied(context.Background(), c.global.applied) }()

		<-time.After(2 * time.Minute)
		require.Equal(t, ZoneOffline, c.state("stuck").State)
		require.Contains(t, c.state("stuck").LastError, "nothing acknowledged")
		require.NoError(t, c.applied(context.Background(), c.global.applied), "it was away all the time")
		synctest.Wait()
		require.Empty(t, waiting, "a zone that went away while it was waited for has not applied anything")
		require.NoError(t, conn.Close())
		z.stop()
		c.stop()
		require.ErrorAs(t, <-waiting, &notApplied, "nor has it when the server stops")
		require.Equal(t, []resource.ZoneName{"stuck"}, notApplied.Zones)
		require.ErrorIs(t, notApplied, errClosed)
	})
}
