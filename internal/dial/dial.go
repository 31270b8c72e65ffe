package dial

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Config is how servers are connected to. Transport is required.
type Config struct {
	Transport credentials.TransportCredentials
	// Credentials are sent with each call. Optional.
	Credentials credentials.PerRPCCredentials
	UserAgent   string
	// MaxMessage bounds a message in either direction, in bytes; 0 is gRPC's own
	// limit.
	MaxMessage int
	// Backoff is the pause between attempts, and ConnectTimeout bounds each; zero
	// values are gRPC's own.
	Backoff        backoff.Config
	ConnectTimeout time.Duration
	// KeepAlive has the server of an idle connection with calls asked, after that
	// time, whether it is alive; it has keepAliveTimeout to answer. 0: never.
	KeepAlive time.Duration
	// Log remembers what became of attempts. Optional.
	Log *Log
	// Proxy has connections go through the proxy that the environment names for a
	// server, if it names one; attempts to reach that are not in Log. So do all
	// connections without a Log.
	Proxy bool
	// Options are added, and win over what else is here. Optional.
	Options []grpc.DialOption
}

// defaultConnectTimeout is gRPC's own.
const defaultConnectTimeout = 20 * time.Second

// keepAliveTimeout is how long a server has to show that it is alive.
const keepAliveTimeout = 3 * time.Second

// Conn prepares a connection to the first of some addresses, host:port each, that
// accepts one: the next address is tried beside one that has not accepted within a
// quarter of a second. It does not block.
func Conn(c Config, addresses ...string) (*grpc.ClientConn, error) {
	var state resolver.State
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("address %q: write HOST:PORT: %w", address, err)
		}
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address, ServerName: host})
	}
	builder := manual.NewBuilderWithScheme("meridian")
	builder.InitialState(state)
	conn, err := grpc.NewClient("meridian:///servers", append(c.options(addresses), grpc.WithResolvers(builder))...)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to %s: %w", addresses, err)
	}
	return conn, nil
}

func (c Config) options(addresses []string) []grpc.DialOption {
	options := []grpc.DialOption{grpc.WithTransportCredentials(c.Transport), grpc.WithDisableServiceConfig(), grpc.WithUserAgent(c.UserAgent)}
	if c.Log != nil {
		options = append(options, grpc.WithTransportCredentials(c.Log.observe(c.Transport)), grpc.WithStatsHandler(sentCalls{}))
		if !c.Proxy || !slices.ContainsFunc(addresses, proxied) {
			options = append(options, grpc.WithContextDialer(c.Log.dial))
		}
	}
	if c.Credentials != nil {
		options = append(options, grpc.WithPerRPCCredentials(c.Credentials))
	}
	if c.MaxMessage > 0 {
		options = append(options, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.MaxMessage), grpc.MaxCallSendMsgSize(c.MaxMessage)))
	}
	if c.KeepAlive > 0 {
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.KeepAlive, Timeout: keepAliveTimeout}))
	}
	if params := (grpc.ConnectParams{Backoff: c.Backoff, MinConnectTimeout: c.ConnectTimeout}); params != (grpc.ConnectParams{}) {
		if params.Backoff == (backoff.Config{}) {
			params.Backoff = backoff.DefaultConfig
		}
		params.MinConnectTimeout = cmp.Or(params.MinConnectTimeout, defaultConnectTimeout)
		options = append(options, grpc.WithConnectParams(params))
	}
	return append(options, c.Options...)
}

// proxied reports whether the environment names a proxy for a server.
func proxied(address string) bool {
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: address}})
	return proxy != nil || err != nil
}

// Rotate returns addresses in the order in which to try them after last, which
// comes last itself: it may be cut off, or about to stop. Where last is not among
// them, the order begins anywhere, so that many clients spread.
func Rotate(addresses []string, last string) []string {
	if len(addresses) == 0 {
		return nil
	}
	at := slices.Index(addresses, last) + 1
	if at == 0 {
		at = rand.IntN(len(addresses))
	}
	at %= len(addresses)
	return slices.Concat(addresses[at:], addresses[:at])
}

// Servers are the servers of one control plane, each of which takes every
// request. Calls go to the first one, in the order given, that accepts a
// connection, and stay with it until Leave. Safe for concurrent use.
type Servers struct {
	addresses []string
	config    Config

	mu   sync.Mutex
	conn *grpc.ClientConn // guarded by mu
}

var _ grpc.ClientConnInterface = (*Servers)(nil)

// NewServers returns the servers at some addresses. Close releases the connection.
func NewServers(c Config, addresses []string) (*Servers, error) {
	conn, err := Conn(c, addresses...)
	return &Servers{addresses: addresses, config: c, conn: conn}, err
}

// Leave has the next calls go to the servers after one, and to that one last.
// Calls in progress on it are cancelled.
func (s *Servers) Leave(server string) {
	if len(s.addresses) < 2 || !slices.Contains(s.addresses, server) {
		return
	}
	conn, err := Conn(s.config, Rotate(s.addresses, server)...)
	if err != nil {
		return // the connection of before is kept
	}
	s.mu.Lock()
	old := s.conn
	s.conn = conn
	s.mu.Unlock()
	_ = old.Close()
}

// Close ends the connection.
func (s *Servers) Close() { _ = s.current().Close() }

func (s *Servers) current() *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// Invoke implements grpc.ClientConnInterface.
func (s *Servers) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return s.current().Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (s *Servers) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return s.current().NewStream(ctx, desc, method, opts...)
}
