package zonesync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"meridian/internal/dial"
	"meridian/internal/version"
)

// ClientConfig is what a Client needs. Fields without a remark are required.
type ClientConfig struct {
	Replica *Replica
	// Addresses of the global's servers, tried in turn from a random one.
	Addresses []string
	// Known are further addresses, learned earlier. Optional.
	Known []string
	// Learn keeps the addresses that the global names, to be Known at the next
	// start. It is called when they change, Addresses not among them. Optional:
	// without it the client goes to Addresses only.
	Learn func(addresses []string) error
	// Trust has the Credentials verify servers by the authorities, in PEM, that the
	// global names, and keeps them; Authorities returns the digest (pki.Digest) of
	// those in use. Optional, both.
	Trust       func(authorities []byte) error
	Authorities func() string
	// Credentials secure the connection.
	Credentials credentials.TransportCredentials
	// Token returns the zone's token; it is asked at every connection.
	Token func(context.Context) (string, error)
	// Answer answers an operator's question; both are opaque here. It is called
	// concurrently, with a context that ends when the caller stops waiting. An error
	// travels as a gRPC status. Optional: without it every question is refused.
	Answer func(ctx context.Context, request []byte) ([]byte, error)
	// AnswerAudit is Answer for questions about the audit log.
	AnswerAudit func(ctx context.Context, request []byte) ([]byte, error)
	// Drain has the zone drain, or take dataplanes again, and keeps that; Draining
	// returns how far it has drained, and is called for every acknowledgement. Optional,
	// both.
	Drain    func(draining bool) error
	Draining func() Draining
	// ServersOfZone returns how many servers the zone has, with this one. It is called for
	// every acknowledgement. Optional: without it the zone does not say.
	ServersOfZone func() int
	Logger        *slog.Logger
	// DialOptions are added to the connection's. Optional.
	DialOptions []grpc.DialOption
}

const (
	// backoffFirst and backoffMost bound the wait before connecting again; each
	// wait is drawn between half of a doubling value and all of it.
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 10 * time.Second
	// silenceAfter is how long the global may say nothing: it says something
	// every six seconds.
	silenceAfter = 10 * time.Second
	// connectTimeout bounds an attempt to connect while there are other servers
	// to try.
	connectTimeout = 3 * time.Second
	// maxLearned bounds the addresses that a global may name.
	maxLearned = 64
	// maxFrame bounds one frame in bytes: a resource is far smaller.
	maxFrame = 64 << 20
)

// errSilent means that the global said nothing for too long.
var errSilent = fmt.Errorf("nothing received from the global for %s", silenceAfter)

// ClientStatus is how a zone's connection stands.
type ClientStatus struct {
	// Connected: the global has welcomed the zone.
	Connected bool
	// Address is the server connected to, or last tried.
	Address string
	// LastError is why the last connection ended or failed; empty while
	// connected.
	LastError string
}

// Client keeps a replica equal to the global. Run it once.
type Client struct {
	cfg ClientConfig

	mu      sync.Mutex // guards what follows
	status  ClientStatus
	learned []string
}

// NewClient returns a client; it does nothing until Run is called.
func NewClient(cfg ClientConfig) (*Client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("no address of a global given")
	}
	return &Client{cfg: cfg, learned: cfg.Known}, nil
}

// Status returns how the connection stands. Safe for concurrent use.
func (c *Client) Status() ClientStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *Client) setStatus(connected bool, address string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = ClientStatus{Connected: connected, Address: address}
	if err != nil {
		c.status.LastError = oneLine(err)
	}
}

// round returns the order in which to try every server. Those that were
// configured come first: what was learned may be out of this zone's reach. Of
// either, the last one tried comes last: it may be cut off, or on its way out.
func (c *Client) round(last string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(dial.Rotate(c.cfg.Addresses, last), dial.Rotate(c.learned, last))
}

// first returns addresses with one of them first, unless it is not among them: a zone goes
// to no server that it does not know.
func first(address string, addresses []string) []string {
	at := slices.Index(addresses, address)
	if at < 0 {
		return addresses
	}
	return slices.Concat(addresses[at:at+1], addresses[:at], addresses[at+1:])
}

