package authn

import (
	"context"
	"errors"
	"net"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"meridian/internal/authn/token"
	"meridian/internal/rpcerr"
)

// Reasons of the refusals, for programs.
const (
	ReasonNoCredentials = "CREDENTIALS_MISSING"
	ReasonBadToken      = "TOKEN_REFUSED"
	ReasonZoneOnly      = "ZONES_ONLY"
	ReasonNotForZones   = "NOT_FOR_ZONES"
	ReasonServerOnly    = "SERVERS_ONLY"
	ReasonNotForServers = "NOT_FOR_SERVERS"
)

// exempt services need no authentication: they say whether the server is up, and
// the public schema.
var exempt = []string{"/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"}

// Authenticator establishes the principal of each gRPC request (§6.6): the subject
// of its bearer token, else the admin when it comes from loopback and that is
// enabled, else the anonymous principal. Credentials that do not verify refuse the
// request. Its methods are safe for concurrent use.
type Authenticator struct {
	// Verifier returns the current keys; required.
	Verifier func() *token.Verifier
	// LocalhostIsAdmin makes loopback callers without credentials the admin.
	LocalhostIsAdmin bool
	// Authorize decides whether a principal may call a method at all; nil permits
	// every call.
	Authorize func(p Principal, method string) error
	// Refused is called for every request that was refused and for every stream
	// that was terminated, with what is known of the principal. Optional; it must
	// not block.
	Refused func(ctx context.Context, p Principal, method string, err error)
	// Authenticated is called for every request whose caller was authenticated, with
	// the context of the request. Optional; it must not block.
	Authenticated func(ctx context.Context)
	// Exempt reports that a method takes no authentication at the moment: a server
	// that does not have its keys yet cannot verify any. Optional.
	Exempt func(method string) bool
	// Revokes reports that a method may revoke its caller's own token: Recheck leaves
	// such a call alone, so that it is answered. It has to be one that ends by itself.
	// Optional.
	Revokes func(method string) bool

	streams openStreams
}

// Authenticate returns the principal of a request, from its metadata and its peer.
// The error is an *rpcerr.Error of code Unauthenticated that wraps the ErrToken
// that refused the token.
func (a *Authenticator) Authenticate(ctx context.Context) (Principal, error) {
	switch credentials := metadata.ValueFromIncomingContext(ctx, "authorization"); len(credentials) {
	case 0:
		if a.LocalhostIsAdmin && fromLoopback(ctx) {
			return LoopbackAdmin(), nil
		}
		return Anonymous(), nil
	case 1:
		return a.bearer(credentials[0])
	default:
		return Principal{}, refuse(errors.New("more than one set of credentials"))
	}
}

func (a *Authenticator) bearer(credentials string) (Principal, error) {
	scheme, token, found := strings.Cut(credentials, " ")
	if !found || !strings.EqualFold(scheme, "bearer") {
		return Principal{}, refuse(errors.New("only bearer tokens are accepted"))
	}
	verified, err := a.Verifier().Verify(strings.TrimSpace(token))
	if err != nil {
		return Principal{}, refuse(err)
	}
	return principalOf(verified), nil
}

func refuse(err error) error {
	return rpcerr.New(rpcerr.Unauthenticated, ReasonBadToken, "not authenticated: %w", err)
}

// fromLoopback reports whether the peer's address is this host's loopback.
func fromLoopback(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	addr, ok := p.Addr.(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// enter authenticates and authorizes a request.
func (a *Authenticator) enter(ctx context.Context, method string) (context.Context, error) {
	for _, service := range exempt {
		if strings.HasPrefix(method, service) {
			return ctx, nil
		}
	}
	if a.Exempt != nil && a.Exempt(method) {
		return ctx, nil
	}
	p, err := a.Authenticate(ctx)
	if err == nil && a.Authorize != nil {
		err = a.Authorize(p, method)
	}
	if err != nil {
		var lapsed *token.LapsedError
		if errors.As(err, &lapsed) {
			p = principalOf(lapsed.Token)
		}
		a.refused(ctx, p, method, err)
		return nil, err
	}
	if a.Authenticated != nil && p.Source != FromNothing {
		a.Authenticated(ctx)
	}
	return WithPrincipal(ctx, p), nil
}

func (a *Authenticator) refused(ctx context.Context, p Principal, method string, err error) {
	if a.Refused != nil {
		a.Refused(ctx, p, method, err)
	}
}
