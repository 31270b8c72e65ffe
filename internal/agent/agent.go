package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/dial"
	"meridian/internal/rpcerr"
	"meridian/internal/version"
)

const (
	// firstPause and maxPause are the pauses between attempts to register. The longest
	// is below the shortest useful grace period of a zone.
	firstPause, maxPause = 200 * time.Millisecond, 10 * time.Second
	// maxReconnect is the longest pause between attempts to connect to a zone that is away.
	maxReconnect = 5 * time.Second
	// keepAlive is after what silence the zone is asked whether it is there, and
	// keepAliveOfSeveral where there are other servers to go to: what is registered at a
	// server that hangs ends a grace period later. Zones allow ten seconds, by their clock.
	keepAlive, keepAliveOfSeveral = 30 * time.Second, 12 * time.Second
	// maxSocketPath is the longest path of a unix socket that every system takes.
	maxSocketPath = 103
	// maxSocketDir is the longest path of the socket's directory: the socket is made in a
	// directory there, whose name ends with a number of 32 bits.
	maxSocketDir = maxSocketPath - len("/"+beginSocket+"4294967295/"+begunSocket)
	// beginSocket begins the name of that directory, and begunSocket is the socket's.
	beginSocket, begunSocket = ".mp", "s"
	// maxTokenBytes bounds the file with the token.
	maxTokenBytes = 64 << 10
	// lookAtToken is how often the file with the token is looked at: the certificate is to
	// be of the token that is in it.
	lookAtToken = time.Second
	// leaving bounds how long the zone may take to end the registration.
	leaving = 2 * time.Second
	// hurrying bounds, once an agent was told to abort, how long Envoy may take to end, and
	// how long the zone may take to end the registration.
	hurrying = 500 * time.Millisecond
	// Ending is how long an agent takes at most beyond its drain time once ctx has ended: to
	// stop Envoy, to end the registration, and to send the log entries that wait.
	Ending = stopping + leaving + logFlush
)

// Config is how an agent runs. All fields but Log are required, unless they say otherwise.
type Config struct {
	// Mesh and Name are the dataplane's; Spec describes it, as JSON.
	Mesh, Name string
	Spec       []byte
	// TokenFile holds the dataplane token. It is read for every connection.
	TokenFile string
	// Addresses are the zone's, as HOST:PORT, and Transport how it is verified.
	Addresses []string
	Transport credentials.TransportCredentials
	// Bootstrap is the bootstrap file of gRPC to write; Envoy is the program of the Envoy
	// to run. One of them is set.
	Bootstrap, Envoy string
	// Output is what Envoy writes to.
	Output io.Writer
	// Socket is the unix socket for the application, or for Envoy, which needs none named:
	// where it is empty, the socket is in the directory that Envoy runs in.
	Socket string
	// Instance names this process to the zone, uniquely.
	Instance string
	// Drain is how long the application may stay connected at most once ctx has ended.
	Drain time.Duration
	// Abort, once closed, ends the drain time: after ctx has ended, Run then returns within
	// about a second. Nil never does.
	Abort <-chan struct{}
	Log   *slog.Logger
}

// UsageError means that an agent cannot run with its configuration.
type UsageError struct{ Err error }

// Error implements error.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *UsageError) Unwrap() error { return e.Err }

// agent is a running agent.
type agent struct {
	cfg  Config
	zone zoneConn
	// draining is closed once others are to send no more requests.
	draining chan struct{}
	// available is whether others are to send requests.
	available availability
	// certificates are for the goroutine that registers.
	certificates *certificates
	// expiry fires when the certificate has expired.
	expiry *time.Timer
	// identified is called once it is known that the dataplane has a certificate, or
	// needs none.
	identified func()
	// plaintext is what its Envoy takes without TLS.
	plaintext plaintext
	// trials are what permissions that are only tried would decide otherwise.
	trials *Trials

	// live asks what the proxy runs; nil where there is none that could be asked.
	live func(context.Context) *meridianv1.DataplaneLive

	// drainTime starts over, which is closed once the drain time has passed.
	drainTime sync.Once
	over      chan struct{}

	mu sync.Mutex
	// connections are those of the application: it keeps one while it waits to open its next
	// stream, such as after the zone was away.
	connections int
	idle        chan struct{} // closed when there are none; nil unless waited for
}

