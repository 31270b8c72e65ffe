package token

import (
	"context"

	"google.golang.org/grpc/credentials"
)

// bearer send a bearer token with every call.
type bearer struct {
	header    map[string]string
	plaintext bool
}

// Credentials returns credentials that send a token with every call. They
// refuse a connection without TLS unless plaintext says otherwise.
func Credentials(token string, plaintext bool) credentials.PerRPCCredentials {
	return bearer{header: map[string]string{"authorization": "Bearer " + token}, plaintext: plaintext}
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (c bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return c.header, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (c bearer) RequireTransportSecurity() bool { return !c.plaintext }

// String keeps the token out of logs.
func (c bearer) String() string { return "a bearer token" }
