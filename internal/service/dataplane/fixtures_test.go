package dataplane

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/commit/committest"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/service/identities"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// world is a zone as its dataplane service sees it: what the global owns, what
// the zone owns, and the tokens that were issued. It outlives restarts of the
// service.
type world struct {
	t       testing.TB
	replica *store.Store
	local   *committest.Log
	auth    *authn.Authenticator
	issuer  *token.Issuer
	grace   time.Duration
	// server is the name of a server of several, and absent its Config.Absent.
	server string
	absent func(server string) bool

	mu      sync.Mutex
	revoked []string
	limited []string // what limits have refused
	clients []*proxyClient
	// has is what was said last of certificates, by dataplane.
	has map[string]bool
	// unattended are the dataplanes that no agent has come for, in order.
	unattended []string
	// said counts how often something was said of certificates.
	said  int
	turns *turns.Turns

	matching   *livematch.Matching
	service    *Service
	identities *identities.Keeper
	listener   *bufconn.Listener
	stop       func()
}

func newWorld(t testing.TB) *world {
	key, err := token.GenerateSigningKey(token.KeyID{Use: token.ForDataplane, Serial: 1})
	require.NoError(t, err)
	w := &world{
		t: t, grace: DefaultGrace, has: map[string]bool{}, replica: store.New(store.DefaultOptions()),
		local:  committest.New(store.New(store.Options{ExternalMeshes: true, History: store.DefaultOptions().History})),
		issuer: token.NewIssuer(time.Now, key), turns: turns.NewServer(),
	}
	verifier := token.NewVerifier(time.Now, key.Public()).Revoking(func(_ token.Use, id string) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.revoked, id)
	})
	w.auth = &authn.Authenticator{
		Verifier:  func() *token.Verifier { return verifier },
		Authorize: Authorize(func(authn.Principal, string) error { return nil }),
	}
	w.global(resourcetest.Build(t, "Mesh", "", "default", "{}"))
	return w
}

// open starts the zone's service; stop stops it, as the zone would.
func (w *world) open() {
	w.t.Helper()
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(w.t, err)
	w.matching = livematch.New(engines.NewMatcher(compiler), w.replica, w.local.Store)
	w.identities = identities.New(identities.Config{
		Undenied: func(resource.MeshName) int { return 0 },
		Zone:     "east", View: func() store.Reader { return store.Union(w.replica.View(), w.local.View()) }, Stores: []*store.Store{w.replica, w.local.Store},
		Local: w.local.Store, Writer: w.local, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	w.service = New(Config{
		Certified: w.certified, Unattended: w.left, Identities: w.identities, Matching: w.matching, Local: w.local.Store, Writer: w.local, Grace: w.grace, Now: time.Now, Server: w.server, Absent: w.absent, Zone: "east",
		Prepare: func(r *resource.Resource) (*resource.Resource, error) {
			if _, ok := w.replica.View().Get(resource.Key{Kind: "Mesh", Name: string(r.Key().Mesh)}); !ok {
				return nil, rpcerr.New(rpcerr.Invalid, ReasonNoMesh, "mesh %q does not exist", r.Key().Mesh)
			}
			return resource.WithZone(r, "east")
		},
		Log: slog.New(slog.DiscardHandler), Turns: w.turns,
		Refused: func(limit string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.limited = append(w.limited, limit)
		},
	})
	server := grpc.NewServer(grpc.ChainStreamInterceptor(rpcerr.StreamServer, w.auth.Stream))
	meridianv1.RegisterDataplaneServiceServer(server, w.service)
	w.listener = bufconn.Listen(64 << 10)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(w.listener) })
	running.Go(func() { _ = w.matching.Run(ctx) })
	running.Go(func() { _ = w.service.Run(ctx) })
	running.Go(func() { _ = w.identities.Run(ctx, w.service) })
	w.stop = sync.OnceFunc(func() {
		cancel()
		server.GracefulStop()
		running.Wait()
	})
}

// left notes that no agent has come for a dataplane.
func (w *world) left(key resource.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unattended = append(w.unattended, key.Name)
}

// certified notes whether a dataplane's proxy has a certificate.
func (w *world) certified(key resource.Key, has bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.has[key.Name] = has
	w.said++
}

// global writes what the global owns, as one batch; nil content deletes.
func (w *world) global(resources ...*resource.Resource) {
	w.t.Helper()
	txn := store.Txn{}
	for _, r := range resources {
		txn.Ops = append(txn.Ops, store.Put(r))
	}
	require.NoError(w.t, w.replica.Apply(w.replica.Revision()+1, txn).Err)
}