// Run runs an agent until ctx ends. Then it has the zone withdraw the dataplane from
// others, serves its clients until they have closed their connections or the drain time is
// over, and ends the registration. It returns nil then, at the latest after the drain time
// and Ending. A *UsageError means that it
// could not have started; an error of the zone, that the zone refuses it.
func Run(ctx context.Context, cfg Config) error {
	a := &agent{cfg: cfg, draining: make(chan struct{}), identified: func() {}, trials: NewTrials(cfg.Log)}
	a.expiry = time.AfterFunc(time.Hour, a.expire)
	a.expiry.Stop() // until there is a certificate
	defer a.expiry.Stop()
	if _, err := a.token(); err != nil {
		return &UsageError{err}
	}
	var err error
	start := func(context.Context) (stopped func()) {
		a.available.set(true)
		return func() {}
	}
	if cfg.Envoy != "" {
		s, err := newSupervisor(ctx, a)
		if err != nil {
			return &UsageError{err}
		}
		defer s.remove()
		a.certificates, a.live, start = s.certificates, s.live, s.start
	} else if a.certificates, err = openCertificates(cfg.Bootstrap); err != nil {
		return &UsageError{fmt.Errorf("--grpc-bootstrap: %w", err)}
	}
	conn, err := a.dial(cfg.Addresses...)
	if err != nil {
		return &UsageError{err}
	}
	a.zone.use(conn)
	defer a.zone.close()
	listener, err := listen(a.cfg.Socket)
	if err != nil {
		return &UsageError{err}
	}
	defer func() { _ = os.Remove(a.cfg.Socket) }()
	logs := NewLogs(cfg.Log)
	defer func() {
		if a.aborted() {
			logs.cancel()
		}
		logs.Close()
	}()
	server := grpc.NewServer(
		grpc.UnknownServiceHandler((&relay{zone: &a.zone, logs: logs, trials: a.trials}).serve), grpc.ForceServerCodecV2(bytesCodec{}),
		grpc.MaxRecvMsgSize(maxRelayed), grpc.MaxSendMsgSize(maxRelayed), grpc.MaxConcurrentStreams(maxRelayedStreams), grpc.StatsHandler(connected{a}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer server.Stop()
	stopped := start(ctx)
	defer stopped()
	registered := make(chan error, 1)
	calling, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	registration, leave := context.WithCancel(context.Background())
	defer leave()
	go func() { registered <- a.register(registration, calling) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", a.cfg.Socket, err)
	case err := <-registered:
		return err
	case <-ctx.Done():
	}
	close(a.draining)
	stopped()
	drained := a.drained()
	select {
	case <-drained:
	case err := <-registered: // a newer agent has taken its place, for one
		a.cfg.Log.Warn("not registered in the zone any more", "error", rpcerr.FromStatus(err).Error())
		<-drained
		return nil
	}
	leave()
	limit, abort := time.NewTimer(leaving), cfg.Abort
	defer limit.Stop()
	for {
		select {
		case err := <-registered:
			a.cfg.Log.Debug("the registration has ended", "error", err)
			return nil
		case <-abort:
			abort = nil
			limit.Reset(hurrying)
		case <-limit.C:
			hangUp()
		}
	}
}

// drainTimeOver returns a channel that is closed once the drain time has passed, which begins
// with the first call.
func (a *agent) drainTimeOver() <-chan struct{} {
	a.drainTime.Do(func() {
		a.over = make(chan struct{})
		time.AfterFunc(a.cfg.Drain, func() { close(a.over) })
	})
	return a.over
}

// aborted reports whether the agent was told to abort.
func (a *agent) aborted() bool {
	select {
	case <-a.cfg.Abort:
		return true
	default:
		return false
	}
}

// dial prepares a connection to the first of some addresses that accepts one.
func (a *agent) dial(addresses ...string) (*grpc.ClientConn, error) {
	return dial.Conn(a.connecting(), addresses...)
}

// connecting is how the agent connects to its zone.
func (a *agent) connecting() dial.Config {
	config := dial.Config{
		Transport: a.cfg.Transport, Credentials: fileToken{a}, UserAgent: "meridian-proxy/" + version.String(),
		MaxMessage: maxRelayed, KeepAlive: keepAlive, Log: dial.NewLog(),
		Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect},
	}
	if len(a.cfg.Addresses) > 1 {
		config.KeepAlive = keepAliveOfSeveral
	}
	return config
}

// token reads the token.
func (a *agent) token() (string, error) {
	info, err := os.Stat(a.cfg.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	if info.Size() > maxTokenBytes {
		return "", fmt.Errorf("--token-file %s: the file has %d bytes, more than a token", a.cfg.TokenFile, info.Size())
	}
	data, err := os.ReadFile(a.cfg.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("--token-file %s: the file is empty", a.cfg.TokenFile)
	}
	if err := token.CheckText(text); err != nil {
		return "", fmt.Errorf("--token-file %s: %w", a.cfg.TokenFile, err)
	}
	return text, nil
}

// tokenLooks is what was seen of the token's file while a token was in use.
type tokenLooks struct{ presented, last string }

// replaced takes what a look saw, and reports whether the file has another token. What it
// had at the look before counts: a file that is being written has a part of a token.
func (l *tokenLooks) replaced(now string) bool {
	last := l.last
	l.last = now
	return now != l.presented && now == last
}

// fileToken are credentials that are read for every call.
type fileToken struct{ agent *agent }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t fileToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	text, err := t.agent.token()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error()) // it may be being replaced
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (fileToken) RequireTransportSecurity() bool { return true }

// listen listens on a unix socket that only this user can connect to. A socket that a
// dead process left behind is replaced.
func listen(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("--socket %s: the path has %d bytes, and that of a unix socket at most %d: choose a shorter one", path, len(path), maxSocketPath)
	}
	if dir := filepath.Dir(path); len(dir) > maxSocketDir {
		return nil, fmt.Errorf("--socket %s: the path of its directory has %d bytes, and may have at most %d for the socket to be made there: choose a shorter one", path, len(dir), maxSocketDir)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("--socket %s: another process listens there", path)
	} else if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("--socket %s: there is a file that is no socket", path)
	}
	// The socket gets its name once its mode is right: nothing can connect before.
	private, err := os.MkdirTemp(filepath.Dir(path), beginSocket)
	if err != nil {
		return nil, fmt.Errorf("--socket: %w", err)
	}
	defer func() { _ = os.RemoveAll(private) }()
	begun := filepath.Join(private, begunSocket)
	listener, err := net.Listen("unix", begun)
	if err != nil {
		return nil, fmt.Errorf("--socket %s: %w", path, err)
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	if err := errors.Join(os.Chmod(begun, 0o600), os.Rename(begun, path)); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("--socket %s: %w", path, err)
	}
	return listener, nil
}

