package server

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
)

// ReasonLimit is the reason of calls that exceed a limit of the moment. The limit is
// named in the metadata of the error.
const ReasonLimit = "LIMIT_REACHED"

// metaLimit is the key of the name of a limit in the metadata of an error.
const metaLimit = "limit"

// limitHandshakes names the turns of handshakes. As many wait as there are
// connections: none is refused.
const limitHandshakes = "handshakes"

// limitBytes is the limit on the bytes of requests that are not answered, as in
// metrics.
const limitBytes = "request_bytes"

// shortRetry is after how long a call may be repeated that could not be held.
const shortRetry = time.Second

// Limits bound the connections, calls and writes of a server's clients. They are a
// prometheus.Collector.
type Limits struct {
	refusals                *prometheus.CounterVec
	grpc, http, webhook     *limits.Connections
	watches, zoneWaits      *limits.Slots
	writes                  *limits.Writes
	xds                     *limits.Pool
	connections, unverified *prometheus.Desc
}

// LimitOptions are the settings of limits. The zero value stands for DefaultLimits.
type LimitOptions struct {
	// MaxConnections and MaxAddressConnections bound the connections to the gRPC API,
	// in all and of one address.
	MaxConnections, MaxAddressConnections int
	// MaxUnauthenticatedConnections bounds those of one address on which no caller
	// has been authenticated, MaxUnauthenticatedWatches the watches of one address
	// by callers without credentials.
	MaxUnauthenticatedConnections, MaxUnauthenticatedWatches int
	// WriteRate and WriteBytes bound the write requests of one caller, and their
	// bytes, each second.
	WriteRate, WriteBytes int
}

// DefaultLimits returns the limits that a server has without flags.
func DefaultLimits() LimitOptions {
	return LimitOptions{
		MaxConnections: 32768, MaxAddressConnections: 16384,
		MaxUnauthenticatedConnections: 256, MaxUnauthenticatedWatches: 32,
		WriteRate: 8000, WriteBytes: 64 << 20,
	}
}

const (
	// inAll is how many times as many unauthenticated connections and watches all
	// addresses have together as one, and as much all callers write.
	inAll      = 8
	writeInAll = 2
	// maxZoneWaits and maxClientZoneWaits bound the waits for zones, in all and of one
	// client. As many again are for clients that have none.
	maxZoneWaits, maxClientZoneWaits = 512, 64
	// Connections to health and metrics, and to the webhook: few clients have them.
	maxHTTPConnections, maxHTTPAddress = 1024, 128
)

// NewLimits returns limits that nothing has been taken from.
func NewLimits(o LimitOptions) *Limits {
	if o == (LimitOptions{}) {
		o = DefaultLimits()
	}
	l := &Limits{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meridian_limit_refusals_total",
			Help: "Connections and calls that were refused or ended because a limit on clients was reached, by limit.",
		}, []string{"limit"}),
		connections: prometheus.NewDesc("meridian_connections", "Connections to the gRPC API.", nil, nil),
		unverified:  prometheus.NewDesc("meridian_connections_unauthenticated", "Connections to the gRPC API on which no caller has been authenticated.", nil, nil),
	}
	for _, limit := range limits.Names() {
		l.refusals.WithLabelValues(limit) // an alert on its increase misses a series that begins with 1
	}
	l.grpc = limits.NewConnections(limits.ConnectionConfig{
		Total: o.MaxConnections, PerAddress: o.MaxAddressConnections,
		Unauthenticated: o.MaxUnauthenticatedConnections, UnauthenticatedTotal: inAll * o.MaxUnauthenticatedConnections,
	}, time.Now, l.Refused)
	few := limits.ConnectionConfig{
		Total: maxHTTPConnections, PerAddress: maxHTTPAddress, Unauthenticated: maxHTTPAddress, UnauthenticatedTotal: maxHTTPConnections,
	}
	l.http, l.webhook = limits.NewConnections(few, time.Now, l.Refused), limits.NewConnections(few, time.Now, l.Refused)
	l.watches = limits.NewSlots(limits.LimitWatches, "watches of unauthenticated clients", o.MaxUnauthenticatedWatches, inAll*o.MaxUnauthenticatedWatches)
	l.zoneWaits = limits.NewSlots(limits.LimitZoneWaits, "waits for zones", maxClientZoneWaits, maxZoneWaits).WithSpare(maxZoneWaits)
	l.writes = limits.NewWrites(limits.WriteConfig{
		Requests: float64(o.WriteRate), Bytes: float64(o.WriteBytes), All: writeInAll, LargestRequest: MaxBatchBytes,
	}, time.Now)
	l.xds = limits.NewXDS(o.MaxConnections, o.MaxAddressConnections, time.Now)
	return l
}

// XDS is the budget of bytes that xDS streams share, by the ids of their tokens.
func (l *Limits) XDS() *limits.Pool { return l.xds }