func (w *world) globalDelete(key resource.Key) {
	w.t.Helper()
	require.NoError(w.t, w.replica.Apply(w.replica.Revision()+1, store.Txn{Ops: []store.Op{store.Delete(key)}}).Err)
}

// globalDeleteMesh deletes a mesh and what the global has in it, as one batch.
func (w *world) globalDeleteMesh(mesh string) {
	w.t.Helper()
	txn := store.Txn{}
	for _, d := range resource.Kinds() {
		for r := range w.replica.View().List(d.Kind, resource.MeshName(mesh)) {
			txn.Ops = append(txn.Ops, store.Delete(r.Key()))
		}
	}
	txn.Ops = append(txn.Ops, store.Delete(resource.Key{Kind: "Mesh", Name: mesh}))
	require.NoError(w.t, w.replica.Apply(w.replica.Revision()+1, txn).Err)
}

// operator writes a dataplane by hand.
func (w *world) operator(name, spec string) {
	w.t.Helper()
	r, err := resource.WithZone(resourcetest.Build(w.t, resource.KindDataplane, "default", name, spec), "east")
	require.NoError(w.t, err)
	_, err = w.local.Propose(w.t.Context(), store.Txn{Ops: []store.Op{store.Put(r)}})
	require.NoError(w.t, err)
}

func (w *world) operatorDelete(name string) {
	w.t.Helper()
	_, err := w.local.Propose(w.t.Context(), store.Txn{Ops: []store.Op{store.Delete(policy.DataplaneKey("default", name))}})
	require.NoError(w.t, err)
}

func (w *world) stored(name string) (*resource.Resource, bool) {
	return w.local.View().Get(policy.DataplaneKey("default", name))
}

func (w *world) state(name string) State {
	return w.service.State(policy.DataplaneKey("default", name))
}

// token issues a token for a dataplane of the mesh default; tags are k, v, ….
func (w *world) token(name string, tags ...string) string {
	w.t.Helper()
	token, _ := w.tokenWithID("default", name, tags...)
	return token
}

func (w *world) tokenWithID(mesh, name string, tags ...string) (string, string) {
	w.t.Helper()
	values := map[string][]string{}
	for i := 0; i < len(tags); i += 2 {
		values[tags[i]] = append(values[tags[i]], tags[i+1])
	}
	signed, token, err := w.issuer.Dataplane(mesh, name, values, 24*time.Hour)
	require.NoError(w.t, err)
	return signed, token.ID
}

func (w *world) revoke(id string) {
	w.mu.Lock()
	w.revoked = append(w.revoked, id)
	w.mu.Unlock()
	w.auth.Recheck()
}

// proxyClient is a proxy: it keeps what it was sent, as any proxy would.
type proxyClient struct {
	t      testing.TB
	conn   *grpc.ClientConn
	stream grpc.BidiStreamingClient[meridianv1.ConnectRequest, meridianv1.ConnectResponse]
	cancel context.CancelFunc

	mu       sync.Mutex // guards everything below
	hold     bool       // do not answer
	refuse   string     // answer with this error
	declined bool       // the last answer was an error
	has      entries
	received []*meridianv1.ConnectResponse
	err      error
	ended    chan struct{}
}

// dial connects without a hello.
func (w *world) dial(raw string) *proxyClient {
	w.t.Helper()
	listener := w.listener
	conn, err := grpc.NewClient("passthrough:///zone",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	options := []grpc.CallOption{}
	if raw != "" {
		options = append(options, grpc.PerRPCCredentials(token.Credentials(raw, true)))
	}
	stream, err := meridianv1.NewDataplaneServiceClient(conn).Connect(ctx, options...)
	require.NoError(w.t, err)
	p := &proxyClient{
		t: w.t, conn: conn, stream: stream, cancel: cancel, has: entries{}, ended: make(chan struct{}),
	}
	w.mu.Lock()
	w.clients = append(w.clients, p)
	w.mu.Unlock()
	return p
}

// end stops the service and closes the connections of its clients.
func (w *world) end() {
	w.stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.clients {
		p.leave()
	}
}

// connect connects a proxy that says hello, keeps what it is sent, and answers.
func (w *world) connect(token, name, spec string) *proxyClient {
	w.t.Helper()
	return w.connectWith(token, name, spec, nil)
}

func (w *world) connectWith(token, name, spec string, set func(*proxyClient)) *proxyClient {
	w.t.Helper()
	p := w.dial(token)
	if set != nil {
		set(p)
	}
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{
		Hello: &meridianv1.DataplaneHello{Mesh: "default", Name: name, Spec: []byte(spec)},
	}})
	go p.follow()
	return p
}

