package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// ClientTLSConfig says how a client verifies servers.
type ClientTLSConfig struct {
	// CAPEM holds the authorities to trust; empty means the system's.
	CAPEM []byte
	// Source says where CAPEM came from, for messages.
	Source string
	// SkipVerify skips the verification of server certificates (insecure).
	SkipVerify bool
}

// ClientTLS returns the TLS 1.3 configuration of a client. It fails when CAPEM
// has something in it, but no certificate.
func ClientTLS(config ClientTLSConfig) (*tls.Config, error) {
	out := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: config.SkipVerify, //nolint:gosec // asked for by name
	}
	if len(config.CAPEM) == 0 {
		return out, nil
	}
	out.RootCAs = x509.NewCertPool()
	if !out.RootCAs.AppendCertsFromPEM(config.CAPEM) {
		return nil, fmt.Errorf("there is no CA certificate in %s", config.Source)
	}
	return out, nil
}

// HandshakeError says why a TLS handshake failed. It wraps the error of crypto/tls or crypto/x509.
type HandshakeError struct {
	// Server is the name or address that was called.
	Server string
	// Problem is the sentence about it.
	Problem string
	cause   error
}

// Error returns the server and the problem.
func (e *HandshakeError) Error() string { return "connecting to " + e.Server + ": " + e.Problem }

// Unwrap returns the error of the handshake.
func (e *HandshakeError) Unwrap() error { return e.cause }

// ExplainHandshake turns the error of a TLS handshake into a *HandshakeError;
// source is where the trusted authorities came from. An error that has nothing
// to do with TLS is returned unchanged.
func ExplainHandshake(err error, server, source string) error {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		plaintext tls.RecordHeaderError
	)
	if source == "" {
		source = "the system's certificates"
	}
	explained := &HandshakeError{Server: server, cause: err}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &authority):
		explained.Problem = "the server's certificate is not signed by the CA in " + source
	case errors.As(err, &hostname):
		explained.Problem = "the server's certificate does not name it: " + hostname.Error()
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		explained.Problem = "the server's certificate has expired or is not valid yet"
	case errors.As(err, &invalid):
		explained.Problem = "the server's certificate cannot be used: " + invalid.Error()
	case errors.As(err, &plaintext):
		explained.Problem = "the server does not speak TLS on this port"
	default:
		return err
	}
	return explained
}

// clientTransport is TLS whose failures explain themselves.
type clientTransport struct {
	credentials.TransportCredentials
	source string
}

// ClientTransport returns gRPC credentials whose handshake errors are
// *HandshakeError. gRPC passes on only their text, inside its own.
func ClientTransport(config ClientTLSConfig) (credentials.TransportCredentials, error) {
	tlsConfig, err := ClientTLS(config)
	if err != nil {
		return nil, err
	}
	return &clientTransport{TransportCredentials: credentials.NewTLS(tlsConfig), source: config.Source}, nil
}

// FollowingTransport is ClientTransport for authorities that may change: config is
// asked at every handshake. It must be safe for concurrent use.
func FollowingTransport(config func() ClientTLSConfig) (credentials.TransportCredentials, error) {
	first, err := ClientTransport(config())
	if err != nil {
		return nil, err
	}
	return &followingTransport{TransportCredentials: first, config: config}, nil
}

// FileTransport is ClientTransport for the authorities in a file. It is read at every
// handshake, as they may have been replaced; while there is none that can be used, those
// that were there last count.
func FileTransport(path string) (credentials.TransportCredentials, error) {
	text, err := ReadFile(path, maxPEMBytes)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 { // it would stand for the system's authorities
		return nil, fmt.Errorf("%s: the file is empty", path)
	}
	var mu sync.Mutex
	last := ClientTLSConfig{CAPEM: text, Source: path}
	return FollowingTransport(func() ClientTLSConfig {
		mu.Lock()
		defer mu.Unlock()
		if text, err := ReadFile(path, maxPEMBytes); err == nil && len(text) > 0 {
			next := last
			next.CAPEM = text
			if _, err := ClientTLS(next); err == nil {
				last = next
			}
		}
		return last
	})
}

// followingTransport is a clientTransport that is made anew for every handshake.
type followingTransport struct {
	credentials.TransportCredentials
	config func() ClientTLSConfig
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *followingTransport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now, err := ClientTransport(t.config())
	if err != nil {
		return nil, nil, err
	}
	return now.ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (t *followingTransport) Clone() credentials.TransportCredentials {
	return &followingTransport{TransportCredentials: t.TransportCredentials.Clone(), config: t.config}
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *clientTransport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	return conn, info, ExplainHandshake(err, authority, t.source)
}

// Clone implements credentials.TransportCredentials.
func (t *clientTransport) Clone() credentials.TransportCredentials {
	return &clientTransport{TransportCredentials: t.TransportCredentials.Clone(), source: t.source}
}
