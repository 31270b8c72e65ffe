package authn

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/authn/token/tokentest"
	"meridian/internal/grpctest"
	"meridian/internal/pki"
	"meridian/internal/rpcerr"
)

// noon is the moment that most tests take place at.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func openPKI(t *testing.T) *pki.PKI {
	t.Helper()
	p, err := pki.Open(pki.Config{
		DataDir: t.TempDir(), Name: "node-1", Hosts: pki.ServerHosts("box", nil, nil), Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return p
}

// testServer is an authenticator with the keys behind it.
type testServer struct {
	*Authenticator
	issuer *token.Issuer
}

func newServer(t *testing.T) testServer {
	t.Helper()
	user, zone := tokentest.Key(t, token.ForUser, 1), tokentest.Key(t, token.ForZone, 1)
	verifier := token.NewVerifier(at(noon), user.Public(), zone.Public())
	return testServer{
		Authenticator: &Authenticator{
			Verifier:         func() *token.Verifier { return verifier },
			LocalhostIsAdmin: true,
			Authorize:        knownCallers,
		},
		issuer: token.NewIssuer(at(noon), user, zone),
	}
}

// unary authenticates a unary call as servers do: as a stream with one message.
func (d testServer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	err = d.Stream(nil, &grpctest.Call{Ctx: ctx}, &grpc.StreamServerInfo{FullMethod: info.FullMethod}, func(_ any, s grpc.ServerStream) error {
		resp, err = handler(s.Context(), req)
		return err
	})
	return resp, err
}

// knownCallers permits every authenticated principal.
func knownCallers(p Principal, method string) error {
	if p.Source == FromNothing {
		return rpcerr.New(rpcerr.Unauthenticated, ReasonNoCredentials, "not authenticated: %s is for known callers", method)
	}
	return nil
}

func (d testServer) user(t *testing.T, name string, groups ...string) string {
	t.Helper()
	raw, _, err := d.issuer.User(name, groups, time.Hour)
	require.NoError(t, err)
	return raw
}

func (d testServer) zone(t *testing.T, name string) string {
	t.Helper()
	raw, _, err := d.issuer.Zone(name, []string{token.ScopeControlPlane}, time.Hour)
	require.NoError(t, err)
	return raw
}

// request is the context of a call from an address with credentials.
func request(from net.Addr, authorization ...string) context.Context {
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: from})
	return metadata.NewIncomingContext(ctx, metadata.MD{"authorization": authorization})
}

// forwarded adds what proxies say about whom they speak for, which counts for
// nothing.
func forwarded(ctx context.Context, addr string) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.NewIncomingContext(ctx, metadata.Join(md, metadata.Pairs(
		"x-forwarded-for", addr, "forwarded", "for="+addr, "x-real-ip", addr, "x-forwarded-user", "root", "x-remote-group", AdminGroup)))
}

var (
	near  = &net.TCPAddr{IP: net.ParseIP("127.0.0.1"), Port: 40000}
	near6 = &net.TCPAddr{IP: net.ParseIP("::1"), Port: 40000}
	far   = &net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 40000}
)

