package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"meridian/internal/xds"
)

// Entries for a collector go there, and its answer comes back, also where that is an error.
func TestEntriesAreRelayedToACollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	got := make(chan []byte, 2)
	server := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(func(_ any, call grpc.ServerStream) error {
		m := &message{}
		if err := call.RecvMsg(m); err != nil {
			return err
		}
		if got <- m.data; bytes.Contains(m.data, []byte("bad")) {
			return status.Error(codes.InvalidArgument, "bad entries")
		}
		return call.SendMsg(&message{[]byte("answer")})
	}))
	go func() { _ = server.Serve(listener) }() // it ends by Stop
	defer server.Stop()
	said := &bytes.Buffer{}
	logs := NewLogs(slog.New(slog.NewTextHandler(said, nil)))
	defer logs.Close()
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(xds.Collector, listener.Addr().String()))
	export := func(body string) ([]byte, error) {
		data, err := proto.Marshal(entries("", "", text(body)))
		require.NoError(t, err)
		return logs.Export(ctx, data)
	}
	answer, err := export("well")
	require.NoError(t, err)
	require.Equal(t, "answer", string(answer))
	require.Contains(t, string(<-got), "well")
	for range 2 {
		_, err = export("bad")
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		<-got
	}
	_, err = export("well")
	require.NoError(t, err)
	<-got
	require.Equal(t, 1, strings.Count(said.String(), `sent="log entries" error=`))
	require.Equal(t, 1, strings.Count(said.String(), "takes what it is sent again"))
	require.Zero(t, logs.forwarder.known[destination{ExportLogs, listener.Addr().String()}].bytes)

	_, err = logs.Export(ctx, []byte{0xff})
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	spans, err := proto.Marshal(&tracev1.TracesData{ResourceSpans: []*tracev1.ResourceSpans{{ScopeSpans: []*tracev1.ScopeSpans{{Spans: []*tracev1.Span{{Name: "bad X"}}}}}}})
	require.NoError(t, err)
	_, err = logs.ExportTraces(ctx, bytes.ReplaceAll(spans, []byte("X"), []byte{0xff}))
	require.Equal(t, "bad entries", status.Convert(err).Message())
	require.Contains(t, string(<-got), "bad \ufffd")
	require.Equal(t, 1, strings.Count(said.String(), "sent=spans error="))
	_, err = logs.ExportTraces(ctx, []byte{0xff})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = logs.ExportTraces(t.Context(), spans)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "for no collector")
	server.Stop()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = logs.Export(ended, nil)
	require.Equal(t, codes.Canceled, status.Code(err))
}

func TestWhatIsUnderWayToCollectorsIsBounded(t *testing.T) {
	c := newForwarder(slog.New(slog.DiscardHandler))
	at := func(address string) destination { return destination{ExportLogs, address} }
	var first *forwarded
	for i := range maxReceivers {
		to, err := c.begin(at("c:"+strconv.Itoa(i+1)), 1)
		require.NoError(t, err)
		if i == 0 {
			first = to
		}
	}
	_, err := c.begin(at("other:1"), 1)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, err = c.begin(at("c:2"), maxPassedBytes)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	for range maxPassedCalls - 1 {
		_, err = c.begin(at("c:3"), 1)
		require.NoError(t, err)
	}
	_, err = c.begin(at("c:3"), 1)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "however small")
	require.ErrorContains(t, err, "32 calls with 32 bytes are under way to the collector")
	require.Less(t, maxPassedCalls, maxRelayedStreams/2)
	c.took(first, at("c:1"), 1, errors.New("it is away"))
	_, err = c.begin(at("other:1"), 2*maxPassedBytes)
	require.NoError(t, err, "one message always")
	require.Len(t, c.known, maxReceivers)
	require.NotContains(t, c.known, at("c:1"))
	c.close()
	_, err = c.begin(at("c:2"), 1)
	require.Equal(t, codes.Unavailable, status.Code(err))
}
