package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"meridian/internal/xds"
)

func text(s string) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
}

func members(pairs ...string) *commonv1.AnyValue {
	list := &commonv1.KeyValueList{}
	for i := 0; i < len(pairs); i += 2 {
		list.Values = append(list.Values, &commonv1.KeyValue{Key: pairs[i], Value: text(pairs[i+1])})
	}
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_KvlistValue{KvlistValue: list}}
}

// entries are log entries as Envoy sends them.
func entries(address, omits string, bodies ...*commonv1.AnyValue) *logsv1.LogsData {
	scope := &logsv1.ScopeLogs{}
	for _, b := range bodies {
		scope.LogRecords = append(scope.LogRecords, &logsv1.LogRecord{Body: b})
	}
	return &logsv1.LogsData{ResourceLogs: []*logsv1.ResourceLogs{{
		Resource: &resourcev1.Resource{Attributes: []*commonv1.KeyValue{
			{Key: xds.LogReceiver, Value: text(address)}, {Key: xds.LogOmitsEmpty, Value: text(omits)},
		}},
		ScopeLogs: []*logsv1.ScopeLogs{scope},
	}}}
}

// piped has connections be pipes, of which it returns the other ends. The first attempts
// to connect fail.
func piped(l *Logs, failures int) <-chan net.Conn {
	conns := make(chan net.Conn, 1)
	l.dial = func(context.Context, string, string) (net.Conn, error) {
		if failures--; failures >= 0 {
			return nil, io.ErrUnexpectedEOF
		}
		here, there := net.Pipe()
		conns <- there
		return here, nil
	}
	return conns
}

func read(t *testing.T, from *bufio.Reader) string {
	t.Helper()
	line, err := from.ReadString('\n')
	require.NoError(t, err)
	return line
}

// Entries arrive as lines, in order; also those that came before their receiver was
// there.
func TestLogEntriesAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := NewLogs(slog.New(slog.DiscardHandler))
		defer logs.Close()
		conns := piped(logs, 3)
		logs.Take(entries("away:1", "", text("first"), members("a", `"`, "b", "-")))
		conn := <-conns
		lines := bufio.NewReader(conn)
		logs.Take(entries("away:1", "true", members("a", "1", "b", "-", "c", "")))
		logs.Take(entries("", "", text("without an address")))
		logs.Take(&logsv1.LogsData{})
		require.Equal(t, "first\n", read(t, lines))
		require.Equal(t, `{"a":"\"","b":"-"}`+"\n", read(t, lines))
		require.Equal(t, `{"a":"1"}`+"\n", read(t, lines))
	})
}

// Entries are sent over TCP.
func TestLogEntriesAreSentOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	logs := NewLogs(slog.New(slog.DiscardHandler))
	defer logs.Close()
	logs.Take(entries(l.Addr().String(), "", text("sent")))
	conn, err := l.Accept()
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.Equal(t, "sent\n", read(t, bufio.NewReader(conn)))
}

// What waits at the end is sent; what comes after it is not.
func TestLogEntriesAreFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := NewLogs(slog.New(slog.DiscardHandler))
		conns := piped(logs, 0)
		for i := range 100 {
			logs.Take(entries("there:1", "", text(fmt.Sprint(i))))
		}
		var got []byte
		var failed error
		reader := sync.WaitGroup{}
		reader.Go(func() { got, failed = io.ReadAll(<-conns) })
		logs.Close()
		logs.Take(entries("there:1", "", text("too late")))
		logs.Close()
		reader.Wait()
		require.NoError(t, failed)
		want := ""
		for i := range 100 {
			want += fmt.Sprintln(i)
		}
		require.Equal(t, want, string(got))
	})
}

