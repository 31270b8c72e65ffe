package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/authz/authztest"
	"meridian/internal/resource"
)

// Early refusals: what no rule could grant, whatever is not known yet. Of an object
// of Kubernetes that is its mesh, and the namespace that its name comes to include.
func TestEarlyRefusals(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(`
type: AccessRole
name: team
rules:
- {types: [TrafficPermission], names: [web.team], mesh: demo, access: [CREATE]}
- {access: [GENERATE_DATAPLANE_TOKEN], mesh: demo}
---
type: AccessRoleBinding
name: team
subjects: [{type: User, name: ann}]
roles: [team]
`)
	ann := authztest.As("ann")
	key := resource.Key{Kind: "TrafficPermission", Mesh: "demo", Name: "web.team"}
	require.NoError(t, p.Early(ann, false, key))
	authztest.RequireDenied(t, p.Early(ann, true, key), authz.ReasonDenied, `DELETE on TrafficPermission "web.team" in mesh "demo"`)
	authztest.RequireDenied(t, p.Early(ann, false, resource.Key{Kind: key.Kind, Mesh: "default", Name: key.Name}), authz.ReasonDenied, `it is about mesh "demo", not "default"`)
	require.NoError(t, p.Early(ann, false, resource.Key{Kind: "NoKind", Name: "x"}), "that it does not exist is for who may write something")
	authztest.RequireDenied(t, p.Early(authztest.As("bob"), false, resource.Key{Kind: "NoKind", Name: "x"}), authz.ReasonDenied, `CREATE on NoKind "x"`)

	require.NoError(t, p.EarlyReview(ann, resource.AccessCreate, resource.Key{Kind: key.Kind, Name: "web"}))
	authztest.RequireDenied(t, p.EarlyReview(ann, resource.AccessUpdate, resource.Key{Kind: key.Kind, Name: "web"}), authz.ReasonDenied, `UPDATE on TrafficPermission "web"`)
	authztest.RequireDenied(t, p.EarlyReview(ann, resource.AccessCreate, resource.Key{Kind: "Mesh", Name: "web"}), authz.ReasonDenied)

	require.NoError(t, p.EarlyToken(ann, resource.AccessGenerateDataplaneToken, "demo"))
	authztest.RequireDenied(t, p.EarlyToken(ann, resource.AccessGenerateDataplaneToken, "default"), authz.ReasonDenied)
	authztest.RequireDenied(t, p.EarlyToken(ann, resource.AccessGenerateUserToken, ""), authz.ReasonDenied)

	authztest.RequireDenied(t, p.Unauthenticated(authn.Anonymous()), authz.ReasonDenied, "no role is bound to callers without credentials: present a token")
	require.NoError(t, p.Unauthenticated(authn.UserPrincipal("bob", nil)))
	require.NoError(t, authztest.New(t, &authz.Defaults{}).Unauthenticated(authn.Anonymous()), "the open default binding")
}
