package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"sync"
	"time"
	"unicode/utf8"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"meridian/internal/xds"
)

// ExportLogs is the method by which Envoy sends log entries to its agent.
const ExportLogs = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"

// ExportTraces is the method by which Envoy sends spans to its agent.
const ExportTraces = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

const (
	// maxReceivers bounds the addresses that take log entries at a time, and maxQueued the
	// entries that wait for one of them. What is beyond is dropped, and counted in the log.
	maxReceivers, maxQueued = 16, 4096
	// maxQueuedBytes bounds what waits for one of them, and maxLine a line, in bytes: what
	// is in it is what callers send.
	maxQueuedBytes, maxLine = 1 << 20, 16 << 10
	// logTimeout bounds a connection to an address, and one write.
	logTimeout = 5 * time.Second
	// firstLogPause and maxLogPause are the pauses between attempts to connect.
	firstLogPause, maxLogPause = 100 * time.Millisecond, 10 * time.Second
	// logIdle is after what time without entries a connection is closed.
	logIdle = time.Minute
	// logFlush bounds how long entries that wait are still sent at the end.
	logFlush = time.Second
)

// Logs sends the log entries of an Envoy, as lines, to the addresses that they name.
// Entries wait while an address takes none, up to a bound.
type Logs struct {
	log  *slog.Logger
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// end is closed when no more are taken; ctx ends when no more are sent.
	end    chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	// running are the goroutines of receivers.
	running sync.WaitGroup
	// forwarder passes entries and spans on to collectors.
	forwarder *forwarder

	mu        sync.Mutex
	ended     bool
	receivers map[string]*logReceiver
	refused   bool
}

// logReceiver is an address that takes lines.
type logReceiver struct {
	address string
	lines   chan []byte
	// queued are the bytes of lines, and dropped counts the entries that found the queue
	// full; both guarded by Logs.mu.
	queued, dropped int
}

// NewLogs returns the logs of an Envoy.
func NewLogs(log *slog.Logger) *Logs {
	ctx, cancel := context.WithCancel(context.Background())
	return &Logs{log: log, dial: (&net.Dialer{Timeout: logTimeout}).DialContext, end: make(chan struct{}), ctx: ctx, cancel: cancel, receivers: map[string]*logReceiver{}, forwarder: newForwarder(log)}
}

// Close sends what waits, for a second at most, and ends.
func (l *Logs) Close() {
	l.mu.Lock()
	if !l.ended {
		l.ended = true
		close(l.end)
	}
	l.mu.Unlock()
	stop := time.AfterFunc(logFlush, l.cancel)
	defer stop.Stop()
	l.running.Wait()
	l.cancel()
	l.forwarder.close()
}

// Export takes the encoded entries of a call of ExportLogs, with its incoming metadata in
// ctx, and returns the encoded answer. They are sent to the collector that the metadata name, as
// they are but for texts that are no UTF-8, and otherwise to takers. The error is a status:
// that of the collector, or INVALID_ARGUMENT for what are no entries.
func (l *Logs) Export(ctx context.Context, data []byte, takers ...func(*logsv1.LogsData)) (answer []byte, err error) {
	entries := &logsv1.LogsData{} // it is the request of the method
	data, err = readTelemetry(data, entries)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "these are no log entries")
	}
	if to := metadata.ValueFromIncomingContext(ctx, xds.Collector); len(to) > 0 {
		return l.forwarder.pass(ctx, destination{ExportLogs, to[0]}, data)
	}
	for _, take := range takers {
		take(entries)
	}
	return nil, nil
}

// ExportTraces passes the encoded spans of a call of ExportTraces on to the collector that
// its incoming metadata, in ctx, name, as they are but for texts that are no UTF-8, and
// returns its encoded answer. The error is a status: that of the collector, or
// INVALID_ARGUMENT for what are no spans, or are for no collector.
func (l *Logs) ExportTraces(ctx context.Context, data []byte) (answer []byte, err error) {
	data, err = readTelemetry(data, &tracev1.TracesData{}) // it is the request of the method
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "these are no spans")
	}
	to := metadata.ValueFromIncomingContext(ctx, xds.Collector)
	if len(to) == 0 {
		return nil, status.Error(codes.InvalidArgument, "these spans are for no collector")
	}
	return l.forwarder.pass(ctx, destination{ExportTraces, to[0]}, data)
}

