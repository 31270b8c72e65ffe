package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/clientconfig"
	"meridian/internal/commit"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
	"meridian/internal/service/access"
	"meridian/internal/service/admin"
	"meridian/internal/service/tokens"
	"meridian/internal/service/webhook"
	"meridian/internal/store"
)

// Access is how a server knows its callers and what they may do.
type Access struct {
	// Keys verify and sign tokens, Authorizer decides what their holders may do.
	Keys       *token.Ring
	Authorizer *authz.Authorizer
	Tokens     *tokens.Service
	// Callers authenticates each request, and ends the streams of those whose token
	// is revoked.
	Callers *authn.Authenticator
}

// OpenRecords opens the audit log, the keys and the authorizer, once the node is
// open. A zone names itself and the store of its global in keys.
func (b *Base) OpenRecords(keys token.RingConfig) error {
	if err := errors.Join(b.encryptSecrets(), b.openRecords()); err != nil {
		return err
	}
	keys.Local, keys.Now = b.Store.View, b.Now
	b.Keys, b.Authorizer = token.NewRing(keys), authz.New(b.Store.View)
	if reason, refused := b.refusesOpen(); refused {
		b.Authorizer.RefuseOpen(reason)
	}
	if b.Options.ReadAccess == server.ReadAccessGranted {
		b.Authorizer.ReadGranted()
	}
	b.Health.Add(server.Check{Name: "access", Ready: func() error { return nil }, Note: b.openNote})
	return nil
}

// Verifier returns the keys of the moment.
func (b *Base) Verifier() *token.Verifier { return b.Keys.CurrentVerifier(b.Log) }

// API is what a server's gRPC API is assembled from.
type API struct {
	// Authorize decides which principals may call which service.
	Authorize func(p authn.Principal, method string) error
	// Early are the methods that are answered before the server is ready, without
	// credentials, since the server may not even know its keys. Other calls are
	// refused until then.
	Early []string
	// View reads everything that the server has, and Uses are the tokens it issues.
	View func() store.Reader
	Uses []token.Use
	// Authorities returns the authorities, in PEM, by which clients are to verify this
	// server from now on; none while there is nothing new. Optional.
	Authorities func() []byte
	// Servers returns the addresses of all servers that serve the same, for users to
	// fall back to; none while they are not known. Optional.
	Servers func() []string
	// Codec encodes messages. Optional: nil for protobuf as gRPC does it.
	Codec encoding.CodecV2
	// Tap sees each call that is within the limits, before anything else is done for it.
	// Optional.
	Tap tap.ServerInHandle
}

// Assemble makes the gRPC API with the services that every server has: resources
// are those that this one keeps. Where the webhook is on, it reviews them.
func (b *Base) Assemble(api API, resources *admin.Service) {
	b.servers = api.Servers
	b.Tokens = tokens.New(tokens.Config{
		Ring: b.Keys, Writer: b.Writer, Access: b.Authorizer, Local: b.Store.View, Now: b.Now, View: api.View, Uses: api.Uses,
		Remembers: b.Store.Remembers, Turns: b.Turns,
	})
	b.Callers = &authn.Authenticator{
		Verifier: b.Verifier, LocalhostIsAdmin: b.Options.LocalhostIsAdmin, Authorize: api.Authorize, Refused: b.Audit.Refused,
		Authenticated: server.Authenticated,
		Exempt:        func(method string) bool { return !b.Readiness.Started() && slices.Contains(api.Early, method) },
		Revokes: func(method string) bool {
			return method == meridianv1.TokenService_ReissueAdminToken_FullMethodName || method == meridianv1.TokenService_RevokeToken_FullMethodName
		},
	}
	b.GRPC = server.NewGRPC(b.Log, b.PKI.ServerTLS(), server.Calls{
		Check:                   b.Readiness.CheckCall(api.Early...),
		Authenticate:            b.Callers.Stream,
		Begin:                   []func(grpc.ServerStream, string) error{announceAuthorities(api.Authorities), announceServers(api.Servers), b.refuseEarly},
		Record:                  b.Audit.Stream,
		Unary:                   b.Audit.Unary,
		UnauthenticatedCanWrite: b.Authorizer.UnauthenticatedCanWrite,
		Limits:                  b.Limits,
		Codec:                   api.Codec,
		Tap:                     api.Tap,
	})
	meridianv1.RegisterAdminServiceServer(b.GRPC, resources)
	meridianv1.RegisterTokenServiceServer(b.GRPC, b.Tokens)
	meridianv1.RegisterAccessServiceServer(b.GRPC, access.New(b.Authorizer, b.Node.Read, b.Turns).ReadPast(b.readPast))
	if b.Options.WebhookAddr != "" {
		b.Webhook = webhook.New(webhook.Config{
			Access: b.Authorizer, Read: b.Node.Read, Review: resources.Review, Audit: b.Audit,
			Certificate: b.PKI.GetCertificate, Clients: b.Options.WebhookClients(), Refused: b.Limits.Refused, Log: b.Log,
		})
	}
	b.registerMetrics()
	b.registerHistory()
}

// announceAuthorities tells the callers which authorities sign for the servers.
func announceAuthorities(authorities func() []byte) func(stream grpc.ServerStream, method string) error {
	return func(stream grpc.ServerStream, _ string) error {
		if authorities != nil {
			if named := authorities(); len(named) > 0 {
				// A stream that has ended already needs no header.
				_ = stream.SetHeader(metadata.Pairs(clientconfig.AuthoritiesHeader, string(named)))
			}
		}
		return nil
	}
}

