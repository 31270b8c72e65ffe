package authn

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/peer"

	"meridian/internal/authn/token"
	"meridian/internal/rbac"
	"meridian/internal/server/limits"
)

// The names of built-in users and groups (§6.5, §6.6).
const (
	AdminUser            = token.AdminUser
	AnonymousUser        = "mesh-system:anonymous"
	AdminGroup           = rbac.AdminGroup
	AuthenticatedGroup   = "mesh-system:authenticated"
	UnauthenticatedGroup = "mesh-system:unauthenticated"
)

// Source says how a principal was authenticated.
type Source string

// The sources of principals.
const (
	FromToken    Source = "token"
	FromLoopback Source = "loopback"
	FromNothing  Source = "anonymous"
	// FromKubernetes: the API server of Kubernetes has authenticated the user.
	FromKubernetes Source = "kubernetes"
)

// Principal is an authenticated identity, or the anonymous one. It is immutable.
type Principal struct {
	// Name of the user; "zone/NAME" for a zone, "dataplane/MESH/NAME" for a
	// dataplane, "server" for a server that joins.
	Name string
	// Groups of the user, AuthenticatedGroup last (§6.7). Zones and
	// dataplanes have none: they are not users.
	Groups []string
	Source Source
	// Token is what the token said; nil for other sources.
	Token *token.Token
}

// LoopbackAdmin is the principal of requests from the server's own host without
// credentials
// (§6.6).
func LoopbackAdmin() Principal {
	return Principal{Name: AdminUser, Groups: []string{AdminGroup, AuthenticatedGroup}, Source: FromLoopback}
}

// Anonymous is the principal of requests from other hosts without credentials.
func Anonymous() Principal {
	return Principal{Name: AnonymousUser, Groups: []string{UnauthenticatedGroup}, Source: FromNothing}
}

// principalOf returns the principal that a verified token authenticates.
func principalOf(t token.Token) Principal {
	p := Principal{Source: FromToken, Token: &t}
	switch t.Key.Use {
	case token.ForZone:
		p.Name = "zone/" + t.Subject()
	case token.ForDataplane:
		p.Name = "dataplane/" + t.Subject()
	case token.ForServer:
		p.Name = t.Subject()
	case token.ForUser:
		user := UserPrincipal(t.Name, t.Groups)
		p.Name, p.Groups = user.Name, user.Groups
	}
	return p
}

// UserPrincipal returns an authenticated user of that name and groups, as a
// token would make it. AuthenticatedGroup and UnauthenticatedGroup are not taken
// from groups.
func UserPrincipal(name string, groups []string) Principal {
	p := Principal{Name: name, Source: FromToken}
	for _, group := range groups {
		if group != AuthenticatedGroup && group != UnauthenticatedGroup {
			p.Groups = append(p.Groups, group)
		}
	}
	p.Groups = append(p.Groups, AuthenticatedGroup)
	return p
}

// Named returns the principal that a question about another user means: an
// authenticated user of that name and groups, or the anonymous principal.
func Named(name string, groups []string) Principal {
	if name == AnonymousUser {
		return Anonymous()
	}
	return UserPrincipal(name, groups)
}

// KubernetesPrincipal returns a user as Kubernetes names it, with these groups
// and no other (§6.9): Kubernetes has its own system:authenticated,
// which is why the default binding names both (§6.5).
func KubernetesPrincipal(name string, groups []string) Principal {
	p := Principal{Name: name, Groups: slices.Clone(groups), Source: FromKubernetes}
	if i := slices.Index(p.Groups, AuthenticatedGroup); i >= 0 {
		p.Groups = append(slices.Delete(p.Groups, i, i+1), AuthenticatedGroup)
	}
	return p
}

// Zone returns the name of the zone that the principal is, or false for others.
func (p Principal) Zone() (string, bool) {
	if p.Token == nil || p.Token.Key.Use != token.ForZone {
		return "", false
	}
	return p.Token.Zone, true
}

// In reports whether the principal belongs to a group.
func (p Principal) In(group string) bool { return slices.Contains(p.Groups, group) }

// Expires returns when the principal's token runs out; the zero time when it
// has none.
func (p Principal) Expires() time.Time {
	if p.Token == nil {
		return time.Time{}
	}
	return p.Token.Expires
}

// String prints the principal as a denial names it: the name, a slash, and the
// groups joined by commas (§6.7).
func (p Principal) String() string { return p.Name + "/" + strings.Join(p.Groups, ",") }

// Caller returns by what the limits of a request count its caller, and whether the
// caller has proved who it is: its name, or, without credentials, the address that
// limits count it under; empty for none.
func Caller(ctx context.Context) (name string, known bool) {
	if p := PrincipalFrom(ctx); p.Source != FromNothing {
		return p.Name, true
	}
	from, ok := peer.FromContext(ctx)
	if !ok {
		return "", false
	}
	return limits.Origin(from.Addr).String(), false
}

type principalKey struct{}

// WithPrincipal returns a context that carries the principal of a request.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the principal of a request; Anonymous when the context
// carries none.
func PrincipalFrom(ctx context.Context) Principal {
	if p, ok := ctx.Value(principalKey{}).(Principal); ok {
		return p
	}
	return Anonymous()
}