// send ignores failures: what matters is how the stream ends.
func (p *proxyClient) send(m *meridianv1.ConnectRequest) { _ = p.stream.Send(m) }

func (p *proxyClient) follow() {
	defer close(p.ended)
	for {
		m, err := p.stream.Recv()
		if err != nil {
			p.mu.Lock()
			p.err = err
			p.mu.Unlock()
			return
		}
		p.mu.Lock()
		p.take(m)
		hold, refuse := p.hold, p.refuse
		p.mu.Unlock()
		if !hold {
			p.answer(m.GetSequence(), refuse)
		}
	}
}

func (p *proxyClient) answer(sequence uint64, refuse string) {
	p.mu.Lock()
	p.declined = refuse != ""
	p.mu.Unlock()
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Ack{
		Ack: &meridianv1.DataplaneAck{Sequence: sequence, Error: refuse},
	}})
}

// take applies a configuration, and fails the test when it says anything that
// the proxy knows already.
func (p *proxyClient) take(m *meridianv1.ConnectResponse) {
	p.received = append(p.received, m)
	if due := len(p.received) == 1 || p.declined; m.GetFull() != due {
		p.t.Errorf("configuration %d: full is %t, and %t is due", m.GetSequence(), m.GetFull(), due)
	}
	if m.GetFull() {
		clear(p.has)
		if len(m.GetRemoved()) > 0 {
			p.t.Error("a full configuration removes something")
		}
	} else if len(m.GetSet())+len(m.GetRemoved()) == 0 {
		p.t.Error("an empty change")
	}
	for _, e := range m.GetSet() {
		key := targetText(e.GetTarget())
		if old := p.has[key]; old != nil && proto.Equal(old, e) {
			p.t.Errorf("sent again as it was: %s", key)
		}
		p.has[key] = e
	}
	for _, target := range m.GetRemoved() {
		key := targetText(target)
		if p.has[key] == nil {
			p.t.Errorf("removed though it was not there: %s", key)
		}
		delete(p.has, key)
	}
}

func targetText(t *meridianv1.EffectiveTarget) string {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(t)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// messages returns what has been received so far.
func (p *proxyClient) messages() []*meridianv1.ConnectResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.received)
}

// confs returns the configuration the proxy has of a kind.
func (p *proxyClient) confs(kind string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	confs := []string{}
	for _, e := range p.has {
		if e.GetTarget().GetKind() == kind {
			confs = append(confs, string(e.GetConf()))
		}
	}
	slices.Sort(confs)
	return confs
}

// holds returns what the proxy has.
func (p *proxyClient) holds() entries {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.has)
}

// over reports whether the stream has ended.
func (p *proxyClient) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// removeSession hangs up without a word, as a process that was killed.
func (p *proxyClient) leave() {
	p.cancel()
	_ = p.conn.Close()
}

// refused returns why the stream ended.
func (p *proxyClient) refused() (codes.Code, string) {
	p.t.Helper()
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	st, ok := status.FromError(p.err)
	require.True(p.t, ok, "%v", p.err)
	return st.Code(), st.Message()
}

// inTime runs a test in virtual time, with a service that is stopped at the end.
func inTime(t *testing.T, run func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open()
		defer w.end()
		run(t, w)
	})
}

// dataplaneSpec is a dataplane of one service that consumes others.
func dataplaneSpec(service string, outbounds ...string) string {
	spec := `{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "` + service + `"}}], "outbound": [`
	for i, o := range outbounds {
		if i > 0 {
			spec += ","
		}
		spec += fmt.Sprintf(`{"port": %d, "tags": {"kuma.io/service": %q}}`, 1000+i, o)
	}
	return spec + `]}}`
}

func timeoutTo(t testing.TB, name, source, destination, connect string) *resource.Resource {
	return resourcetest.Build(t, "Timeout", "default", name, fmt.Sprintf(`{
		"sources": [{"match": {"kuma.io/service": %q}}], "destinations": [{"match": {"kuma.io/service": %q}}],
		"conf": {"connectTimeout": %q}}`, source, destination, connect))
}
