package server

import (
	"errors"
	"slices"
	"sync/atomic"

	"meridian/internal/rpcerr"
)

// ReasonStarting is the reason of what a server refuses because it is not ready
// yet.
const ReasonStarting = "STARTING"

// Readiness is whether a server is ready: it is closed at first, opens once, and
// closes for good when the server stops. It is a condition of readiness, and
// what keeps calls out until they can be answered. The zero value is closed; it
// is safe for concurrent use.
type Readiness struct {
	state  atomic.Int32
	reason atomic.Pointer[string]
}

const (
	stateStarting int32 = iota
	stateReady
	stateStopping
)

var (
	errStarting       = errors.New("the server is starting")
	errServerStopping = errors.New("the server is stopping")
)

// SetReason says what the server is waiting for, for those who ask why it is not
// ready. It changes nothing once the gate was opened.
func (g *Readiness) SetReason(what string) { g.reason.Store(&what) }

// SetReady makes the condition hold.
func (g *Readiness) SetReady() { g.state.CompareAndSwap(stateStarting, stateReady) }

// SetStopping makes it not hold, for good.
func (g *Readiness) SetStopping() { g.state.Store(stateStopping) }

// Check returns nil when the gate is open, else what is awaited.
func (g *Readiness) Check() error {
	switch g.state.Load() {
	case stateReady:
		return nil
	case stateStopping:
		return errServerStopping
	}
	if what := g.reason.Load(); what != nil {
		return errors.New("starting: " + *what)
	}
	return errStarting
}

// Started reports whether the gate was ever opened.
func (g *Readiness) Started() bool { return g.state.Load() != stateStarting }

// alwaysAllowed are the services that every server has and that answer at any time.
var alwaysAllowed = []string{"/grpc.health.", "/grpc.reflection."}

// CheckCall returns what refuses calls until the server is ready, except for health,
// reflection and the methods free, given by their full names
// ("/meridian.v1.ClusterService/Members"). A server that stops refuses nothing this
// way: the calls that it has taken may finish.
func (g *Readiness) CheckCall(free ...string) func(method string) error {
	return func(method string) error {
		if g.Started() || slices.Contains(free, method) || exempt(method) {
			return nil
		}
		return rpcerr.New(rpcerr.Unavailable, ReasonStarting, "%w", g.Check())
	}
}
