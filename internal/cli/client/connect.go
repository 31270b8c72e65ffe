package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"google.golang.org/grpc/credentials"

	"meridian/internal/pki"
)

// connectionLog remembers how the attempts to connect went, so that a failure
// is explained by its cause and not by the text of a transport. It is safe for
// concurrent use.
type connectionLog struct {
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

func newConnectionLog() *connectionLog {
	return &connectionLog{problems: map[string]error{}, reached: map[string]bool{}}
}

// record notes how an attempt to connect to a server went.
func (l *connectionLog) record(server string, err error) {
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

// blame notes that the server of the latest connection did not do what it was
// asked to, and returns it.
func (l *connectionLog) blame(err error) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.problems[l.current] == nil {
		l.problems[l.current] = err
	}
	return l.current
}

// connected reports whether any attempt has succeeded.
func (l *connectionLog) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ok
}

// rejected reports whether the latest attempts failed, with every server that
// was tried, for a reason that waiting does not mend: the other end is not the
// one this client trusts.
func (l *connectionLog) rejected() bool {
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

func (l *connectionLog) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// problem is what is wrong with a server, nil when nothing is known of it.
func (l *connectionLog) problem(server string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problems[server]
}

// wasReached reports whether a server was connected to at some time.
func (l *connectionLog) wasReached(server string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reached[server]
}

// dial opens a TCP connection and records a failure.
func (l *connectionLog) dial(ctx context.Context, server string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", server)
	if err != nil {
		l.record(server, err)
		return nil, err
	}
	return dialledConn{conn, server}, nil
}

// dialledConn is a connection that knows which server was meant.
type dialledConn struct {
	net.Conn
	server string
}

// observe returns credentials that record how each handshake went.
func (l *connectionLog) observe(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &observedCredentials{TransportCredentials: inner, log: l}
}

type observedCredentials struct {
	credentials.TransportCredentials
	log *connectionLog
}

// ClientHandshake implements credentials.TransportCredentials.
func (o *observedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := o.TransportCredentials.ClientHandshake(ctx, authority, raw)
	server := authority
	if dialled, ok := raw.(dialledConn); ok {
		server = dialled.server
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		o.log.record(server, ctx.Err())
	} else {
		o.log.record(server, err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (o *observedCredentials) Clone() credentials.TransportCredentials {
	return &observedCredentials{TransportCredentials: o.TransportCredentials.Clone(), log: o.log}
}

// describeConnectError says what went wrong with a connection and what to check.
func describeConnectError(err error) (what, check string) {
	var (
		handshake *pki.HandshakeError
		dns       *net.DNSError
	)
	switch {
	case errors.As(err, &handshake):
		return handshake.Problem, checkHandshake(err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused",
			"Check that the server runs and listens there: its data directory lists the addresses in addresses.json."
	case errors.As(err, &dns):
		return "there is no host " + dns.Name, "Check the spelling of the address."
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to that host", "Check the address and this machine's network."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return "no answer to the attempt to connect", "Check the address; a firewall may drop the packets."
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection was closed during the TLS handshake",
			"Check that the address is that of a Meridian server's gRPC port."
	default:
		return err.Error(), "Check that the address is that of a Meridian server's gRPC port."
	}
}

// checkHandshake says what to check after a TLS handshake that failed.
func checkHandshake(err error) string {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		plaintext tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &authority):
		return "The right CA stands in the server's admin.yaml: with --address, add --config ADMIN.YAML or --ca-cert-file. A server that was set up anew has a new one."
	case errors.As(err, &hostname):
		return "Use an address that the certificate names."
	case errors.As(err, &plaintext):
		return "Check the port: it has to be the server's --grpc-addr, not its --http-addr."
	default:
		return "Check the server's certificate and the clocks of both machines."
	}
}
