package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/rpcerr"
)

// maxMessageBytes bounds one message in either direction. It is well above the
// largest batch that a server accepts, so that the server's own limit, with its
// own message, is the one that is met.
const maxMessageBytes = 64 << 20

// Pauses between attempts while a control plane is unavailable.
const (
	firstRetryPause = 50 * time.Millisecond
	maxRetryPause   = time.Second
	// noticedAttempt is the attempt after which the user is told: about a second
	// after the first. noticedAfter is when that is where attempts take long.
	noticedAttempt = 5
	noticedAfter   = 2 * time.Second
)

// target is the control plane that a command talks to.
type target struct {
	// addresses are host:port of its servers; any of them takes any request.
	addresses []string
	// transport explains its failures, see authn.ClientTransport.
	transport credentials.TransportCredentials
	// credentials go with every call; nil for a caller without a token.
	credentials credentials.PerRPCCredentials
	// tokenSource says where the token of the credentials stands.
	tokenSource string
	// source says where all this was configured, for messages.
	source string
}

func (t target) String() string { return strings.Join(t.addresses, ",") }

// client is a connection to a control plane. Close it.
type client struct {
	meridianv1.AdminServiceClient
	meridianv1.InspectServiceClient
	meridianv1.ControlServiceClient
	meridianv1.AccessServiceClient
	meridianv1.TokenServiceClient
	meridianv1.ClusterServiceClient

	servers *servers
	target  target
	log     *connectionLog
	timeout time.Duration
	// notice tells the user what is going on.
	notice func(format string, args ...any)
}

// connect opens the control plane that the flags and the configuration choose.
// Nothing is sent until the first call.
func (a *app) connect() (*client, error) {
	t, err := a.target()
	if err != nil {
		return nil, err
	}
	return dial(t, a.connection.timeout, a.message)
}

func dial(t target, timeout time.Duration, notice func(string, ...any)) (*client, error) {
	log := newConnectionLog()
	servers, err := newServers(t, log)
	if err != nil {
		return nil, err
	}
	return &client{
		AdminServiceClient:   meridianv1.NewAdminServiceClient(servers),
		InspectServiceClient: meridianv1.NewInspectServiceClient(servers),
		ControlServiceClient: meridianv1.NewControlServiceClient(servers),
		AccessServiceClient:  meridianv1.NewAccessServiceClient(servers),
		TokenServiceClient:   meridianv1.NewTokenServiceClient(servers),
		ClusterServiceClient: meridianv1.NewClusterServiceClient(servers),
		servers:              servers,
		target:               t,
		log:                  log,
		timeout:              timeout,
		notice:               notice,
	}, nil
}

// Close releases the connection.
func (c *client) Close() { c.servers.Close() }

// call makes one request within the timeout. While a control plane that was
// reached before is unavailable (it restarts, or it chooses a leader) the
// request is sent again, to the next of its servers if it has several: fn must
// be safe to repeat, which writes are by their request id. A control plane that
// cannot be reached at all is reported at once.
func (c *client) call(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.explain(ctx, c.repeat(ctx, fn))
}

func (c *client) repeat(ctx context.Context, fn func(context.Context) error) error {
	var unavailable error
	tried, begun, noticed, doubtful := 0, time.Now(), false, false
	for attempt, wait := 1, firstRetryPause; ; {
		err := fn(ctx)
		if status.Code(err) == codes.DeadlineExceeded && unavailable != nil {
			return unavailable // it was so all the time: say why
		}
		if status.Code(err) != codes.Unavailable || !c.log.connected() || c.log.rejected() || lasting(err) {
			return err
		}
		doubtful, err = doubt(err, doubtful)
		unavailable = err
		// Another server may be able to do what this one cannot.
		c.servers.leave(c.log.blame(errors.New(c.problem(err))))
		tried++
		everywhere := tried >= len(c.target.addresses)
		if !noticed && (everywhere && attempt == noticedAttempt || time.Since(begun) > noticedAfter) {
			c.notice("The control plane is unavailable (%s); trying on for up to %s.", c.problem(err), c.timeout)
			noticed = true
		}
		if !everywhere {
			if ctx.Err() != nil {
				return err
			}
			continue
		}
		if pause(ctx, wait); ctx.Err() != nil {
			return err
		}
		tried, attempt, wait = 0, attempt+1, min(2*wait, maxRetryPause)
	}
}

// nothingWritten begins what a control plane says about a write that it refused.
const nothingWritten = "nothing was written: "