// register keeps the dataplane registered until ctx ends, and ends the registration
// then, unless calling ends before that is done: it bounds every call. register returns an
// error when the zone refuses what waiting does not change.
func (a *agent) register(ctx, calling context.Context) error {
	pause, was, ever, leaving := firstPause, "", false, departure{}
	draining := a.draining
	for {
		begun, last := false, ctx.Err() != nil
		conn, moves, err := leaving.next(a)
		if err != nil {
			return &UsageError{err}
		}
		err = a.connect(ctx, calling, conn, func() error {
			if moves {
				moves = false
				a.zone.use(conn)
			}
			if begun = true; ever {
				return nil
			}
			ever = true
			if a.cfg.Bootstrap == "" {
				return nil
			}
			return writeBootstrap(a.cfg.Bootstrap, a.cfg.Socket, a.cfg.Mesh, a.cfg.Name, a.cfg.Instance, a.certificates.provider())
		})
		if moves {
			_ = conn.Close()
		}
		leaving.ended(err, begun)
		// One attempt that began before the end may be followed by one that ends the registration.
		if ctx.Err() != nil && (last || calling.Err() != nil || !ever || errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled || final(err, ever)) {
			return nil
		}
		if begun {
			pause, was = firstPause, ""
		}
		if errors.Is(err, errAgain) {
			continue
		}
		var usage *UsageError
		if errors.As(err, &usage) || final(err, ever) {
			return err
		}
		if text := rpcerr.FromStatus(err).Error(); text != was {
			a.cfg.Log.Warn("not registered in the zone: trying again", "error", text)
			was = text
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
			pause = min(pause*8/5, maxPause)
			continue
		case <-draining:
			draining = nil
		case <-ctx.Done():
		}
		if !ever {
			<-ctx.Done()
			return nil
		}
		// The zone keeps the registration of before for its grace period, unless it hears now
		// that the dataplane goes.
		a.zone.current().ResetConnectBackoff()
	}
}