// Refused counts what a limit has refused.
func (l *Limits) Refused(limit string) { l.refusals.WithLabelValues(limit).Inc() }

// Describe implements prometheus.Collector.
func (l *Limits) Describe(to chan<- *prometheus.Desc) {
	l.refusals.Describe(to)
	to <- l.connections
	to <- l.unverified
}

// Collect implements prometheus.Collector.
func (l *Limits) Collect(to chan<- prometheus.Metric) {
	l.refusals.Collect(to)
	total, unauthenticated := l.grpc.Counts()
	to <- prometheus.MustNewConstMetric(l.connections, prometheus.GaugeValue, float64(total))
	to <- prometheus.MustNewConstMetric(l.unverified, prometheus.GaugeValue, float64(unauthenticated))
}

// Bound returns the listeners with the limits on connections.
func (l *Limits) Bound(all Listeners) Listeners {
	all.GRPC, all.HTTP = limitedListener{all.GRPC, l.grpc}, limitedListener{all.HTTP, l.http}
	if all.Webhook != nil {
		all.Webhook = limitedListener{all.Webhook, l.webhook}
	}
	return all
}

// exceeded is the error of a call of a method that exceeds a limit, which it counts.
func (l *Limits) exceeded(method string, err error) error {
	var limit *limits.Exceeded
	if !errors.As(err, &limit) {
		return err
	}
	l.Refused(limit.Limit)
	return limitError(method, limit)
}

// limitError says which limit a call of a method reaches, and when to repeat it.
func limitError(method string, limit *limits.Exceeded) error {
	after := max(limit.Retry, shortRetry)
	return notWritten(method, rpcerr.New(rpcerr.TooLarge, ReasonLimit, "%w: retry after %s", limit, after.Round(time.Second/10)).
		WithMetadata(metaLimit, limit.Limit).WithRetry(after))
}

// notWritten says of a call that is refused that nothing was written, unless it would
// only have read.
func notWritten(method string, refused *rpcerr.Error) error {
	if exempt(method) || slices.Contains(reads, method) {
		return refused
	}
	return rpcerr.WithEffect(refused, rpcerr.EffectNone)
}

// limitedListener hangs up on connections beyond the limits before anything is read
// from them.
type limitedListener struct {
	net.Listener
	limits *limits.Connections
}

// Accept implements net.Listener.
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		limited, err := l.limits.Begin(conn.RemoteAddr(), func() { _ = conn.Close() })
		if err != nil {
			_ = conn.Close()
			continue
		}
		setUserTimeout(conn, keepaliveTimeout) // gRPC does not see the TCP connection
		return newLimitedConn(conn, limited), nil
	}
}

// limitedConn is a connection that gives back its place.
type limitedConn struct {
	net.Conn
	limits *limits.Connection
	// handshake is the one that is running; nil before and after it.
	handshake *handshake
	closed    chan struct{}
	closing   sync.Once
}

func newLimitedConn(conn net.Conn, limited *limits.Connection) *limitedConn {
	return &limitedConn{Conn: conn, limits: limited, closed: make(chan struct{})}
}

// Read implements net.Conn. A connection that is known is read in one small frame,
// since thousands of them wait in it.
func (c *limitedConn) Read(p []byte) (int, error) {
	if c.limits.IsKnown() {
		return c.Conn.Read(p)
	}
	return c.readUnauthenticated(p)
}

// readUnauthenticated reads from a connection without an authenticated caller, and
// lets others run after each piece: a client that always has something to read would
// have a processor for as long as the scheduler lets it, ten milliseconds at a time.
func (c *limitedConn) readUnauthenticated(p []byte) (int, error) {
	if c.handshake != nil {
		return c.handshake.read(c.Conn, p)
	}
	if pause := c.limits.Pause(); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.closed:
		}
	}
	n, err := c.Conn.Read(p)
	runtime.Gosched()
	return n, err
}

