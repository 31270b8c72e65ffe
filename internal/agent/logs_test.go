package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"

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

// accept returns the lines of the next connection.
func accept(t *testing.T, l net.Listener) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, bufio.NewReader(conn)
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
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := reserved.Addr().String()
	require.NoError(t, reserved.Close())
	logs := NewLogs(slog.New(slog.DiscardHandler))
	defer logs.Close()
	logs.Take(entries(address, "", text("first"), members("a", `"`, "b", "-")))
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	_, lines := accept(t, l)
	logs.Take(entries(address, "true", members("a", "1", "b", "-", "c", "")))
	logs.Take(entries("", "", text("without an address")))
	logs.Take(&logsv1.LogsData{})
	require.Equal(t, "first\n", read(t, lines))
	require.Equal(t, `{"a":"\"","b":"-"}`+"\n", read(t, lines))
	require.Equal(t, `{"a":"1"}`+"\n", read(t, lines))
}

// What waits at the end is sent; what comes after it is not.
func TestLogEntriesAreFlushed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	logs := NewLogs(slog.New(slog.DiscardHandler))
	for i := range 100 {
		logs.Take(entries(l.Addr().String(), "", text(fmt.Sprint(i))))
	}
	logs.Close()
	logs.Take(entries(l.Addr().String(), "", text("too late")))
	logs.Close()
	_, lines := accept(t, l)
	for i := range 100 {
		require.Equal(t, fmt.Sprintf("%d\n", i), read(t, lines))
	}
	_, err = lines.ReadString('\n')
	require.Error(t, err)
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