// §6.6: token, else loopback, else anonymous; an invalid token is
// refused, not ignored.
func TestWhoMakesARequest(t *testing.T) {
	d := newServer(t)
	bob := []string{"team-a", AuthenticatedGroup}
	for name, tc := range map[string]struct {
		ctx    context.Context
		name   string
		groups []string
		source Source
		err    string
	}{
		"loopback":               {request(near), AdminUser, []string{AdminGroup, AuthenticatedGroup}, FromLoopback, ""},
		"loopback IPv6":          {request(near6), AdminUser, []string{AdminGroup, AuthenticatedGroup}, FromLoopback, ""},
		"loopback, another one":  {request(&net.TCPAddr{IP: net.ParseIP("127.9.9.9")}), AdminUser, []string{AdminGroup, AuthenticatedGroup}, FromLoopback, ""},
		"loopback IPv4 in IPv6":  {request(&net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1")}), AdminUser, []string{AdminGroup, AuthenticatedGroup}, FromLoopback, ""},
		"this host, otherwise":   {request(&net.TCPAddr{IP: net.ParseIP("0.0.0.0")}), AnonymousUser, []string{UnauthenticatedGroup}, FromNothing, ""},
		"forwarded for loopback": {forwarded(request(far), "127.0.0.1"), AnonymousUser, []string{UnauthenticatedGroup}, FromNothing, ""},
		"forwarded by loopback":  {forwarded(request(near), "192.0.2.7"), AdminUser, []string{AdminGroup, AuthenticatedGroup}, FromLoopback, ""},
		"elsewhere":              {request(far), AnonymousUser, []string{UnauthenticatedGroup}, FromNothing, ""},
		"not TCP":                {request(&net.UnixAddr{Name: "@"}), AnonymousUser, []string{UnauthenticatedGroup}, FromNothing, ""},
		"no peer":                {context.Background(), AnonymousUser, []string{UnauthenticatedGroup}, FromNothing, ""},
		"token from elsewhere":   {request(far, "Bearer "+d.user(t, "bob", "team-a")), "bob", bob, FromToken, ""},
		"token beats loopback":   {request(near, "bearer "+d.user(t, "bob", "team-a")), "bob", bob, FromToken, ""},
		"group is not doubled":   {request(near, "Bearer "+d.user(t, "bob", AuthenticatedGroup, "team-a", UnauthenticatedGroup)), "bob", bob, FromToken, ""},
		"zone":                   {request(far, "Bearer "+d.zone(t, "east")), "zone/east", nil, FromToken, ""},
		"bad token, loopback":    {request(near, "Bearer x"), "", nil, "", "not authenticated: the token is malformed"},
		"empty token, loopback":  {request(near, "Bearer "), "", nil, "", "not authenticated: the token is malformed"},
		"empty header, loopback": {request(near, ""), "", nil, "", "not authenticated: only bearer tokens are accepted"},
		"scheme alone, loopback": {request(near, "Bearer"), "", nil, "", "not authenticated: only bearer tokens are accepted"},
		"twice nothing, loopback": {
			request(near, "", ""), "", nil, "",
			"not authenticated: more than one set of credentials",
		},
		"other scheme, loopback": {request(near, "Basic YTpi"), "", nil, "", "not authenticated: only bearer tokens are accepted"},
		"two tokens": {
			request(near, "Bearer "+d.user(t, "bob"), "Bearer "+d.user(t, "eve")), "", nil, "",
			"not authenticated: more than one set of credentials",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := d.Authenticate(tc.ctx)
			if tc.err != "" {
				require.EqualError(t, err, tc.err)
				require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(err))
				require.True(t, rpcerr.HasReason(err, ReasonBadToken))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.name, p.Name)
			require.Equal(t, tc.groups, p.Groups)
			require.Equal(t, tc.source, p.Source)
		})
	}

	d.LocalhostIsAdmin = false
	p, err := d.Authenticate(request(near))
	require.NoError(t, err)
	require.Equal(t, Anonymous(), p)
}

func TestPrincipals(t *testing.T) {
	d := newServer(t)
	// §6.7: name, then groups joined by commas, authenticated last.
	p, err := d.Authenticate(request(far, "Bearer "+d.user(t, "backend-owner")))
	require.NoError(t, err)
	require.Equal(t, "backend-owner/mesh-system:authenticated", p.String())
	require.Equal(t, noon.Add(time.Hour), p.Expires())
	_, isZone := p.Zone()
	require.False(t, isZone)

	p, err = d.Authenticate(request(far, "Bearer "+d.zone(t, "east")))
	require.NoError(t, err)
	zone, isZone := p.Zone()
	require.True(t, isZone)
	require.Equal(t, "east", zone)
	require.NoError(t, p.Token.CheckZone("east", token.ScopeControlPlane))

	require.True(t, Anonymous().Expires().IsZero())
	require.Equal(t, Anonymous(), PrincipalFrom(context.Background()))
	require.Equal(t, p, PrincipalFrom(WithPrincipal(context.Background(), p)))
}

