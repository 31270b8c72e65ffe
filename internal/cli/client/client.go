// Package client connects the command to a control plane: it reads the flags and
// the client configuration, dials the servers, and sends requests.
//
// Guarantees. A request goes to the first server that takes a connection and is
// sent again, to the next server, while the control plane is unavailable and the
// timeout lasts; callers give writes a request id, so that a repeated write takes
// effect once. After an attempt without an answer no error claims that nothing was
// written. A failed connection is explained by its cause. The token of a
// configuration entry is sent to the addresses of that entry only.
//
// Non-goals: printing, and knowing what a command does.
package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/batch"
	"meridian/internal/cli/exit"
	"meridian/internal/clientconfig"
	"meridian/internal/dial"
	"meridian/internal/rpcerr"
	"meridian/internal/version"
)

// maxMessageBytes bounds one message in either direction. It is well above the
// largest batch that a server accepts, so that the server's own limit, with its
// own message, is the one that is met.
const maxMessageBytes = 64 << 20

// keepAlive is after what silence a server that is one of several is asked whether
// it is alive.
const keepAlive = 12 * time.Second

// Pauses between attempts while a control plane is unavailable.
const (
	firstRetryPause = 50 * time.Millisecond
	MaxRetryPause   = time.Second
	// noticedAttempt is the attempt after which the user is notified: about a second
	// after the first. noticedAfter is when that is where attempts take long.
	noticedAttempt = 5
	noticedAfter   = 2 * time.Second
)

// Target is the control plane that a command talks to.
type Target struct {
	// addresses are host:port of its servers; any of them takes any request.
	addresses []string
	// transport explains its failures, see pki.ClientTransport.
	transport credentials.TransportCredentials
	// credentials go with every call; nil for a caller without a token.
	credentials credentials.PerRPCCredentials
	// tokenSource says where the token comes from.
	tokenSource string
	// source says where all this was configured, for messages.
	source string
	// learn has the configuration trust the authorities that a server has named; nil
	// where it does not say which to trust.
	learn func(named []byte) (bool, error)
	// learnServers has it know the servers that one has named, and returns those that
	// it knows if that changed; nil where the user chose the servers.
	learnServers func(named []byte) ([]string, error)
}

// String lists the addresses.
func (t Target) String() string { return strings.Join(t.addresses, ",") }

// Client is a connection to a control plane. Close it.
type Client struct {
	meridianv1.AdminServiceClient
	meridianv1.InspectServiceClient
	meridianv1.ControlServiceClient
	meridianv1.AccessServiceClient
	meridianv1.TokenServiceClient
	meridianv1.ClusterServiceClient
	meridianv1.AuditServiceClient
	meridianv1.RolloutServiceClient

	servers *dial.Servers
	// Target is what it is connected to, Timeout how long a request may take.
	Target  Target
	log     *dial.Log
	Timeout time.Duration
	headers *headers
	// notice informs the user about retries.
	notice func(format string, args ...any)
	// spent is what the command has taken of Timeout.
	spent time.Duration
	// leaderless says why there is no leader, where the server that has none knows; nil until
	// it is asked.
	leaderless atomic.Pointer[exit.Failure]
}

// Connect opens the control plane that the flags and the configuration choose.
// Nothing is sent until the first call.
func (c *Flags) Connect(notice func(format string, args ...any)) (*Client, error) {
	t, err := c.target()
	if err != nil {
		return nil, err
	}
	return connect(t, c.Timeout, notice)
}

func connect(t Target, timeout time.Duration, notice func(string, ...any)) (*Client, error) {
	log := dial.NewLog()
	config := dial.Config{
		Transport: t.transport, Credentials: t.credentials, UserAgent: "meridian/" + version.String(), MaxMessage: maxMessageBytes,
		Backoff:        backoff.Config{BaseDelay: firstRetryPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: MaxRetryPause},
		ConnectTimeout: 5 * time.Second, Log: log,
	}
	if len(t.addresses) > 1 {
		config.KeepAlive = keepAlive
	}
	servers, err := dial.NewServers(config, t.addresses)
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	heard := &headers{ClientConnInterface: servers}
	return &Client{
		AdminServiceClient:   meridianv1.NewAdminServiceClient(heard),
		InspectServiceClient: meridianv1.NewInspectServiceClient(heard),
		ControlServiceClient: meridianv1.NewControlServiceClient(heard),
		AccessServiceClient:  meridianv1.NewAccessServiceClient(heard),
		TokenServiceClient:   meridianv1.NewTokenServiceClient(heard),
		ClusterServiceClient: meridianv1.NewClusterServiceClient(heard),
		AuditServiceClient:   meridianv1.NewAuditServiceClient(heard),
		RolloutServiceClient: meridianv1.NewRolloutServiceClient(heard),
		servers:              servers,
		headers:              heard,
		Target:               t,
		log:                  log,
		Timeout:              timeout,
		notice:               notice,
	}, nil
}

