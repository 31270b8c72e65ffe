package discovery

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
	"meridian/internal/version"
	"meridian/internal/xds"
	"meridian/internal/xds/enforce"
	"meridian/internal/xds/serve"
)

const (
	// maxInstance bounds what a client may call its instance, maxClient what it may
	// call itself, in bytes.
	maxInstance, maxClient = 128, 256
	// maxNodeID bounds the id of a node: two names and a slash, in bytes.
	maxNodeID = 2*253 + 1
	// maxLogged bounds what is logged of a client's reason for a rejection.
	maxLogged = 512
)

// stream is one stream of a proxy.
type stream struct {
	service *Service
	token   *token.Token
	delta   bool
	// ctx ends with the reason for which the stream ends.
	ctx context.Context
	end func(error)
	// receive returns the next request; nil for a type that is not served. node is
	// that of the request, nil when it has none.
	receive func() (r *serve.Request, node *corev3.Node, err error)
	send    func(serve.Response) error
	since   time.Time
	// held is what the stream is charged for.
	held *limits.Request

	// warnings bound the log lines about what the proxy rejects of each type; they are
	// of the goroutine that receives.
	warnings [len(xds.Types)]limits.Bucket

	// The first request sets these, before the stream is in its proxy's place.
	key              resource.Key
	dialect          xds.Dialect
	instance, client string

	// What follows is guarded by service.mu.
	proxy   *proxy
	release func()
	memory  *memory
	// stale: the resources may have changed. due: there may be something to send.
	// scheduled: the stream is in the queue, or worked on, or being sent to. opened: its
	// first request has been taken, and it can be worked on.
	stale, due, scheduled, opened, ended bool
	timer                                *time.Timer

	mu       sync.Mutex // guards what follows; service.mu may be taken with it, not before it
	machine  *serve.Stream
	withheld string
	// listening is what report found last.
	listening bool
	// unsent is a response for which there was no space yet; nil for none.
	unsent      *serve.Response
	unsentSince time.Time
	// unanswered is what the responses that are not answered are charged for.
	unanswered [len(xds.Types)]*limits.Request
	forgotten  bool // nothing is charged any more
}

// StreamAggregatedResources implements the state-of-the-world variant.
func (d *Service) StreamAggregatedResources(conn discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return d.serve(conn.Context(), &stream{
		receive: func() (*serve.Request, *corev3.Node, error) {
			m, err := conn.Recv()
			if err != nil {
				return nil, nil, err
			}
			typ, ok := xds.TypeOf(m.GetTypeUrl())
			if !ok {
				return nil, m.GetNode(), nil
			}
			return &serve.Request{
				Type: typ, Nonce: m.GetResponseNonce(), Rejected: m.GetErrorDetail() != nil, Detail: m.GetErrorDetail().GetMessage(), Names: m.GetResourceNames(), Version: m.GetVersionInfo(),
			}, m.GetNode(), nil
		},
		send: func(r serve.Response) error {
			m := &discoveryv3.DiscoveryResponse{VersionInfo: r.Version, TypeUrl: r.Type.URL(), Nonce: r.Nonce, ControlPlane: controlPlane}
			for _, sent := range r.Resources {
				body, err := bodyOf(sent)
				if err != nil {
					return err
				}
				m.Resources = append(m.Resources, body)
			}
			return conn.Send(m)
		},
	})
}