// final reports whether an attempt failed for a reason that stays. A token that is
// refused later on may be replaced in its file.
func final(err error, ever bool) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return !ever
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented:
		return true
	}
	return false
}

// connect registers the dataplane for as long as the stream lasts, within calling. accepted
// is called once it is registered and the zone has said by what it is known.
func (a *agent) connect(ctx, calling context.Context, conn grpc.ClientConnInterface, accepted func() error) error {
	presented, err := a.token()
	if err != nil {
		return status.Error(codes.Unavailable, err.Error()) // it may be being replaced
	}
	streaming, cancel := context.WithCancel(calling)
	defer cancel()
	stream, err := meridianv1.NewDataplaneServiceClient(conn).Connect(streaming, grpc.WaitForReady(ctx.Err() != nil))
	if err != nil {
		return err
	}
	up, changed := a.available.get()
	hello := &meridianv1.DataplaneHello{Mesh: a.cfg.Mesh, Name: a.cfg.Name, Spec: a.cfg.Spec, RegistrationOnly: true, AnswersLive: a.live != nil}
	draining := a.draining
	select {
	case <-draining:
		hello.Draining, draining = true, nil
	default:
		hello.Draining = !up
	}
	again := make(chan struct{})
	answers := make(chan *meridianv1.ConnectRequest, 1)
	a.certificates.on(presented)
	a.plaintext.reconnect()
	first, err := a.certificates.request()
	if err != nil {
		return err
	}
	answers <- first
	sending := make(chan struct{}) // closed when it has ended
	var told uint64
	takesTrials := make(chan struct{}) // closed once the zone has said so
	send := func(m *meridianv1.ConnectRequest) {
		select {
		case answers <- m:
		case <-sending:
		}
	}
	go func() { // the one goroutine that sends
		defer close(sending)
		token, looks := time.NewTicker(lookAtToken), tokenLooks{presented: presented}
		defer token.Stop()
		trials := time.NewTicker(tellTrials)
		defer trials.Stop()
		next := &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: hello}}
		for {
			if next != nil && (stream.Send(next) != nil || next.GetLeave() != nil) {
				return // Recv says why
			}
			select {
			case next = <-answers:
			case <-draining:
				draining = nil
				next = &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Drain{Drain: &meridianv1.DataplaneDrain{}}}
			case <-changed:
				was := up
				up, changed = a.available.get()
				next = nil
				switch {
				case up == was || draining == nil: // it drains for good
				case up:
					close(again)
					cancel()
					return
				default:
					next = &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Drain{Drain: &meridianv1.DataplaneDrain{}}}
				}
			case <-token.C:
				if now, err := a.token(); err == nil && looks.replaced(now) && draining != nil {
					a.cfg.Log.Info("the token was replaced: registering with it")
					close(again)
					cancel()
					return
				}
				next = a.plaintext.next()
			case <-trials.C:
				next = nil
				select {
				case <-takesTrials:
				default:
					continue
				}
				var trial *meridianv1.DataplaneTrial
				if trial, told = a.trials.Told(told); trial != nil {
					next = &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Trial{Trial: trial}}
				}
			case <-ctx.Done():
				next = &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Leave{Leave: &meridianv1.DataplaneLeave{}}}
			case <-streaming.Done():
				return
			}
		}
	}()
	received, failed := make(chan *meridianv1.ConnectResponse), make(chan error, 1)
	go func() {
		trials := sync.OnceFunc(func() { close(takesTrials) })
		for {
			m, err := stream.Recv()
			if m.GetTakesTrials() {
				trials()
			}
			if err != nil {
				failed <- err
				return
			}
			select {
			case received <- m:
			case <-streaming.Done():
				failed <- streaming.Err()
				return
			}
		}
	}()
	err = a.follow(streaming, received, failed, send, accepted)
	select {
	case <-again:
		return errAgain
	default:
		return err
	}
}