// An authenticated principal is authorized per method.
func TestRules(t *testing.T) {
	d := newServer(t)
	const method = "/meridian.v1.AdminService/Apply"
	for name, tc := range map[string]struct {
		ctx  context.Context
		want string // the authenticated principal
	}{
		"loopback":  {request(near), LoopbackAdmin().String()},
		"user":      {request(far, "Bearer "+d.user(t, "bob")), "bob/mesh-system:authenticated"},
		"zone":      {request(far, "Bearer "+d.zone(t, "east")), "zone/east/"},
		"anonymous": {request(far), ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, err := d.enter(tc.ctx, method)
			if tc.want != "" {
				require.NoError(t, err)
				require.Equal(t, tc.want, PrincipalFrom(ctx).String())
				return
			}
			require.EqualError(t, err, "not authenticated: "+method+" is for known callers")
			require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(err))
		})
	}
}

// whoami answers with the principal that its context carries.
type whoami struct {
	meridianv1.UnimplementedControlServiceServer
	meridianv1.UnimplementedAdminServiceServer
}

func (whoami) Info(ctx context.Context, _ *meridianv1.InfoRequest) (*meridianv1.InfoResponse, error) {
	return &meridianv1.InfoResponse{Name: PrincipalFrom(ctx).String()}, nil
}

func (whoami) List(_ *meridianv1.ListRequest, stream grpc.ServerStreamingServer[meridianv1.ListResponse]) error {
	return rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s", PrincipalFrom(stream.Context()))
}

// serve runs a real server, over TLS in memory, behind an authenticator.
func (d testServer) serve(t *testing.T, p *pki.PKI) *bufconn.Listener {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(p.ServerTLS())),
		grpc.UnaryInterceptor(d.unary), grpc.StreamInterceptor(d.Stream))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	meridianv1.RegisterControlServiceServer(server, whoami{})
	meridianv1.RegisterAdminServiceServer(server, whoami{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-done)
	})
	return listener
}

func connect(t *testing.T, listener *bufconn.Listener, config pki.ClientTLSConfig, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	transport, err := pki.ClientTransport(config)
	require.NoError(t, err)
	conn, err := grpc.NewClient("passthrough:///localhost:5685", append(opts,
		grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(rpcerr.UnaryClient), grpc.WithStreamInterceptor(rpcerr.StreamClient))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

func TestARealServerKnowsItsCallers(t *testing.T) {
	// The certificate must hold at the time of the machine's clock, which gRPC uses.
	p := openPKI(t)
	d := newServer(t)
	listener := d.serve(t, p)
	trusted := pki.ClientTLSConfig{CAPEM: p.CAPEM(), Source: "admin.yaml"}

	admin := connect(t, listener, trusted, grpc.WithPerRPCCredentials(token.Credentials(d.user(t, "root", AdminGroup), false)))
	info, err := meridianv1.NewControlServiceClient(admin).Info(t.Context(), &meridianv1.InfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "root/mesh-system:admin,mesh-system:authenticated", info.GetName())
	stream, err := meridianv1.NewAdminServiceClient(admin).List(t.Context(), &meridianv1.ListRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.EqualError(t, err, "root/mesh-system:admin,mesh-system:authenticated")

	anonymous := connect(t, listener, trusted)
	_, err = meridianv1.NewControlServiceClient(anonymous).Info(t.Context(), &meridianv1.InfoRequest{})
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(err))
	require.True(t, rpcerr.HasReason(err, ReasonNoCredentials))
	stream, err = meridianv1.NewAdminServiceClient(anonymous).List(t.Context(), &meridianv1.ListRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(err))
	_, err = grpc_health_v1.NewHealthClient(anonymous).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err, "health is for everyone")
}

func TestAClientSaysWhoItDoesNotTrust(t *testing.T) {
	p := openPKI(t)
	other, err := pki.NewCA(time.Now())
	require.NoError(t, err)
	conn := connect(t, newServer(t).serve(t, p), pki.ClientTLSConfig{CAPEM: other.CertificatePEM(), Source: "east.bundle"})
	_, err = meridianv1.NewControlServiceClient(conn).Info(t.Context(), &meridianv1.InfoRequest{})
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, "the server's certificate is not signed by the CA in east.bundle")
}

func TestTokensDoNotTravelInTheClear(t *testing.T) {
	require.True(t, token.Credentials("t", false).RequireTransportSecurity())
	require.False(t, token.Credentials("t", true).RequireTransportSecurity())
	require.Equal(t, "a bearer token", token.Credentials("t", true).(fmt.Stringer).String())
}

