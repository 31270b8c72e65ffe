package commit

import (
	"context"
	"time"

	"meridian/internal/rpcerr"
)

// ReasonForgotten is the reason of the refusal of a request that is repeated after
// its id was forgotten.
const ReasonForgotten = "REQUEST_FORGOTTEN"

// clockMargin is how much the clocks of two servers may differ where it is decided
// whether a request is still remembered.
const clockMargin = 10 * time.Second

// Memory tells which requests a store remembers.
type Memory struct {
	// Remembers reports whether the batch of a request id is known to have been
	// applied, or surely was not within an age, by this server's clock.
	Remembers func(requestID string, now time.Time, age time.Duration) bool
	// Now is the clock that writes are stamped with.
	Now func() time.Time
}

// Check refuses a repeated request whose first attempt may have been applied and
// forgotten: it would take effect twice. age is how long ago that attempt was
// sent, 0 for the first one.
//
// The error is an *rpcerr.Error of code Conflict and reason ReasonForgotten, or
// that of Newest; its effect is rpcerr.EffectUnknown.
func (m Memory) Check(ctx context.Context, log Log, requestID string, age time.Duration) error {
	if age == 0 {
		return nil
	}
	now := m.Now()
	// A server that is behind has forgotten less.
	if err := Newest(ctx, log); err != nil {
		return rpcerr.WithEffect(err, rpcerr.EffectUnknown)
	}
	if m.Remembers(requestID, now, age+clockMargin) {
		return nil
	}
	return rpcerr.WithEffect(rpcerr.New(rpcerr.Conflict, ReasonForgotten,
		"the request was first sent %s ago, and request ids of that time are no longer remembered: it may have taken effect then; read the resources, and send what is missing as a new request",
		age.Round(time.Second)), rpcerr.EffectUnknown)
}