// follow does what the zone's messages ask for until the stream has ended.
func (a *agent) follow(ctx context.Context, received <-chan *meridianv1.ConnectResponse, failed <-chan error, send func(*meridianv1.ConnectRequest), accepted func() error) error {
	c := a.certificates
	registered, known := false, false
	renewal, settled := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	renewal.Stop()
	settled.Stop()
	defer renewal.Stop()
	defer settled.Stop()
	// The versions of the identity that is in the files, and of the one that every
	// program will have read when settled fires; 0 while it does not run.
	var have, settling uint64
	for {
		var m *meridianv1.ConnectResponse
		select {
		case err := <-failed:
			return err
		case <-renewal.C:
			request, err := c.request()
			if err != nil {
				return err
			}
			send(request)
			continue
		case <-settled.C:
			send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_IdentityAck{IdentityAck: &meridianv1.DataplaneIdentityAck{Version: settling}}})
			if settling == have {
				settling = 0
				continue
			}
			settling = have
			settled.Reset(settle)
			continue
		case m = <-received:
		}
		if request := m.GetLiveRequest(); request != nil {
			if a.live != nil { // otherwise the zone was not offered it
				go a.answerLive(ctx, request.GetId(), send)
			}
			continue
		}
		was := registered && known
		if identity := m.GetIdentity(); identity != nil {
			stored, err := c.store(identity)
			switch {
			case errors.Is(err, errOtherKey):
				continue
			case err != nil:
				return fmt.Errorf("the certificate could not be stored: %w", err)
			case identity.GetRefused() != "":
				a.cfg.Log.Warn("the zone issues no certificate", "reason", identity.GetRefused())
			}
			if known, have = true, identity.GetVersion(); stored || identity.GetRefused() == "" || identity.GetPlaintext() {
				expires := c.expires
				if identity.GetPlaintext() { // there is a way without it
					expires = time.Time{}
				}
				a.available.certify(expires)
				a.expiry.Reset(max(0, expires.Sub(c.now())))
				a.identified()
			} else if a.available.refuse() {
				a.cfg.Log.Error("the mesh accepts only callers and servers with a certificate: others are to send no requests until the zone issues one")
			}
			a.plaintext.want(identity.GetPlaintext(), c.now())
			renewal.Stop()
			if stored {
				if c.clock() {
					a.cfg.Log.Error("the clock of this machine is wrong: the certificate that the zone has just issued is not valid by it, and nor are those of others", "from", c.begins, "until", c.expires, "clock", c.now().UTC())
				}
				renewal.Reset(max(0, c.renewal.Sub(c.now())))
			}
			if settling == 0 {
				settling = have
				settled.Reset(settle)
			}
		} else {
			registered = true
			send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Ack{Ack: &meridianv1.DataplaneAck{Sequence: m.GetSequence()}}})
		}
		if !was && registered && known {
			if err := accepted(); err != nil {
				return &UsageError{fmt.Errorf("--grpc-bootstrap: %w", err)}
			}
			a.cfg.Log.Info("registered in the zone", "mesh", a.cfg.Mesh, "dataplane", a.cfg.Name, "bootstrap", a.cfg.Bootstrap)
		}
	}
}

// expire has others send no requests once the certificate has expired: no member of the mesh
// would accept it. A timer of before may have fired.
func (a *agent) expire() {
	if a.available.lapse(a.certificates.now()) {
		a.cfg.Log.Error("the certificate has expired, and the zone has issued no other: others are to send no requests until it does")
	}
}