// doubt keeps an attempt from saying that nothing was written when one before it
// had no answer, and may have written or may yet write. It returns whether that
// is so from now on.
func doubt(err error, before bool) (doubtful bool, _ error) {
	var answered *rpcerr.Error
	if !errors.As(rpcerr.FromStatus(err), &answered) {
		return before, err
	}
	if what, refused := strings.CutPrefix(answered.Message, nothingWritten); refused && before {
		return true, rpcerr.New(answered.Code, "OUTCOME_UNKNOWN",
			"whether it was written is not known, since an attempt had no answer; a later one was refused: %s", what)
	}
	lost := answered.Reason == "" && fromTransport(answered.Message) && !strings.HasPrefix(answered.Message, "connection error:")
	return before || lost || answered.Reason == "OUTCOME_UNKNOWN", err
}

// problem says in words why a control plane that was reached before is
// unavailable: in its own, or by what happened to the connection.
func (c *client) problem(err error) string {
	var answered *rpcerr.Error
	if errors.As(rpcerr.FromStatus(err), &answered) && (answered.Reason != "" || !fromTransport(answered.Message)) {
		return answered.Message
	}
	if last := c.log.lastError(); last != nil {
		what, _ := describeConnectError(last)
		return what
	}
	return "the connection was lost"
}

// fromTransport reports whether gRPC made a message up about a connection that
// broke: it has no other mark than its text.
func fromTransport(message string) bool {
	for _, mark := range []string{"connection error:", "error reading from server", "closing transport", "transport is closing"} {
		if strings.Contains(message, mark) {
			return true
		}
	}
	return false
}

// lasting reports whether the control plane itself is fine and what it lacks is
// a zone to ask: waiting for one is for the user to decide.
func lasting(err error) bool {
	err = rpcerr.FromStatus(err)
	return rpcerr.HasReason(err, "NO_ZONES") || rpcerr.HasReason(err, "ZONE_UNAVAILABLE")
}

// pause waits for a while or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// explain turns the outcome of a call into words about this control plane.
func (c *client) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	var answered *rpcerr.Error
	if err = rpcerr.FromStatus(err); !errors.As(err, &answered) {
		return err
	}
	// An error that names its reason is the server's own word.
	own := answered.Reason != ""
	switch {
	case answered.Reason == authn.ReasonBadToken:
		return c.explainToken(answered)
	case answered.Code == rpcerr.Timeout && !c.log.connected():
		return failf(exitTimeout, "no connection to the control plane at %s within %s", c.target, c.timeout).
			with(c.eachServer()...).
			with("The server may hang, or a firewall drop the packets; --timeout waits longer.", c.whereFrom())
	case answered.Code == rpcerr.Timeout && !own:
		return failf(exitTimeout, "the control plane at %s did not finish within %s", c.target, c.timeout).
			with("It may still be working on the request; --timeout waits longer.")
	case lasting(answered):
		return answered
	case answered.Code == rpcerr.Unavailable && c.log.connected() && !c.log.rejected():
		return failf(exitUnavailable, "the control plane at %s is unavailable: %s", c.target, c.problem(answered)).with(c.eachServer()...)
	case answered.Code == rpcerr.Unavailable:
		return c.explainUnreachable(answered.Message)
	}
	return answered
}

// explainToken says whose token it was that was refused, and what to do.
func (c *client) explainToken(answered *rpcerr.Error) error {
	f := &failure{code: exitDenied, err: answered}
	if c.target.tokenSource == "" {
		return f
	}
	return f.with("The token is that of "+c.target.tokenSource+".", "`meridian generate user-token`, by somebody who may, issues another.")
}

// explainUnreachable says why no connection came about.
func (c *client) explainUnreachable(message string) error {
	cause := c.log.lastError()
	if cause == nil {
		return failf(exitUnavailable, "the control plane at %s cannot be reached: %s", c.target, message).with(c.whereFrom())
	}
	what, check := describeConnectError(cause)
	return failf(exitUnavailable, "the control plane at %s cannot be reached: %s", c.target, what).
		with(c.eachServer()...).with(check, c.whereFrom())
}

// eachServer says, where there are several servers, what is wrong with each.
func (c *client) eachServer() []string {
	if len(c.target.addresses) == 1 {
		return nil
	}
	lines := make([]string, len(c.target.addresses))
	for i, address := range c.target.addresses {
		said := "not tried"
		if err := c.log.problem(address); err != nil {
			said, _ = describeConnectError(err)
		} else if c.log.wasReached(address) {
			said = "was reached"
		}
		lines[i] = "  " + address + ": " + said
	}
	return lines
}

func (c *client) whereFrom() string { return "The address comes from " + c.target.source + "." }