// DeltaAggregatedResources implements the incremental variant.
func (d *Service) DeltaAggregatedResources(conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return d.serve(conn.Context(), &stream{
		delta: true,
		receive: func() (*serve.Request, *corev3.Node, error) {
			m, err := conn.Recv()
			if err != nil {
				return nil, nil, err
			}
			typ, ok := xds.TypeOf(m.GetTypeUrl())
			if !ok {
				return nil, m.GetNode(), nil
			}
			return &serve.Request{
				Type: typ, Nonce: m.GetResponseNonce(), Rejected: m.GetErrorDetail() != nil, Detail: m.GetErrorDetail().GetMessage(),
				Subscribe: m.GetResourceNamesSubscribe(), Unsubscribe: m.GetResourceNamesUnsubscribe(), Initial: m.GetInitialResourceVersions(),
			}, m.GetNode(), nil
		},
		send: func(r serve.Response) error {
			m := &discoveryv3.DeltaDiscoveryResponse{
				SystemVersionInfo: r.Version, TypeUrl: r.Type.URL(), Nonce: r.Nonce, ControlPlane: controlPlane, RemovedResources: r.Removed,
			}
			for _, sent := range r.Resources {
				body, err := bodyOf(sent)
				if err != nil {
					return err
				}
				m.Resources = append(m.Resources, &discoveryv3.Resource{Name: sent.Name, Version: sent.Version, Resource: body})
			}
			return conn.Send(m)
		},
	})
}

var controlPlane = &corev3.ControlPlane{Identifier: "meridian " + version.String()}

func bodyOf(r *xds.Resource) (*anypb.Any, error) {
	body := &anypb.Any{}
	return body, proto.Unmarshal(r.Body, body)
}

// serve serves a stream until it ends. Its goroutine waits for the reason; another
// one receives, since a Recv that waits cannot be ended otherwise than by returning.
func (d *Service) serve(ctx context.Context, s *stream) error {
	principal := authn.PrincipalFrom(ctx)
	if principal.Token == nil {
		return rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: this is for proxies, which present a dataplane token")
	}
	s.service, s.token, s.since = d, principal.Token, d.cfg.Now()
	for i := range s.warnings {
		s.warnings[i] = limits.NewBucket(1, 1)
	}
	s.ctx, s.end = context.WithCancelCause(ctx)
	defer s.end(nil)
	var err error
	s.held, err = d.cfg.Budget.Begin(s.token.ID, streamBytes, func() { s.end(d.refuse(limits.ErrAborted)) })
	if err != nil {
		return d.refuse(err)
	}
	defer s.forget()
	if !d.add(s) {
		return errStopping
	}
	defer d.streams.Done()
	s.start((*stream).open)
	<-s.ctx.Done()
	joined := d.leave(s)
	err = context.Cause(s.ctx)
	if errors.Is(err, io.EOF) {
		err = nil // the client closed its side
	}
	if joined {
		d.lines.Info(d.cfg.Now(), d.logger(s), "xDS stream closed", "client", s.client, "reason", reason(err))
	}
	return err
}

func reason(err error) string {
	switch {
	case err == nil:
		return "it hung up"
	case errors.Is(err, context.Canceled):
		return "it broke off, or cannot be reached any more"
	}
	return err.Error()
}

// add puts a stream into the table, unless the service has stopped.
func (d *Service) add(s *stream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.all[s] = struct{}{}
	d.streams.Add(1)
	return true
}

// start runs a part of a stream on a goroutine of its own, which Run waits for. An
// error of it, or a panic, ends the stream.
func (s *stream) start(part func(*stream) error) {
	s.service.streams.Add(1)
	go func() {
		defer s.service.streams.Done()
		defer s.recover()
		if err := part(s); err != nil {
			s.end(err)
		}
	}()
}

var errInternal = rpcerr.New(rpcerr.Internal, ReasonInternal, "the zone failed on this proxy; its log says more")

// recover has a panic end this stream and no other.
func (s *stream) recover() {
	if value := recover(); value != nil {
		s.service.logger(s).Error("an xDS stream failed", "panic", value, "stack", string(debug.Stack()))
		s.end(errInternal)
	}
}

func (d *Service) logger(s *stream) *slog.Logger {
	return d.cfg.Log.With("mesh", s.key.Mesh, "dataplane", s.key.Name, "token", s.token.ID)
}

