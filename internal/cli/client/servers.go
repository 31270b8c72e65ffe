package client

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"meridian/internal/cli/exit"
	"meridian/internal/version"
)

// Of a connection to one of several servers: after what silence the server is
// asked whether it is alive, and how long it has to answer before the request
// goes to another one.
const (
	aliveAfter  = 12 * time.Second
	aliveWithin = 3 * time.Second
)

// servers are the servers of one control plane, which all take the same
// requests. Calls go to the first one, in the order given, that takes a
// connection: the next one is tried beside it when it has not done so within a
// quarter of a second. They stay there until the server is left.
//
// It is safe for concurrent use.
type servers struct {
	addresses []string
	options   []grpc.DialOption

	mu   sync.Mutex
	conn *grpc.ClientConn // guarded by mu
}

var _ grpc.ClientConnInterface = (*servers)(nil)

func newServers(t Target, log *connectionLog) (*servers, error) {
	s := &servers{addresses: t.addresses, options: []grpc.DialOption{
		grpc.WithTransportCredentials(log.observe(t.transport)),
		grpc.WithContextDialer(log.dial),
		grpc.WithUserAgent("meridian/" + version.String()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRetryPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: MaxRetryPause},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithDisableServiceConfig(),
	}}
	if t.credentials != nil {
		s.options = append(s.options, grpc.WithPerRPCCredentials(t.credentials))
	}
	if len(t.addresses) > 1 {
		s.options = append(s.options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveAfter, Timeout: aliveWithin}))
	}
	var err error
	s.conn, err = s.dial(t.addresses)
	return s, err
}

// dial prepares a connection to the first of some servers that takes one.
func (s *servers) dial(addresses []string) (*grpc.ClientConn, error) {
	var state resolver.State
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, exit.Usagef("address %q: write HOST:PORT", address)
		}
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address, ServerName: host})
	}
	builder := manual.NewBuilderWithScheme("meridian")
	builder.InitialState(state)
	conn, err := grpc.NewClient("meridian:///control-plane", append(slices.Clone(s.options), grpc.WithResolvers(builder))...)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to %s: %w", addresses, err)
	}
	return conn, nil
}

// leave has the next calls go to the servers after one, and to that one last.
// Calls under way on it are cut off.
func (s *servers) leave(server string) {
	at := slices.Index(s.addresses, server)
	if len(s.addresses) < 2 || at < 0 {
		return
	}
	conn, err := s.dial(slices.Concat(s.addresses[at+1:], s.addresses[:at+1]))
	if err != nil {
		return // as before, then
	}
	s.mu.Lock()
	old := s.conn
	s.conn = conn
	s.mu.Unlock()
	_ = old.Close()
}

// Close ends the connection.
func (s *servers) Close() { _ = s.current().Close() }

func (s *servers) current() *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// Invoke implements grpc.ClientConnInterface.
func (s *servers) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return s.current().Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (s *servers) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return s.current().NewStream(ctx, desc, method, opts...)
}