// A line is no longer than its bound: a text is cut between characters, and an object
// stays one.
func TestLogLinesAreBounded(t *testing.T) {
	require.Equal(t, strings.Repeat("é", maxLine/2-1)+"\n", string(line(text(strings.Repeat("é", maxLine)), false)))
	long := line(members("short", "a", "long", strings.Repeat("\x01é", maxLine)), false)
	require.LessOrEqual(t, len(long), maxLine)
	var object map[string]string
	require.NoError(t, json.Unmarshal(long, &object))
	require.Equal(t, "a", object["short"])
	require.True(t, strings.HasPrefix(object["long"], "\x01é\x01é"))
	require.NotContains(t, object["long"], "\ufffd")
	require.Len(t, line(members(strings.Repeat("n", maxLine), ""), false), maxLine)
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Entries that wait, and addresses, are bounded; what is dropped is said once.
func TestLogEntriesAreBounded(t *testing.T) {
	said := &syncBuffer{}
	logs := NewLogs(slog.New(slog.NewTextHandler(said, nil)))
	logs.cancel() // none is sent
	logs.running.Add(1)
	r := &logReceiver{address: "full", lines: make(chan []byte, maxQueued)}
	logs.receivers["full"] = r
	for range maxQueued + 5 {
		logs.send("full", []byte("x"))
	}
	require.Len(t, r.lines, maxQueued)
	require.Equal(t, 5, r.dropped)
	require.Equal(t, 1, strings.Count(said.String(), "too many wait"))
	large := &logReceiver{address: "large", lines: make(chan []byte, maxQueued)}
	logs.receivers["large"] = large
	for range maxQueuedBytes/maxLine + 5 {
		logs.send("large", make([]byte, maxLine))
	}
	require.Len(t, large.lines, maxQueuedBytes/maxLine)
	require.Equal(t, 5, large.dropped)
	logs.taken(large, <-large.lines)
	logs.send("large", make([]byte, maxLine))
	require.Len(t, large.lines, maxQueuedBytes/maxLine)
	require.Equal(t, 5, large.dropped)
	for i := range 2 * maxReceivers {
		logs.receivers[fmt.Sprint(i)] = r
	}
	logs.send("another", []byte("x"))
	logs.send("another", []byte("x"))
	require.NotContains(t, logs.receivers, "another")
	require.Equal(t, 1, strings.Count(said.String(), "too many addresses"))
	logs.running.Done()
	logs.Close()
}

// What one caller sends that is no UTF-8 does not lose the entries of others.
func TestLogEntriesThatAreNoUTF8AreRead(t *testing.T) {
	sent := entries("r:1", "", text("well"), text("evil X"), members("agent", "X", "path", "/é"))
	sent.ResourceLogs[0].ScopeLogs[0].LogRecords[0].TimeUnixNano = 7
	data, err := proto.Marshal(sent)
	require.NoError(t, err)
	got := &logsv1.LogsData{}
	same, err := readTelemetry(data, got)
	require.NoError(t, err)
	require.True(t, proto.Equal(sent, got))
	require.Equal(t, data, same)

	_, err = readTelemetry(bytes.ReplaceAll(data, []byte("X"), []byte{0xff}), got)
	require.NoError(t, err)
	records := got.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords()
	require.Equal(t, "well", records[0].GetBody().GetStringValue())
	require.Equal(t, uint64(7), records[0].GetTimeUnixNano())
	require.Equal(t, "evil \ufffd\n", string(line(records[1].GetBody(), false)))
	require.JSONEq(t, `{"agent":"�","path":"/é"}`, string(line(records[2].GetBody(), false)))
	require.Equal(t, "r:1", attribute(got.GetResourceLogs()[0].GetResource().GetAttributes(), xds.LogReceiver))

	nested := text("X")
	for range maxTelemetryDepth {
		nested = &commonv1.AnyValue{Value: &commonv1.AnyValue_ArrayValue{ArrayValue: &commonv1.ArrayValue{Values: []*commonv1.AnyValue{nested}}}}
	}
	data, err = proto.Marshal(entries("r:1", "", nested))
	require.NoError(t, err)
	_, err = readTelemetry(bytes.ReplaceAll(data, []byte("X"), []byte{0xff}), got)
	require.ErrorContains(t, err, "nested too deeply")
	_, err = readTelemetry([]byte{0xff}, got)
	require.Error(t, err)
}
