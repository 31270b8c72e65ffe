package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"

	"meridian/internal/dial"
	"meridian/internal/pki"
)

// describeConnectError says what went wrong with a connection and what to check.
func describeConnectError(err error) (what, check string) {
	var (
		handshake *pki.HandshakeError
		dns       *net.DNSError
	)
	what = dial.Reason(err)
	switch {
	case errors.As(err, &handshake):
		return what, checkHandshake(err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return what, "Check that the server runs and listens there: its data directory lists the addresses in addresses.json."
	case errors.As(err, &dns):
		return what, "Check the spelling of the address."
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return what, "Check the address and this machine's network."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return what, "Check the address; a firewall may drop the packets."
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return what, "Check that the address is that of a Meridian server's gRPC port."
	default:
		return what, "Check that the address is that of a Meridian server's gRPC port."
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
		return "The CA is in the server's admin.yaml: with --address, add --config ADMIN.YAML or --ca-cert-file. A server with a new data directory has a new CA."
	case errors.As(err, &hostname):
		return "Use an address that the certificate names."
	case errors.As(err, &plaintext):
		return "Check the port: it has to be the server's --grpc-addr, not its --http-addr."
	default:
		return "Check the server's certificate and the clocks of both machines."
	}
}