// learn takes the addresses that a server at an address has named.
func (c *Client) learn(from string, addresses []string) {
	if c.cfg.Learn == nil || len(addresses) > maxLearned {
		return
	}
	var learned []string
	for _, address := range addresses {
		_, _, err := net.SplitHostPort(address)
		known := slices.Contains(c.cfg.Addresses, address) || slices.Contains(learned, address)
		// A server that listens on loopback is nowhere to be found from elsewhere.
		if err == nil && !known && (!onLoopback(address) || onLoopback(from)) {
			learned = append(learned, address)
		}
	}
	c.mu.Lock()
	same := slices.Equal(learned, c.learned)
	c.learned = learned
	c.mu.Unlock()
	if same {
		return
	}
	c.cfg.Logger.Info("the global's servers have changed", "configured", c.cfg.Addresses, "learned", learned)
	if err := c.cfg.Learn(learned); err != nil {
		c.cfg.Logger.Warn("the addresses of the global's servers could not be kept: they are learned again after a restart", "error", err)
	}
}

// trust takes the authorities that a server has named: the connection that they
// came by is of one that is trusted.
func (c *Client) trust(authorities []byte) {
	if c.cfg.Trust == nil || len(authorities) == 0 {
		return
	}
	if err := c.cfg.Trust(authorities); err != nil {
		c.cfg.Logger.Error("the authorities that the global named cannot be kept: those in use stay", "error", err)
	}
}

func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Run connects, follows, and connects again until ctx is done; then it returns
// nil. No failure of the network or the global ends it, and the replica continues
// to serve meanwhile.
//
// Whatever ended a connection, the next one is to another server if there is
// one, and waits grow only once every server has been tried.
func (c *Client) Run(ctx context.Context) error {
	round := c.round("")
	wait := backoffFirst
	for {
		address := round[0]
		round = round[1:]
		s := newSession(c, address)
		err := s.run(ctx)
		if ctx.Err() != nil {
			c.setStatus(false, address, nil)
			return nil
		}
		if serr := c.cfg.Replica.settle(); serr != nil {
			err = errors.Join(err, serr)
		}
		pause := backoffFirst
		switch {
		case s.followed:
			wait, round = backoffFirst, first(s.next, c.round(address))
		case len(round) == 0:
			pause, wait, round = wait, min(2*wait, backoffMost), c.round(address)
		}
		c.setStatus(false, address, err)
		pause = pause/2 + rand.N(pause/2+1)
		c.cfg.Logger.Warn("connection to the global ended", "address", address, "error", err, "retry_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// bearerToken is the zone's credential, sent with each call.
type bearerToken struct {
	token  func(context.Context) (string, error)
	secure bool
}

func (b bearerToken) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	t, err := b.token(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + t}, nil
}

// RequireTransportSecurity keeps gRPC from sending the token in plaintext, unless
// the connection was configured to be plaintext.
func (b bearerToken) RequireTransportSecurity() bool { return b.secure }

// Windows has gRPC take as much of a stream as a zone accepts unacknowledged. Without a
// size gRPC measures the connection: with a ping, and its answer, for what is received.
func Windows() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStaticStreamWindowSize(zoneWindow), grpc.WithStaticConnWindowSize(zoneWindow)}
}

func (c *Client) dial(log *dial.Log, address string) (*grpc.ClientConn, error) {
	config := dial.Config{
		Log: log, Proxy: true,
		Transport: c.cfg.Credentials, Options: append(Windows(), c.cfg.DialOptions...), MaxMessage: maxFrame, UserAgent: "meridian-zone/" + version.String(),
		Credentials: bearerToken{token: c.cfg.Token, secure: c.cfg.Credentials.Info().SecurityProtocol != "insecure"},
	}
	if len(c.round(address)) > 1 {
		config.ConnectTimeout = connectTimeout
	}
	return dial.Conn(config, address)
}
