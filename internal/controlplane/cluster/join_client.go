package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/clientconfig"
	"meridian/internal/dial"
	"meridian/internal/pki"
	"meridian/internal/rpcerr"
)

const (
	// joinTimeout bounds one attempt at one server.
	joinTimeout = 10 * time.Second
	// firstRetry and longestPause stand between rounds of attempts.
	firstRetry, maxRetry = 250 * time.Millisecond, 5 * time.Second
)

// joinClient is a server that requests to join.
type joinClient struct {
	bundle clientconfig.ServerBundle
	// source names the bundle's file.
	source  string
	request *meridianv1.JoinRequest
	log     *slog.Logger
	kind    Kind
	now     func() time.Time
	// waiting is told what is waited for.
	waiting func(string)
}

// run asks every server of the bundle in turn until one lets it in, for as long
// as none can answer. It gives up when a server refuses and no other one lets it
// in either.
func (a *joinClient) run(ctx context.Context) (*meridianv1.JoinResponse, error) {
	var told time.Time
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		response, unreached, err := a.tryAll(ctx)
		if response != nil || err != nil {
			return response, err
		}
		a.waiting("no server of the " + a.kind.String() + " can let this one in (" + unreached + ")")
		if now := a.now(); now.Sub(told) >= warnInterval {
			told = now
			a.log.Warn("no server can let this one in yet: trying on", "reasons", unreached)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// tryAll asks every server once. unreached says why those cannot answer that do
// not.
func (a *joinClient) tryAll(ctx context.Context) (_ *meridianv1.JoinResponse, unreached string, err error) {
	var refused error
	var reasons []string
	for _, addr := range a.bundle.Addresses {
		response, err := a.tryServer(ctx, addr)
		switch {
		case err == nil:
			return response, "", nil
		case ctx.Err() != nil:
			return nil, "", context.Cause(ctx)
		case isRefusal(err):
			refused = fmt.Errorf("--%s %s: the server at %s does not let this one in: %w", a.kind.BundleFlag, a.source, addr, err)
		default:
			reasons = append(reasons, addr+": "+err.Error())
		}
	}
	return nil, strings.Join(reasons, "; "), refused
}

// isRefusal reports whether a server has refused, as opposed to not being able to
// decide now.
func isRefusal(err error) bool {
	switch rpcerr.CodeOf(err) {
	case rpcerr.Unauthenticated, rpcerr.Denied, rpcerr.Conflict, rpcerr.Invalid, rpcerr.NotFound, rpcerr.Unsupported:
		return true
	}
	return false
}

// tryServer asks one server.
func (a *joinClient) tryServer(ctx context.Context, addr string) (*meridianv1.JoinResponse, error) {
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: []byte(a.bundle.CA), Source: a.source})
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "", "%w", err)
	}
	log := dial.NewLog()
	conn, err := dial.Conn(dial.Config{
		Transport: transport, Credentials: token.Credentials(a.bundle.Token, false), UserAgent: a.kind.userAgent(), Log: log,
	}, addr)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "", "%w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	response, err := meridianv1.NewJoinServiceClient(conn).Join(ctx, a.request)
	if err == nil {
		return response, nil
	}
	if cause := log.Last(); cause != nil {
		return nil, errors.New(dial.Reason(cause))
	}
	return nil, rpcerr.FromStatus(err)
}