// Take takes entries. It does not wait for those who receive them.
func (l *Logs) Take(data *logsv1.LogsData) {
	for _, r := range data.GetResourceLogs() {
		attributes := r.GetResource().GetAttributes()
		address := attribute(attributes, xds.LogReceiver)
		if address == "" {
			continue
		}
		omits := attribute(attributes, xds.LogOmitsEmpty) == "true"
		for _, scope := range r.GetScopeLogs() {
			for _, record := range scope.GetLogRecords() {
				l.send(address, line(record.GetBody(), omits))
			}
		}
	}
}

func attribute(all []*commonv1.KeyValue, key string) string {
	for _, a := range all {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// line is an entry as a line: its text, or an object as JSON. It has at most maxLine bytes:
// a text is cut, and so are the values of an object.
func line(body *commonv1.AnyValue, omits bool) []byte {
	object, ok := body.GetValue().(*commonv1.AnyValue_KvlistValue)
	if !ok {
		return append([]byte(cut(body.GetStringValue(), maxLine-1)), '\n')
	}
	for most := maxLine; ; most /= 2 {
		members := map[string]string{}
		for _, m := range object.KvlistValue.GetValues() {
			if value := m.GetValue().GetStringValue(); !omits || value != "" && value != "-" {
				members[m.GetKey()] = cut(value, most)
			}
		}
		text, err := json.Marshal(members)
		if err != nil {
			return nil // a map of strings can be written
		}
		if len(text) < maxLine {
			return append(text, '\n')
		}
		if most == 0 { // the names alone are too long
			return append([]byte(cut(string(text), maxLine-1)), '\n')
		}
	}
}

// cut returns the characters of a text that begin it and have at most so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// send queues a line for an address.
func (l *Logs) send(address string, text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	r := l.receivers[address]
	if r == nil {
		if len(l.receivers) >= maxReceivers {
			if !l.refused {
				l.log.Warn("log entries are dropped: too many addresses take entries", "address", address, "most", maxReceivers)
			}
			l.refused = true
			return
		}
		r = &logReceiver{address: address, lines: make(chan []byte, maxQueued)}
		l.receivers[address] = r
		l.running.Go(func() { l.run(r) })
	}
	if r.queued+len(text) <= maxQueuedBytes {
		select {
		case r.lines <- text:
			r.queued += len(text)
			return
		default:
		}
	}
	if r.dropped == 0 {
		l.log.Warn("log entries are dropped: too many wait for their receiver", "address", address, "waiting", len(r.lines), "bytes", r.queued)
	}
	r.dropped++
}

// run sends the lines of an address until there are none for some time.
func (l *Logs) run(r *logReceiver) {
	var conn net.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	idle := time.NewTimer(logIdle)
	defer idle.Stop()
	for {
		var text []byte
		select {
		case text = <-r.lines:
		case <-l.end:
			select {
			case text = <-r.lines:
			default:
				return
			}
		case <-idle.C:
			if l.forget(r) {
				return
			}
			idle.Reset(logIdle)
			continue
		}
		l.taken(r, text)
		if conn = l.write(r, conn, text); conn == nil {
			return
		}
		idle.Reset(logIdle)
	}
}

// taken counts a line that no longer waits.
func (l *Logs) taken(r *logReceiver, text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.queued -= len(text)
}

// forget ends a receiver that nothing waits for.
func (l *Logs) forget(r *logReceiver) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(r.lines) > 0 {
		return false
	}
	delete(l.receivers, r.address)
	l.refused = false
	return true
}

// write sends a line, over a new connection when the one that it has fails. It returns
// the connection, nil once there is no more time.
func (l *Logs) write(r *logReceiver, conn net.Conn, text []byte) net.Conn {
	warned := false
	for pause := firstLogPause; ; pause = min(2*pause, maxLogPause) {
		var err error
		if conn == nil {
			conn, err = l.dial(l.ctx, "tcp", r.address)
			if err == nil {
				l.connected(r)
			}
		}
		if err == nil {
			if err = conn.SetWriteDeadline(time.Now().Add(logTimeout)); err == nil {
				_, err = conn.Write(text)
			}
			if err == nil {
				return conn
			}
			_ = conn.Close()
			conn = nil
		}
		if !warned {
			l.log.Warn("log entries cannot be sent: trying again", "address", r.address, "error", err)
			warned = true
		}
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
			return nil
		}
	}
}

// connected says how many entries were lost before.
func (l *Logs) connected(r *logReceiver) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.dropped > 0 {
		l.log.Warn("log entries were dropped", "address", r.address, "entries", r.dropped)
		r.dropped = 0
	}
}