// open takes the first request and leaves the others to another goroutine, whose
// stack stays small.
func (s *stream) open() error {
	select {
	case <-s.service.running:
	case <-s.ctx.Done():
		return nil
	}
	patience := time.AfterFunc(firstRequest, func() {
		s.end(rpcerr.New(rpcerr.Timeout, ReasonNoRequest, "no request came within %s", firstRequest))
	})
	r, node, err := s.receive()
	patience.Stop()
	if err != nil {
		return err
	}
	if err := s.identify(node); err != nil {
		return err
	}
	d := s.service
	if err := d.cfg.Dataplanes.Check(*s.token, s.key); err != nil {
		return err
	}
	if err := d.join(s, s.key, s.instance); err != nil {
		return err
	}
	s.mu.Lock()
	s.machine = serve.New(serve.Config{Delta: s.delta, Drain: Drain, Memory: s.memory.Memory})
	s.mu.Unlock()
	d.lines.Info(d.cfg.Now(), d.logger(s), "xDS stream opened", "client", s.client, "dialect", s.dialect, "delta", s.delta)
	if err := s.handle(r); err != nil {
		return err
	}
	s.begin()
	s.start((*stream).receiveAll)
	return nil
}

// identify reads who a proxy says it is.
func (s *stream) identify(node *corev3.Node) error {
	mesh, name, ok := strings.Cut(node.GetId(), "/")
	s.key = resource.Key{Kind: resource.KindDataplane, Mesh: resource.MeshName(mesh), Name: name}
	s.client = strings.TrimSpace(node.GetUserAgentName() + " " + node.GetUserAgentVersion())
	s.instance = node.GetMetadata().GetFields()[xds.InstanceField].GetStringValue()
	s.dialect = xds.Envoy
	if strings.HasPrefix(s.client, "gRPC") {
		s.dialect = xds.GRPC
	}
	switch {
	case !ok || mesh == "" || name == "" || len(node.GetId()) > maxNodeID:
		return rpcerr.New(rpcerr.Invalid, ReasonBadNode, "the node of the first request has the id %.100q: it has to be MESH/DATAPLANE", node.GetId())
	case len(s.instance) > maxInstance:
		return rpcerr.New(rpcerr.Invalid, ReasonBadNode, "the node's metadata field %s has %d bytes, more than %d", xds.InstanceField, len(s.instance), maxInstance)
	case len(s.client) > maxClient:
		return rpcerr.New(rpcerr.Invalid, ReasonBadNode, "the node's user agent has %d bytes, more than %d", len(s.client), maxClient)
	}
	return nil
}

// receiveAll takes the requests after the first one until the stream ends.
func (s *stream) receiveAll() error {
	for {
		r, node, err := s.receive()
		if err != nil {
			return err
		}
		if id := node.GetId(); id != "" && id != string(s.key.Mesh)+"/"+s.key.Name {
			return rpcerr.New(rpcerr.Invalid, ReasonBadNode, "the node of a stream does not change: it was %s/%s", s.key.Mesh, s.key.Name)
		}
		if err := s.handle(r); err != nil {
			return err
		}
		s.schedule()
	}
}

// handle has the protocol take a request.
func (s *stream) handle(r *serve.Request) error {
	if r == nil {
		return nil // a type that is not served, which a client can live without
	}
	done, err := s.service.handling.Wait(s.ctx, s.token.ID)
	if err != nil {
		return nil // the stream has ended
	}
	rejected, err := s.take(r)
	done()
	s.service.changed(s.key)
	s.report(r.Type == xds.Listener)
	if rejected {
		s.service.rejected.Add(1)
		s.warn(r)
	}
	return err
}

// take takes a request and charges for what it leaves; rejected: it rejects a response.
func (s *stream) take(r *serve.Request) (rejected bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine.Answers(*r) {
		rejected = r.Rejected
		s.answered(r.Type)
	}
	if err := s.machine.Handle(*r); err != nil {
		return rejected, rpcerr.New(rpcerr.TooLarge, ReasonBadRequest, "%w", err)
	}
	return rejected, s.charge()
}