// Unprotected methods answer every caller, as one that is not
// known: credentials that cannot be judged yet neither help nor hinder.
func TestOpenMethods(t *testing.T) {
	d := newServer(t)
	open := true
	d.Exempt = func(method string) bool { return open && method == "/cluster.Cluster/Members" }
	call := func(method, authorization string) (Principal, error) {
		var who Principal
		_, err := d.unary(request(far, authorization), nil, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
			who = PrincipalFrom(ctx)
			return nil, nil
		})
		return who, err
	}
	for _, authorization := range []string{"Bearer not.a.token", "Bearer " + d.user(t, "bob")} {
		who, err := call("/cluster.Cluster/Members", authorization)
		require.NoError(t, err)
		require.Equal(t, Anonymous(), who)
	}
	_, err := call("/admin.Admin/Get", "Bearer not.a.token")
	require.Error(t, err, "nothing else is")
	open = false
	_, err = call("/cluster.Cluster/Members", "Bearer not.a.token")
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(rpcerr.FromStatus(err)))
}

// A server token does not authenticate a user.
func TestServerTokenPrincipal(t *testing.T) {
	key := tokentest.Key(t, token.ForServer, 1)
	raw, issued, err := token.NewIssuer(at(noon), key).Server(time.Hour)
	require.NoError(t, err)
	verified, err := token.NewVerifier(at(noon), key.Public()).Verify(raw)
	require.NoError(t, err)
	require.Equal(t, issued.ID, verified.ID)
	p := principalOf(verified)
	require.Equal(t, "server", p.Name)
	require.Empty(t, p.Groups)
	_, isZone := p.Zone()
	require.False(t, isZone)
	require.Equal(t, "server-token-signing-key-1", issued.Key.String())
	_, err = token.NewVerifier(at(noon), key.Public()).User(raw)
	require.ErrorIs(t, err, token.ErrUse)
	_, _, err = token.NewIssuer(at(noon)).Server(time.Hour)
	require.ErrorContains(t, err, "there is no key to sign a server-token with")
}

// The refusal of a token that was issued here tells whose it was, for the audit log. One
// that any client can make tells nothing.
func TestARefusedTokenTellsWhoseItWas(t *testing.T) {
	key := tokentest.Key(t, token.ForUser, 1)
	valid, about, err := token.NewIssuer(at(noon), key).User("bob", []string{"team-a"}, time.Hour)
	require.NoError(t, err)
	forged, _, err := token.NewIssuer(at(noon), tokentest.Key(t, token.ForUser, 1)).User("bob", nil, time.Hour)
	require.NoError(t, err)
	none := func(token.Use, string) bool { return false }
	for name, tc := range map[string]struct {
		token   string
		now     time.Time
		revoked func(token.Use, string) bool
		who, id string
	}{
		"revoked":           {token: valid, now: noon, revoked: func(_ token.Use, id string) bool { return id == about.ID }, who: "bob", id: about.ID},
		"expired":           {token: valid, now: noon.Add(2 * time.Hour), revoked: none, who: "bob", id: about.ID},
		"not valid yet":     {token: valid, now: noon.Add(-2 * time.Hour), revoked: none, who: "bob", id: about.ID},
		"of another issuer": {token: forged, now: noon.Add(2 * time.Hour), revoked: none},
		"no token":          {token: "x", now: noon, revoked: none},
	} {
		t.Run(name, func(t *testing.T) {
			verifier := token.NewVerifier(at(tc.now), key.Public()).Revoking(tc.revoked)
			var heard []Principal
			a := &Authenticator{
				Verifier: func() *token.Verifier { return verifier },
				Refused:  func(_ context.Context, p Principal, _ string, _ error) { heard = append(heard, p) },
			}
			err := a.Stream(nil, &grpctest.Call{Ctx: request(far, "Bearer "+tc.token)}, watchInfo, watch)
			require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(rpcerr.FromStatus(err)), err)
			require.Len(t, heard, 1)
			require.Equal(t, tc.who, heard[0].Name)
			if tc.id == "" {
				require.Nil(t, heard[0].Token)
				return
			}
			require.Equal(t, tc.id, heard[0].Token.ID)
			p, err := a.Authenticate(request(far, "Bearer "+tc.token))
			require.Error(t, err)
			require.Equal(t, Principal{}, p, "it authenticates no client")
		})
	}
}