// Close releases the connection. The servers and the authorities that a server has
// named meanwhile are kept in the configuration.
func (c *Client) Close() {
	c.servers.Close()
	c.learnServers(c.headers.last(clientconfig.ServersHeader))
	named := c.headers.last(clientconfig.AuthoritiesHeader)
	if c.Target.learn == nil || len(named) == 0 {
		return
	}
	switch changed, err := c.Target.learn(named); {
	case err != nil && c.notice != nil:
		c.notice("The control plane is changing its certificate authority, and the configuration could not be updated (%v): get a new one before the change is finished.", err)
	case changed && c.notice != nil:
		c.notice("The control plane is changing its certificate authority: the configuration trusts the new one now.")
	}
}

// learnServers keeps the servers that one has named. A configuration that cannot be
// written, such as one that is mounted, works with the servers that it has.
func (c *Client) learnServers(named []byte) {
	if c.Target.learnServers == nil || len(named) == 0 {
		return
	}
	known, err := c.Target.learnServers(named)
	if err == nil && len(known) > 0 && c.notice != nil {
		c.notice("The servers of the control plane have changed: the configuration lists %s now.", strings.Join(known, ", "))
	}
}

// Spend has later calls take so much less than Timeout.
func (c *Client) Spend(d time.Duration) { c.spent += d }

// Left is how long a call may take now.
func (c *Client) Left() time.Duration { return c.Timeout - c.spent }

// Call makes one request within the timeout. While a control plane that was
// reached before is unavailable (it restarts, or it chooses a leader), or says that
// it can take the request in a while, the
// request is sent again, to the next of its servers if it has several: fn must
// be safe to repeat, which writes are by their request id. A control plane that
// cannot be reached at all is reported at once.
func (c *Client) Call(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.Left())
	defer cancel()
	return c.Explain(ctx, c.repeat(ctx, fn))
}

func (c *Client) repeat(ctx context.Context, fn func(context.Context) error) error {
	var unavailable error
	tried, begun, noticed, unknownOutcome := 0, time.Now(), false, false
	for attempt, wait := 1, firstRetryPause; ; {
		sending, sent := dial.WithSent(ctx)
		if unavailable != nil {
			sending = batch.WithAge(sending, time.Since(begun))
		}
		err := fn(sending)
		c.learnLeaderless(ctx, err)
		if status.Code(err) == codes.DeadlineExceeded && unavailable != nil {
			return unavailable // it was so all the time: say why
		}
		busy := rpcerr.RetryAfter(rpcerr.FromStatus(err)) // a limit of the moment is reached
		if status.Code(err) != codes.Unavailable && busy == 0 || !c.log.Connected() || c.log.Rejected() || lasting(err) {
			return err
		}
		if deadline, limited := ctx.Deadline(); limited && busy > time.Until(deadline) {
			return err
		}
		unknownOutcome, err = markUnknownOutcome(err, sent(), unknownOutcome)
		unavailable = err
		// Another server may be able to do what this one cannot.
		c.Leave(err)
		tried++
		everywhere := tried >= len(c.Target.addresses)
		if !noticed && (everywhere && attempt == noticedAttempt || time.Since(begun) > noticedAfter) {
			c.notice("The control plane is unavailable (%s); retrying for up to %s.", c.problem(err), c.Timeout)
			noticed = true
		}
		if !everywhere {
			if ctx.Err() != nil {
				return err
			}
			continue
		}
		if Pause(ctx, max(wait, busy)); ctx.Err() != nil {
			return err
		}
		tried, attempt, wait = 0, attempt+1, min(2*wait, MaxRetryPause)
	}
}

// markUnknownOutcome keeps an attempt from saying that nothing was written when
// one before it had no answer, and may have written or may yet write. sent says
// whether this one reached a connection. It returns whether that is so from now on.
func markUnknownOutcome(err error, sent, before bool) (unknownOutcome bool, _ error) {
	var answered *rpcerr.Error
	if !errors.As(rpcerr.FromStatus(err), &answered) {
		return before, err
	}
	effect := rpcerr.EffectOf(answered)
	if effect == rpcerr.EffectNone && before {
		return true, rpcerr.WithEffect(rpcerr.New(answered.Code, "OUTCOME_UNKNOWN",
			"an attempt had no answer, and a later one was refused: %s", answered.Message), rpcerr.EffectUnknown)
	}
	lost := answered.Reason == "" && sent
	return before || lost || effect == rpcerr.EffectUnknown, err
}