// report tells the source whether the proxies of the dataplane listen with TLS, when that
// of this stream is new, or may be worth telling again.
func (s *stream) report(again bool) {
	if s.dialect != xds.Envoy {
		return
	}
	s.mu.Lock()
	now := s.machine.Listening()
	again = again || now != s.listening
	s.listening = now
	s.mu.Unlock()
	if again {
		s.service.report(s.key)
	}
}

// report tells the source whether every Envoy of a dataplane listens with TLS. One that is
// away has the listeners that it had, for as long as the dataplane is registered.
func (d *Service) report(key resource.Key) {
	d.reporting.Lock() // what is told last is what was found last
	defer d.reporting.Unlock()
	open := d.streamsOf(key)
	if len(open) == 0 {
		return
	}
	secure, envoy := false, false
	for _, s := range open {
		if s.dialect != xds.Envoy {
			continue
		}
		envoy = true
		s.mu.Lock()
		secure = s.listening
		s.mu.Unlock()
		if !secure {
			break
		}
	}
	d.cfg.Source.Listening(key, envoy, secure)
}

// warn logs a rejection, at most one of a type in a second: status has the last one,
// and Rejected counts them.
func (s *stream) warn(r *serve.Request) {
	if !s.warnings[r.Type].Take(s.service.cfg.Now(), 1) {
		return
	}
	detail := r.Detail
	if len(detail) > maxLogged {
		detail = strings.ToValidUTF8(detail[:maxLogged], "")
	}
	s.service.logger(s).Warn("a proxy rejected its configuration", "type", r.Type.String(), "error", detail)
}

// status returns where the stream stands.
func (s *stream) status() StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := StreamStatus{Instance: s.instance, Client: s.client, Dialect: s.dialect, Since: s.since, Withheld: s.withheld}
	if s.machine != nil {
		out.Types = s.machine.Status(s.service.cfg.Now())
	}
	return out
}

// deliveries raises each delivery to that on this stream.
func (s *stream) deliveries(resources []*xds.Resource, out []serve.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine == nil {
		return
	}
	for i, r := range resources {
		out[i] = max(out[i], s.machine.Delivery(r))
	}
}

// behind returns how a stream stands that has yet to accept a revision; empty for one
// that has, or that the revision did not touch. busy: it may not know its newest
// resources yet, and what it rejected may be none of them.
func (s *stream) behind(revision resource.Revision, busy bool) enforce.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine == nil || s.machine.AsOf() == 0 {
		return enforce.Pending // it has just come, and nothing is known of it
	}
	if !busy && s.machine.AsOf() < revision {
		return "" // whatever came since did not touch it
	}
	var worst enforce.State
	for _, t := range s.machine.Status(s.service.cfg.Now()) {
		switch {
		case t.Revision >= revision:
		case !busy && len(t.Rejections) > 0: // while it is busy, they may be of what it was to have before
			worst = enforce.Worse(worst, enforce.Rejected)
		case busy && s.machine.Asked(t.Type), t.Behind > 0, t.State != serve.Synced && t.State != serve.NotSent:
			worst = enforce.Worse(worst, enforce.Pending)
		}
	}
	return worst
}

// begin has workers look at the stream from now on: its first request has been taken.
func (s *stream) begin() {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	s.opened, s.stale = true, true
	s.scheduleLocked()
}

// schedule has a worker look at the stream.
func (s *stream) schedule() {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	s.due = true
	s.scheduleLocked()
}

// scheduleLocked puts the stream in the queue if it can be worked on, there is something
// to do and it is not there already, or being sent to.
func (s *stream) scheduleLocked() {
	if !s.opened || !s.stale && !s.due || s.scheduled || s.ended {
		return
	}
	s.scheduled = true
	s.service.queue.push(s)
	s.service.wakeWorker()
}
