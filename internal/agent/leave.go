package agent

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"meridian/internal/rpcerr"
)

// reasonDraining is the reason that a zone gives which drains.
const reasonDraining = "ZONE_DRAINING"

// zoneConn is the connection to the zone, which changes when the zone drains: calls in
// progress on the one before are cancelled then, and their callers call again.
type zoneConn struct {
	mu   sync.Mutex
	conn *grpc.ClientConn // guarded by mu
}

// use has calls go over a connection from now on, and closes the one before.
func (z *zoneConn) use(conn *grpc.ClientConn) {
	z.mu.Lock()
	old := z.conn
	z.conn = conn
	z.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
}

func (z *zoneConn) close() { _ = z.current().Close() }

func (z *zoneConn) current() *grpc.ClientConn {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.conn
}

// Invoke implements grpc.ClientConnInterface.
func (z *zoneConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return z.current().Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (z *zoneConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return z.current().NewStream(ctx, desc, method, opts...)
}

// departure is the way from a zone that drains to an address that takes the dataplane.
// Until there is one, the streams that are relayed stay where they are.
type departure struct {
	// begun: the zone said that it drains.
	begun bool
	// tried is the index of the address that was tried last.
	tried int
}

// next returns where to register: the connection in use, or, while the zone drains and
// there are several addresses, a new one that tries the next of them first, which moves
// says.
func (p *departure) next(a *agent) (conn *grpc.ClientConn, moves bool, err error) {
	if !p.begun || len(a.cfg.Addresses) < 2 {
		return a.zone.current(), false, nil
	}
	p.tried = (p.tried + 1) % len(a.cfg.Addresses)
	// All of them, that one first: the connection stays, and has to find another zone
	// when that one goes away.
	conn, err = a.dial(slices.Concat(a.cfg.Addresses[p.tried:], a.cfg.Addresses[:p.tried])...)
	return conn, true, err
}

// ended takes why an attempt ended; registered says whether it got so far.
func (p *departure) ended(err error, registered bool) {
	if rpcerr.HasReason(rpcerr.FromStatus(err), reasonDraining) {
		p.begun = true
	} else if registered {
		p.begun = false
	}
}