// Ask sends one request, as Call does, and returns the response.
func Ask[Q, R any](ctx context.Context, c *Client, method func(*Client, context.Context, Q, ...grpc.CallOption) (R, error), request Q) (response R, err error) {
	err = c.Call(ctx, func(ctx context.Context) (err error) {
		response, err = method(c, ctx, request)
		return err
	})
	return response, err
}

// ApplyBatch sends a batch and returns the response; see Ask.
func (c *Client) ApplyBatch(ctx context.Context, req *meridianv1.ApplyRequest, opts ...grpc.CallOption) (*meridianv1.ApplyResponse, error) {
	return batch.Apply(ctx, c, req, opts...)
}

// DeleteBatch sends a deletion and returns the response; see Ask.
func (c *Client) DeleteBatch(ctx context.Context, req *meridianv1.DeleteRequest, opts ...grpc.CallOption) (*meridianv1.DeleteResponse, error) {
	return batch.Delete(ctx, c, req, opts...)
}

// Reached reports whether a server has been connected to.
func (c *Client) Reached() bool { return c.log.Connected() }

// Leave has the next calls go to another server, where there are several.
func (c *Client) Leave(err error) { c.servers.Leave(c.log.Blame(errors.New(c.problem(err)))) }

// problem says in words why a control plane that was reached before is
// unavailable: in its own, or by what happened to the connection. An error without a
// reason is not a server's answer.
func (c *Client) problem(err error) string {
	var answered *rpcerr.Error
	if errors.As(rpcerr.FromStatus(err), &answered) && (answered.Reason != "" || answered.Code != rpcerr.Unavailable) {
		return answered.Message
	}
	if last := c.log.Last(); last != nil {
		what, _ := describeConnectError(last)
		return what
	}
	return "the connection was lost"
}

// lasting reports whether the control plane itself is fine and what it lacks is
// a zone to ask: waiting for one is for the user to decide.
func lasting(err error) bool {
	err = rpcerr.FromStatus(err)
	return rpcerr.HasReason(err, "NO_ZONES") || rpcerr.HasReason(err, "ZONE_UNAVAILABLE")
}

// Pause waits for a while or until the context ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Explain turns the outcome of a call into words about this control plane.
func (c *Client) Explain(ctx context.Context, err error) error {
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
	case answered.Code == rpcerr.Timeout && !c.log.Connected():
		return exit.Failf(exit.Timeout, "no connection to the control plane at %s within %s", c.Target, c.Timeout).
			With(c.eachServer()...).
			With("The server may hang, or a firewall drop the packets; --timeout waits longer.", c.whereFrom())
	case answered.Code == rpcerr.Timeout && !own:
		return exit.Failf(exit.Timeout, "the control plane at %s did not finish within %s", c.Target, c.Timeout).
			With("It may still be working on the request; --timeout waits longer.")
	case lasting(answered):
		return answered
	case answered.Code == rpcerr.Unavailable && c.log.Connected() && !c.log.Rejected():
		return exit.Failf(exit.Unavailable, "the control plane at %s is unavailable: %s", c.Target, c.problem(answered)).With(exit.Effect(answered)...).With(c.eachServer()...).With(c.whyLeaderless()...)
	case answered.Code == rpcerr.Unavailable:
		return c.explainUnreachable(answered.Message)
	}
	return answered
}

// explainToken says whose token it was that was refused, and what to do.
func (c *Client) explainToken(answered *rpcerr.Error) error {
	f := &exit.Failure{Code: exit.Denied, Err: answered}
	if c.Target.tokenSource == "" {
		return f
	}
	return f.With("The token is that of "+c.Target.tokenSource+".", "A user with the access GENERATE_USER_TOKEN can issue another with `meridian generate user-token`.")
}

// explainUnreachable says why no connection came about.
func (c *Client) explainUnreachable(message string) error {
	cause := c.log.Last()
	if cause == nil {
		return exit.Failf(exit.Unavailable, "the control plane at %s cannot be reached: %s", c.Target, message).With(c.whereFrom())
	}
	what, check := describeConnectError(cause)
	return exit.Failf(exit.Unavailable, "the control plane at %s cannot be reached: %s", c.Target, what).
		With(c.eachServer()...).With(check, c.whereFrom())
}

// eachServer says, where there are several servers, what is wrong with each.
func (c *Client) eachServer() []string {
	if len(c.Target.addresses) == 1 {
		return nil
	}
	lines := make([]string, len(c.Target.addresses))
	for i, address := range c.Target.addresses {
		said := "not tried"
		if err := c.log.Problem(address); err != nil {
			said, _ = describeConnectError(err)
		} else if c.log.Reached(address) {
			said = "was reached"
		}
		lines[i] = "  " + address + ": " + said
	}
	return lines
}

func (c *Client) whereFrom() string { return "The address comes from " + c.Target.source + "." }