// announceServers tells users, who have authenticated, where the servers are.
func announceServers(servers func() []string) func(stream grpc.ServerStream, method string) error {
	return func(stream grpc.ServerStream, _ string) error {
		if servers == nil || !slices.Contains(authn.PrincipalFrom(stream.Context()).Groups, authn.AuthenticatedGroup) {
			return nil
		}
		if named := servers(); len(named) > 0 {
			_ = stream.SetHeader(metadata.Pairs(clientconfig.ServersHeader, strings.Join(named, ",")))
		}
		return nil
	}
}

// privileged are the methods that only callers whom a role lets write have a use for.
var privileged = append(server.Writes(),
	meridianv1.ClusterService_SaveSnapshot_FullMethodName, meridianv1.ClusterService_RestoreSnapshot_FullMethodName)

// refuseEarly refuses callers without credentials who can write nothing, before
// anything of their request is received. It is a refusal on the newest state, as
// all are.
func (b *Base) refuseEarly(stream grpc.ServerStream, method string) error {
	ctx := stream.Context()
	p := authn.PrincipalFrom(ctx)
	if !slices.Contains(privileged, method) || b.Authorizer.Unauthenticated(p) == nil {
		return nil
	}
	if err := commit.Newest(ctx, b.Writer); err != nil {
		return rpcerr.WithEffect(err, rpcerr.EffectNone)
	}
	err := b.Authorizer.Unauthenticated(p)
	if err == nil {
		return nil
	}
	b.Audit.Refused(ctx, p, method, err)
	return rpcerr.WithEffect(err, rpcerr.EffectNone)
}

// DefaultMesh is the mesh that a new control plane begins with (§1.4).
var DefaultMesh = resource.Key{Kind: resource.KindMesh, Name: "default"}

// Bootstrap is what a server writes before its first use.
type Bootstrap struct {
	// Mesh: the mesh default, unless the store has ever had a mesh.
	Mesh bool
	// Rules are the access rules of a first start.
	Rules authz.Defaults
	// Uses are the tokens to sign.
	Uses []token.Use
}

// Bootstrap writes the default mesh, the default access rules, signing keys and
// the admin token, as far as they are missing. Each write is made on the condition
// that no other server has made it, so that two leaders in a row do not both count.
func (b *Base) Bootstrap(ctx context.Context, what Bootstrap) error {
	if err := b.KeepHistory(ctx); err != nil {
		return err
	}
	if what.Mesh && b.Store.View().Count(DefaultMesh.Kind) == 0 && b.Keys.AdminToken() == "" {
		mesh, _, err := resource.Build(resource.Meta{Key: DefaultMesh}, []byte("{}"))
		if err != nil {
			return fmt.Errorf("create the default mesh: %w", err)
		}
		if err := commit.CreateMissing(ctx, b.Writer, b.Now(), mesh); err != nil {
			return err
		}
	}
	if _, refused := b.refusesOpen(); refused {
		what.Rules.Restricted = true
	}
	what.Rules.Kubernetes = b.Options.Environment == server.EnvironmentKubernetes
	if err := what.Rules.Ensure(ctx, b.Store.View, b.Writer, b.Now); err != nil {
		return err
	}
	// The admin token comes last, so that a start that was interrupted before the
	// mesh was written is still a first start.
	return b.Keys.Ensure(ctx, b.Writer, what.Uses...)
}

// refusesOpen says why this server accepts no binding that makes every caller an
// administrator, or false (§6.5).
func (b *Base) refusesOpen() (reason string, refused bool) {
	switch b.Options.DefaultAccess {
	case server.DefaultAccessOpen:
		return "", false
	case server.DefaultAccessRestricted:
		return "--default-access is " + server.DefaultAccessRestricted, true
	}
	if at, beyond := server.BeyondLoopback(b.Reaches); beyond {
		return at.String() + " is reached from other hosts", true
	}
	return "", false
}

// CheckOpen returns an error where other hosts reach the server while every caller is an
// administrator (§6.5), and warns where that is accepted. The error is a
// *server.UsageError. Call it once the store holds everything committed.
func (b *Base) CheckOpen() error {
	if !b.Authorizer.Open() {
		return nil
	}
	if reason, refused := b.refusesOpen(); refused {
		return &server.UsageError{Err: fmt.Errorf("every caller is an administrator of this control plane, without credentials (`meridian auth who-can UPDATE AccessRole` names the binding), and %s: start it with every listener on loopback and --default-access=%s, and bind the role %s to your administrators; or accept this with --default-access=%s",
			reason, server.DefaultAccessAuto, rbac.AdminRole, server.DefaultAccessOpen)}
	}
	b.Log.Warn("EVERY CALLER IS AN ADMINISTRATOR: a binding gives all rights to callers without credentials; bind the role admin to your administrators", "default_access", b.Options.DefaultAccess, "grpc", b.Addresses.GRPC)
	return nil
}

// openNote tells those who ask for the health of the server that every caller is
// an administrator.
func (b *Base) openNote() string {
	if b.Readiness.Started() && b.Authorizer.Open() {
		return "every caller is an administrator, without credentials"
	}
	return ""
}
