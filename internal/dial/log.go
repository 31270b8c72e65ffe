package dial

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"meridian/internal/pki"
	"meridian/internal/rpcerr"
)

// Log remembers what became of attempts to connect, so that a failure is
// explained by its cause. Safe for concurrent use.
type Log struct {
	mu sync.Mutex // guards all below
	ok bool
	// current is the server of the latest connection.
	current string
	// last is the error of the latest attempt, nil after a successful one;
	// problems are what is wrong with each server that was tried.
	last     error
	problems map[string]error
	// reached are the servers that were connected to at some time.
	reached map[string]bool
}

// NewLog returns an empty log.
func NewLog() *Log {
	return &Log{problems: map[string]error{}, reached: map[string]bool{}}
}

// Record notes how an attempt to connect to a server went.
func (l *Log) Record(server string, err error) {
	if errors.Is(err, context.Canceled) {
		return // another server was quicker
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
	l.ok = l.ok || err == nil
	if l.problems[server] = err; err == nil {
		l.current = server
		l.reached[server] = true
		delete(l.problems, server)
	}
}

// Blame notes that the server of the latest connection did not do what it was
// asked to, and returns it.
func (l *Log) Blame(err error) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.problems[l.current] == nil {
		l.problems[l.current] = err
	}
	return l.current
}

// Connected reports whether any attempt has succeeded.
func (l *Log) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ok
}

// Rejected reports whether the latest attempts failed, with every server that
// was tried, for a reason that does not change by waiting: the other end is not the
// one this client trusts.
func (l *Log) Rejected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range l.problems {
		if !isRejection(err) {
			return false
		}
	}
	return isRejection(l.last)
}

func isRejection(err error) bool {
	var handshake *pki.HandshakeError
	return errors.As(err, &handshake)
}

// Last is the error of the latest attempt, nil after a successful one.
func (l *Log) Last() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Explain returns the error of a call as an *rpcerr.Error. Where there was no
// connection to make the call on, it is the cause of that, with the error of the
// latest attempt in its chain, in place of what gRPC writes around its text.
func (l *Log) Explain(err error) error {
	err = rpcerr.FromStatus(err)
	var said *rpcerr.Error
	if last := l.Last(); last != nil && errors.As(err, &said) && said.Code == rpcerr.Unavailable && said.Reason == "" {
		return rpcerr.New(rpcerr.Unavailable, "", "%w", last)
	}
	return err
}

// UnaryClient has the errors of unary calls explained.
func (l *Log) UnaryClient(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return l.Explain(invoke(ctx, method, req, reply, cc, opts...))
}

// StreamClient has the errors of streams that cannot begin explained.
func (l *Log) StreamClient(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := begin(ctx, desc, cc, method, opts...)
	return stream, l.Explain(err)
}

// Problem is what is wrong with a server, nil when nothing is known of it.
func (l *Log) Problem(server string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problems[server]
}

// Reached reports whether a server was connected to at some time.
func (l *Log) Reached(server string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reached[server]
}

// dial opens a TCP connection and records a failure.
func (l *Log) dial(ctx context.Context, server string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
	if err != nil {
		l.Record(server, err)
		return nil, err
	}
	return dialedConn{conn, server}, nil
}

// dialedConn is a connection that knows which server was meant.
type dialedConn struct {
	net.Conn
	server string
}

// observe returns credentials that record how each handshake went.
func (l *Log) observe(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &loggedCredentials{TransportCredentials: inner, log: l}
}

type loggedCredentials struct {
	credentials.TransportCredentials
	log *Log
}

// ClientHandshake implements credentials.TransportCredentials.
func (o *loggedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := o.TransportCredentials.ClientHandshake(ctx, authority, raw)
	server := authority
	if dialled, ok := raw.(dialedConn); ok {
		server = dialled.server
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		o.log.Record(server, ctx.Err())
	} else {
		o.log.Record(server, err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (o *loggedCredentials) Clone() credentials.TransportCredentials {
	return &loggedCredentials{TransportCredentials: o.TransportCredentials.Clone(), log: o.log}
}

// Reason says in a few words why a connection could not be made, without the
// address and the operation, which callers name themselves.
func Reason(err error) string {
	var (
		handshake *pki.HandshakeError
		dns       *net.DNSError
		call      *os.SyscallError
		op        *net.OpError
	)
	switch {
	case errors.As(err, &handshake):
		return handshake.Problem
	case errors.As(err, &dns):
		return "there is no host " + dns.Name
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to that host"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return "no answer to the attempt to connect"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection was closed during the TLS handshake"
	case errors.As(err, &call):
		return call.Err.Error()
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return err.Error()
}