// Write implements net.Conn.
func (c *limitedConn) Write(p []byte) (int, error) {
	if c.handshake != nil {
		c.handshake.leave()
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	c.limits.End()
	return c.Conn.Close()
}

// limitedCredentials hand on which connection a call came by.
type limitedCredentials struct {
	credentials.TransportCredentials
	// turns are those of handshakes.
	turns *limits.Turns
}

// ServerHandshake implements credentials.TransportCredentials.
func (c limitedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	limited, ok := raw.(*limitedConn)
	if !ok {
		return c.TransportCredentials.ServerHandshake(raw)
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	limited.handshake = &handshake{ctx: ctx, turns: c.turns, limits: limited.limits, owner: limits.Origin(raw.RemoteAddr()).String()}
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	limited.handshake.leave()
	limited.limits.Served()
	limited.handshake = nil
	if err != nil {
		return nil, nil, err
	}
	return conn, connectionInfo{info, limited.limits}, nil
}

// Clone implements credentials.TransportCredentials.
func (c limitedCredentials) Clone() credentials.TransportCredentials {
	return limitedCredentials{c.TransportCredentials.Clone(), c.turns}
}

// newHandshakes returns the turns of handshakes. They leave a processor to other work,
// if there is more than one.
func newHandshakes() *limits.Turns {
	running := max(1, runtime.GOMAXPROCS(0)-1)
	return limits.NewTurns(limitHandshakes, limits.TurnsConfig{Running: running, RunningEach: running, Waiting: math.MaxInt, WaitingEach: math.MaxInt})
}

// handshake has a turn while the server computes for it, and none while it waits for
// the client: a slow client delays no other. It is used by one goroutine.
type handshake struct {
	ctx   context.Context
	turns *limits.Turns
	// limits is told when the server waits for the client.
	limits *limits.Connection
	owner  string
	done   func() // ends the turn; nil without one
}

func (h *handshake) read(conn net.Conn, p []byte) (int, error) {
	h.leave()
	h.limits.Served()
	n, err := conn.Read(p)
	h.limits.Serving()
	if err == nil {
		h.done, err = h.turns.Wait(h.ctx, h.owner)
	}
	return n, err
}

// leave ends the turn, if there is one.
func (h *handshake) leave() {
	if h.done != nil {
		h.done()
		h.done = nil
	}
}

// connectionInfo is what is known of a connection after its handshake.
type connectionInfo struct {
	credentials.AuthInfo
	limits *limits.Connection
}

// connectionOf returns the connection of a call; nil where it is not limited.
func connectionOf(ctx context.Context) *limits.Connection {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, _ := p.AuthInfo.(connectionInfo)
	return info.limits
}

// Authenticated says that a caller was authenticated on the connection of a call.
func Authenticated(ctx context.Context) {
	if c := connectionOf(ctx); c != nil {
		c.Known()
	}
}

// limitCall refuses calls beyond the limits before anything is done for them.
func limitCall(ctx context.Context, info *tap.Info) error {
	c := connectionOf(ctx)
	if c == nil {
		return nil
	}
	if err := c.Call(len(info.Header.Get("authorization")) > 0); err != nil {
		var limit *limits.Exceeded
		errors.As(err, &limit)
		return rpcerr.ToStatus(limitError(info.FullMethodName, limit)).Err()
	}
	return nil
}

// endedCalls counts the calls that end, and those that clients give up.
type endedCalls struct{ requests *requests }

// TagRPC implements stats.Handler.
func (endedCalls) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (c endedCalls) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok {
		return
	}
	c.requests.end(ctx, end)
	if end.Error == nil || status.Code(end.Error) != codes.Canceled || ctx.Err() == nil {
		return
	}
	if c := connectionOf(ctx); c != nil {
		c.Aborted()
	}
}

// TagConn implements stats.Handler.
func (endedCalls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (endedCalls) HandleConn(context.Context, stats.ConnStats) {}

// bind defines the flags of the limits.
func (o *LimitOptions) bind(flags *pflag.FlagSet) {
	d := DefaultLimits()
	flags.IntVar(&o.MaxConnections, "max-connections", d.MaxConnections, "connections to --grpc-addr, in all")
	flags.IntVar(&o.MaxAddressConnections, "max-address-connections", d.MaxAddressConnections, "connections to --grpc-addr of one client address")
	flags.IntVar(&o.MaxUnauthenticatedConnections, "max-unauthenticated-connections", d.MaxUnauthenticatedConnections,
		"connections of one client address on which no caller has been authenticated; all addresses together have eight times as many")
	flags.IntVar(&o.MaxUnauthenticatedWatches, "max-unauthenticated-watches", d.MaxUnauthenticatedWatches,
		"watches of one client address without credentials; all addresses together have eight times as many")
	flags.IntVar(&o.WriteRate, "write-rate", d.WriteRate, "write requests of one caller per second; all but administrators together have twice as many")
	flags.IntVar(&o.WriteBytes, "write-bytes", d.WriteBytes, "bytes that one caller writes per second; all but administrators together have twice as many")
}

// validate reports the first limit by which no client would be served.
func (o *LimitOptions) validate() error {
	if *o == (LimitOptions{}) {
		return nil
	}
	for _, limit := range []struct {
		flag  string
		value int
	}{
		{"max-connections", o.MaxConnections},
		{"max-address-connections", o.MaxAddressConnections},
		{"max-unauthenticated-connections", o.MaxUnauthenticatedConnections},
		{"max-unauthenticated-watches", o.MaxUnauthenticatedWatches},
		{"write-rate", o.WriteRate},
		{"write-bytes", o.WriteBytes},
	} {
		if limit.value < 1 {
			return usagef("--%s %d: must be at least 1", limit.flag, limit.value)
		}
	}
	return nil
}
