package authz

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// §6.5: whom the default binding names.
func TestDefaultBindings(t *testing.T) {
	for _, tt := range []struct {
		name     string
		defaults Defaults
		groups   []string
	}{
		{"global or standalone", Defaults{}, []string{"mesh-system:authenticated", "mesh-system:unauthenticated"}},
		{"federated zone", Defaults{Restricted: true}, []string{"mesh-system:admin"}},
		{"on Kubernetes", Defaults{Kubernetes: true}, []string{"mesh-system:authenticated", "mesh-system:unauthenticated", "system:authenticated", "system:unauthenticated"}},
		{"federated on Kubernetes", Defaults{Kubernetes: true, Restricted: true}, []string{"mesh-system:admin", "system:masters", "system:serviceaccounts:kube-system"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlane(t, &tt.defaults)
			r, ok := p.View().Get(bindingDefault)
			require.True(t, ok)
			var groups []string
			for _, s := range r.Spec().(*resource.AccessRoleBinding).Subjects {
				require.Equal(t, resource.SubjectGroup, s.Type)
				groups = append(groups, s.Name)
			}
			require.Equal(t, tt.groups, groups)
			role, ok := p.View().Get(roleAdmin)
			require.True(t, ok)
			require.Equal(t, rbac.Accesses(), role.Spec().(*resource.AccessRole).Rules[0].Access)

			open := tt.groups[0] == authn.AuthenticatedGroup
			require.Equal(t, open, p.may(as("bob"), permission("x")) == nil)
			require.Equal(t, open, p.may(anonymous(), permission("x")) == nil, "anonymous callers have the rights of their group")
			require.NoError(t, p.may(admin(), permission("x")))
		})
	}
}

// §6.5: the role is recreated at start when missing; the binding is
// created once and left alone.
func TestDefaultsAtALaterStart(t *testing.T) {
	d := Defaults{}
	p := newPlane(t, &d)
	start := func() { require.NoError(t, d.Ensure(t.Context(), p.View, p.log, p.now)) }

	before := p.Store.Revision()
	start()
	require.Equal(t, before, p.Store.Revision(), "nothing is missing, nothing is written")

	p.write(restricted)
	p.remove(roleAdmin)
	start()
	_, ok := p.View().Get(roleAdmin)
	require.True(t, ok, "the role is back")
	require.Error(t, p.may(as("bob"), permission("x")), "the binding is as it was left")

	p.remove(roleAdmin, bindingDefault)
	start()
	_, ok = p.View().Get(bindingDefault)
	require.False(t, ok, "a binding that was deleted stays deleted")
}

// Two servers that start together agree on one outcome.
func TestDefaultsLoseARace(t *testing.T) {
	p := newPlane(t, nil)
	other := Defaults{Restricted: true}
	p.log.Once(func() { require.NoError(t, other.Ensure(t.Context(), p.View, p.log, p.now)) })
	require.NoError(t, Defaults{}.Ensure(t.Context(), p.View, p.log, p.now))
	r, _ := p.View().Get(bindingDefault)
	require.Len(t, r.Spec().(*resource.AccessRoleBinding).Subjects, 1, "the first one's stands")
}

// §6.7 and §6.11: the walk-through, with its exact denial.
func TestWalkThrough(t *testing.T) {
	p := newPlane(t, &Defaults{})
	require.NoError(t, p.may(admin(), restricted))
	p.write(restricted)
	require.NoError(t, p.may(admin(), backendOwner))
	p.write(backendOwner)

	user := as("backend-owner")
	require.NoError(t, p.may(user, permission("backend")))
	p.write(permission("backend"))
	err := p.may(user, permission("other"))
	requireDenied(t, err, ReasonDenied)
	require.Equal(t, []string{
		`Access Denied (user "backend-owner/mesh-system:authenticated" cannot access the resource)`,
		`  missing: UPDATE on TrafficPermission "web-to-backend" in mesh "default"`,
		`  nearest rule: rules[0] of AccessRole "backend-owner", through AccessRoleBinding "backend-owners" to user "backend-owner": when[0].destinations wants kuma.io/service: backend, entry 1 has other`,
	}, strings.Split(err.Error(), "\n"))

	err = p.may(as("eve", "team-a", "team-b"), permission("backend"))
	requireDenied(t, err, ReasonDenied, `(user "eve/team-a,team-b,mesh-system:authenticated" cannot access the resource)`, "no role is bound")
	err = p.may(anonymous(), permission("backend"))
	requireDenied(t, err, ReasonDenied, `(user "mesh-system:anonymous/mesh-system:unauthenticated" cannot access the resource)`)
}

// A batch is refused whole, with what is missing on each of its resources.
func TestADenialNamesEveryResource(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	var batch []string
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		batch = append(batch, strings.Replace(permission("x"), "web-to-backend", name, 1))
	}
	err := p.may(as("bob"), strings.Join(batch, "---"))
	requireDenied(t, err, ReasonDenied, `CREATE on TrafficPermission "a"`, `CREATE on TrafficPermission "e"`, "and 2 more resources")
}

// §6.3: what is deleted is what is stored.
func TestDeletionsAreJudgedByWhatIsStored(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	p.write(backendOwner)
	p.write(permission("other"))
	key := documentsOf(t, permission("x"))[0].Resource.Key()
	_, err := p.Write(as("backend-owner"), []store.Op{store.Delete(key)}, false)
	requireDenied(t, err, ReasonDenied, "DELETE on TrafficPermission", "entry 1 has other")
	p.write(permission("backend"))
	permit, err := p.Write(as("backend-owner"), []store.Op{store.Delete(key)}, false)
	require.NoError(t, err)
	stored, _ := p.View().Get(key)
	require.Equal(t, []store.Precondition{{Key: key, Version: 2, Revision: stored.Meta().Revision}}, permit.Preconditions)
	require.Equal(t, p.View().AccessRevision(), permit.AccessRevision)
	_, err = p.Write(admin(), []store.Op{store.Delete(resource.Key{Kind: "Mesh", Name: "none"})}, false)
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
}

// §6.1: secret material takes write access to it, everything else is
// open.
func TestReading(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	p.write(`
type: GlobalSecret
name: db
data: c2VjcmV0
---
type: GlobalSecret
name: other
data: c2VjcmV0
---
type: AccessRole
name: db
rules: [{types: [GlobalSecret], names: [db], access: [CREATE, UPDATE]}, {types: [GlobalSecret], access: [DELETE]}]
---
type: AccessRoleBinding
name: db
subjects: [{type: User, name: dba}]
roles: [db]
`)
	secret := func(name string) *resource.Resource {
		r, ok := p.View().Get(resource.Key{Kind: "GlobalSecret", Name: name})
		require.True(t, ok)
		return r
	}
	mesh, _ := p.View().Get(resource.Key{Kind: "Mesh", Name: "default"})
	require.NoError(t, p.Read(anonymous(), mesh))
	require.NoError(t, p.Read(as("dba"), secret("db")))
	requireDenied(t, p.Read(as("dba"), secret("other")), ReasonDenied, `UPDATE on GlobalSecret "other"`, `names db, not "other"`)
	requireDenied(t, p.Read(as("bob"), secret("db")), ReasonDenied, "takes write access")
	require.NoError(t, p.Read(admin(), secret("other")))
}

// Nobody can grant what they do not hold.
func TestRightsDoNotGrow(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	p.write(`
type: AccessRole
name: delegate
rules:
- {mesh: demo, access: [CREATE, UPDATE]}
- {types: [AccessRole, AccessRoleBinding], access: [CREATE, UPDATE, DELETE]}
- {access: [GENERATE_USER_TOKEN]}
---
type: AccessRoleBinding
name: delegates
subjects: [{type: User, name: ann}]
roles: [delegate]
`)
	ann := as("ann")
	role := func(rule string) string { return "type: AccessRole\nname: x\nrules: [" + rule + "]\n" }
	bind := func(role string) string {
		return "type: AccessRoleBinding\nname: x\nsubjects: [{type: User, name: ann}]\nroles: [" + role + "]\n"
	}
	require.NoError(t, p.may(ann, role("{mesh: demo, types: [Retry], access: [CREATE]}")))
	requireDenied(t, p.may(ann, role("{mesh: demo, access: [CREATE, DELETE]}")), ReasonEscalation, "CREATE, DELETE on everything in a mesh in mesh demo", "only a member of mesh-system:admin")
	requireDenied(t, p.may(ann, bind("admin")), ReasonEscalation, `rules[0] of AccessRole "admin"`)
	requireDenied(t, p.may(ann, role("{access: [CREATE]}")+"---\n"+bind("x")), ReasonEscalation)
	requireDenied(t, p.may(ann, bind("admin"), true), ReasonEscalation, "only a member of mesh-system:admin")
	require.NoError(t, p.may(ann, bind("delegate")))
	require.NoError(t, p.may(ann, bind("not-there")))

	p.write(bind("later"))
	requireDenied(t, p.may(ann, "type: AccessRole\nname: later\nrules: [{access: [DELETE]}]\n"), ReasonEscalation)

	// Who is in mesh-system:admin but holds less can insist.
	p.write(strings.Replace(restricted, "roles: [admin]", "roles: [delegate]", 1))
	p.write("type: AccessRoleBinding\nname: root\nsubjects: [{type: User, name: root}]\nroles: [admin]\n")
	requireDenied(t, p.may(admin(), bind("admin")), ReasonEscalation, "--force does it all the same")
	require.NoError(t, p.may(admin(), bind("admin"), true))
	require.NoError(t, p.may(as("root"), bind("admin")), "who holds everything may grant it")

	// Tokens
	require.NoError(t, p.GenerateUserToken(ann, "carl", nil, false))
	require.NoError(t, p.GenerateUserToken(ann, "ann", nil, false))
	requireDenied(t, p.GenerateUserToken(ann, "root", nil, true), ReasonEscalation, "only a member of mesh-system:admin")
	requireDenied(t, p.GenerateUserToken(ann, "carl", []string{authn.AdminGroup}, true), ReasonEscalation)
	requireDenied(t, p.GenerateUserToken(ann, "root", nil, false), ReasonEscalation, `user "root/mesh-system:authenticated" would hold`)
	requireDenied(t, p.GenerateUserToken(ann, "carl", []string{authn.AdminGroup}, false), ReasonEscalation, "membership of group mesh-system:admin")
	requireDenied(t, p.GenerateUserToken(as("carl"), "carl", nil, false), ReasonDenied, "missing: GENERATE_USER_TOKEN")
	require.NoError(t, p.GenerateUserToken(admin(), "root", nil, true))
}

// The last binding that grants admin cannot be lost by accident.
func TestTheLastAdmin(t *testing.T) {
	p := newPlane(t, &Defaults{})
	remove := func(key resource.Key, force bool) error {
		_, err := p.Write(admin(), []store.Op{store.Delete(key)}, force)
		return err
	}
	weaker := strings.Replace(restricted, "roles: [admin]", "roles: [other]", 1)
	requireDenied(t, remove(bindingDefault, false), ReasonLastAdmin, "--force")
	requireDenied(t, remove(roleAdmin, false), ReasonLastAdmin)
	requireDenied(t, p.may(admin(), weaker), ReasonLastAdmin)
	_, err := p.Write(as("bob"), []store.Op{store.Delete(bindingDefault)}, true)
	requireDenied(t, err, ReasonLastAdmin, "only a member of mesh-system:admin")
	require.NoError(t, remove(bindingDefault, true))

	p.write("type: AccessRoleBinding\nname: second\nsubjects: [{type: User, name: root}]\nroles: [admin]\n")
	require.NoError(t, remove(bindingDefault, false), "there is another one")
}

// §6.5: the role admin comes back at the next start, so nobody gets it
// by waiting for that.
func TestNobodyWaitsForTheRoleAdmin(t *testing.T) {
	d := Defaults{Restricted: true}
	p := newPlane(t, &d)
	p.write(delegates)
	p.write("type: AccessRole\nname: issuer\nrules: [{access: [GENERATE_USER_TOKEN]}]\n---\n" +
		"type: AccessRoleBinding\nname: issuers\nsubjects: [{type: User, name: ann}]\nroles: [issuer]\n")
	p.remove(roleAdmin)
	const bind = "type: AccessRoleBinding\nname: sneaky\nsubjects: [{type: User, name: ann}]\nroles: [admin]\n"
	requireDenied(t, p.may(as("ann"), bind), ReasonEscalation, `rules[0] of AccessRole "admin"`)
	require.NoError(t, p.GenerateUserToken(as("ann"), "carl", []string{"ops"}, false))
	p.write("type: AccessRoleBinding\nname: ops\nsubjects: [{type: Group, name: ops}]\nroles: [admin]\n")
	requireDenied(t, p.GenerateUserToken(as("ann"), "carl", []string{"ops"}, false), ReasonEscalation, `user "carl/ops,mesh-system:authenticated" would hold rules[0] of AccessRole "admin"`)

	// A weak role of that name, held by herself, is not hers to take away.
	p.write("type: AccessRole\nname: admin\nrules: [{mesh: demo, access: [CREATE]}]\n")
	require.NoError(t, p.may(as("ann"), bind))
	p.write(bind)
	_, err := p.Write(as("ann"), []store.Op{store.Delete(roleAdmin)}, false)
	requireDenied(t, err, ReasonEscalation, `rules[0] of AccessRole "admin"`)
	_, err = p.Admit(as("ann"), Change{Access: resource.AccessDelete, Old: rbac.Object{Key: roleAdmin}})
	requireDenied(t, err, ReasonEscalation)

	p.remove(roleAdmin)
	require.NoError(t, d.Ensure(t.Context(), p.View, p.log, p.now))
	require.NoError(t, p.may(as("ann"), "type: Mesh\nname: hers\n"), "this is what all of it is kept from")
}

// Who writes a signing key can make tokens with it, so it takes holding what they
// give. What is no key does not come to stand in one's place.
func TestNobodyPlantsAKey(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	p.write(`
type: AccessRole
name: secrets
rules: [{types: [GlobalSecret, SigningKey], access: [CREATE, UPDATE]}]
---
type: AccessRole
name: proxies
rules: [{access: [GENERATE_DATAPLANE_TOKEN]}]
---
type: AccessRoleBinding
name: secrets
subjects: [{type: User, name: mallory}, {type: User, name: paula}]
roles: [secrets]
---
type: AccessRoleBinding
name: proxies
subjects: [{type: User, name: paula}]
roles: [proxies]
`)
	secret := func(use authn.Use) string {
		id := authn.KeyID{Use: use, Serial: 7}
		key, err := authn.GenerateSigningKey(id)
		require.NoError(t, err)
		text, err := key.PEM()
		require.NoError(t, err)
		return fmt.Sprintf("type: GlobalSecret\nname: %s\ndata: %s\n", id, base64.StdEncoding.EncodeToString(text))
	}
	mallory, paula := as("mallory"), as("paula")
	require.NoError(t, p.may(mallory, "type: GlobalSecret\nname: db\ndata: AA==\n"))
	require.NoError(t, p.may(mallory, "type: GlobalSecret\nname: jwt-signing-key-1\ndata: AA==\n"), "a key of an application")
	for _, use := range []authn.Use{authn.UserToken, authn.DataplaneToken, authn.ZoneToken, authn.ServerToken} {
		requireDenied(t, p.may(mallory, secret(use)), ReasonEscalation, "can sign with it", string(use))
		require.NoError(t, p.may(admin(), secret(use)))
	}
	requireDenied(t, p.may(mallory, secret(authn.UserToken), true), ReasonEscalation, "GENERATE_USER_TOKEN", "only a member of mesh-system:admin")
	require.NoError(t, p.may(paula, secret(authn.DataplaneToken)), "she can issue such tokens anyway")
	requireDenied(t, p.may(paula, secret(authn.ZoneToken)), ReasonEscalation, "GENERATE_ZONE_CP_TOKEN")
	key, err := authn.GenerateSigningKey(authn.KeyID{Use: authn.DataplaneToken, Serial: 7})
	require.NoError(t, err)
	der, err := key.Public().PKIX()
	require.NoError(t, err)
	public := "type: SigningKey\nname: dataplane-token-signing-key-7\nuse: dataplane-token\nserial: 7\npublicKey: " + base64.StdEncoding.EncodeToString(der) + "\n"
	requireDenied(t, p.may(mallory, public), ReasonEscalation)
	require.NoError(t, p.may(paula, public))

	kept := secret(authn.UserToken)
	p.write(kept)
	require.NoError(t, p.may(mallory, kept), "what is there already gives nothing new")
	_, err = p.Rotate(mallory, documentsOf(t, secret(authn.UserToken)))
	require.NoError(t, err, "a key that nobody has seen gives nobody anything")

	err = p.may(admin(), "type: GlobalSecret\nname: user-token-signing-key-9\ndata: Z2FyYmFnZQ==\n", true)
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "GlobalSecret/user-token-signing-key-9 is the name of a signing key: reading user-token-signing-key-9: not a PEM file")
}

// bindingOf is a binding of n users to n roles that are not there.
func bindingOf(n int) string {
	subjects, roles := make([]string, n), make([]string, n)
	for i := range n {
		subjects[i], roles[i] = fmt.Sprintf("{type: User, name: u%d}", i), fmt.Sprintf("r%d", i)
	}
	return "type: AccessRoleBinding\nname: huge\nsubjects: [" + strings.Join(subjects, ", ") + "]\nroles: [" + strings.Join(roles, ", ") + "]\n"
}

// What the rules take to keep is bounded, also for administrators, and for those
// who only ask.
func TestGrantsAreBounded(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	huge := bindingOf(5000)
	err := p.may(admin(), huge, true)
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, "there would be 25000001 grants")
	document := documentsOf(t, huge)[0].Resource
	answer, err := NewService(p.Authorizer, p.log.Read).CanI(anonymous(), &meridianv1.CanIRequest{
		Access: "CREATE", AsUser: "admin", AsGroups: []string{authn.AdminGroup},
		Resource: &meridianv1.Resource{Kind: string(document.Key().Kind), Name: document.Key().Name, Spec: document.Canonical()},
	})
	require.NoError(t, err)
	require.False(t, answer.GetAllowed())

	// Who has so many already can still take some away.
	p.write(bindingOf(510))
	require.NoError(t, p.may(admin(), bindingOf(505)))
	require.Error(t, p.may(admin(), bindingOf(515)))
}

// Two administrators who each take away the other's binding do not leave nobody:
// what was decided first is decided again.
func TestTheLastAdminIsRaced(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	p.write("type: AccessRoleBinding\nname: second\nsubjects: [{type: User, name: root}]\nroles: [admin]\n")
	second := resource.Key{Kind: resource.KindAccessRoleBinding, Name: "second"}
	first, err := p.Write(admin(), []store.Op{store.Delete(bindingDefault)}, false)
	require.NoError(t, err)
	other, err := p.Write(admin(), []store.Op{store.Delete(second)}, false)
	require.NoError(t, err)
	propose := func(permit Permit, key resource.Key) error {
		_, err := p.log.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Delete(key)}, AccessRevision: &permit.AccessRevision, Preconditions: permit.Preconditions})
		return err
	}
	require.NoError(t, propose(first, bindingDefault))
	var changed *store.AccessChangedError
	require.ErrorAs(t, propose(other, second), &changed)
	_, err = p.Write(as("root"), []store.Op{store.Delete(second)}, false)
	requireDenied(t, err, ReasonLastAdmin)
}

// A batch that takes away two bindings, neither of which is the last, is refused.
func TestTheLastAdminInABatch(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	const second = "type: AccessRoleBinding\nname: second\nsubjects: [{type: User, name: root}]\nroles: [admin]\n"
	p.write(second)
	keys := []store.Op{store.Delete(bindingDefault), store.Delete(resource.Key{Kind: resource.KindAccessRoleBinding, Name: "second"})}
	_, err := p.Write(admin(), keys, false)
	requireDenied(t, err, ReasonLastAdmin)
	weaker := strings.ReplaceAll(restricted+"---\n"+second, "[admin]", "[other]")
	requireDenied(t, p.may(admin(), weaker), ReasonLastAdmin)
	require.NoError(t, p.may(admin(), strings.Replace(weaker, "[other]", "[admin]", 1)))
	_, err = p.Admit(admin(), Change{Access: resource.AccessDelete, Old: rbac.Object{Key: roleAdmin}})
	requireDenied(t, err, ReasonLastAdmin)
}

// §6.2: a binding to a role that does not exist is accepted with a
// warning.
func TestBindingToNothing(t *testing.T) {
	p := newPlane(t, &Defaults{})
	binding := "type: AccessRoleBinding\nname: x\nsubjects: [{type: User, name: ann}]\nroles: [nothing, admin]\n"
	permit, err := p.Write(admin(), documentsOf(t, binding), false)
	require.NoError(t, err)
	require.Equal(t, []string{`AccessRoleBinding/x: there is no AccessRole "nothing": until there is, it grants nothing`}, permit.Warnings)
	permit, err = p.Write(admin(), documentsOf(t, binding+"---\ntype: AccessRole\nname: nothing\nrules: [{access: [CREATE]}]\n"), false)
	require.NoError(t, err)
	require.Empty(t, permit.Warnings, "the role comes with it")
}

// §6.2: what each token takes.
func TestTokens(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	p.write(`
type: AccessRole
name: zones
rules: [{access: [GENERATE_ZONE_CP_TOKEN]}]
---
type: AccessRole
name: edges
rules: [{access: [GENERATE_ZONE_TOKEN]}, {mesh: demo, access: [GENERATE_DATAPLANE_TOKEN]}]
---
type: AccessRoleBinding
name: zones
subjects: [{type: User, name: zoe}]
roles: [zones]
---
type: AccessRoleBinding
name: edges
subjects: [{type: User, name: ed}]
roles: [edges]
`)
	require.NoError(t, p.GenerateZoneToken(as("zoe"), authn.ScopeControlPlane))
	requireDenied(t, p.GenerateZoneToken(as("zoe"), authn.ScopeIngress), ReasonDenied, "GENERATE_ZONE_TOKEN")
	requireDenied(t, p.GenerateZoneToken(as("zoe"), authn.ScopeControlPlane, authn.ScopeEgress), ReasonDenied)
	require.NoError(t, p.GenerateZoneToken(as("ed"), authn.ScopeIngress, authn.ScopeEgress))
	requireDenied(t, p.GenerateZoneToken(as("ed"), authn.ScopeControlPlane), ReasonDenied, "missing: GENERATE_ZONE_CP_TOKEN", "it grants GENERATE_ZONE_TOKEN, not GENERATE_ZONE_CP_TOKEN")
	require.NoError(t, p.GenerateDataplaneToken(as("ed"), rbac.Token{Mesh: "demo"}))
	requireDenied(t, p.GenerateDataplaneToken(as("ed"), rbac.Token{Mesh: "default"}), ReasonDenied, `in mesh "default"`)
	require.NoError(t, p.RequireAdmin(admin()))
	requireDenied(t, p.RequireAdmin(as("ed")), ReasonDenied, "membership of group mesh-system:admin")
}

// Rules are compiled once for as long as they stay as they are.
func TestRulesAreCompiledOnce(t *testing.T) {
	p := newPlane(t, &Defaults{})
	first := p.Rules(p.View())
	p.write(permission("x"))
	require.Same(t, first, p.Rules(p.View()), "another resource changed")
	p.write(restricted)
	require.NotSame(t, first, p.Rules(p.View()))
}

// Both packages know the group by which rights are insisted on.
func TestOneAdminGroup(t *testing.T) { require.Equal(t, authn.AdminGroup, rbac.AdminGroup) }

func TestDoors(t *testing.T) {
	admit := Doors(map[string]authn.Use{"zones.Sync": authn.ZoneToken, "servers.Join": authn.ServerToken})
	user, zone := authn.UserPrincipal("bob", nil), authn.Principal{Source: authn.FromToken, Token: &authn.Token{Key: authn.KeyID{Use: authn.ZoneToken}, Zone: "east"}}
	server := authn.Principal{Source: authn.FromToken, Token: &authn.Token{Key: authn.KeyID{Use: authn.ServerToken}}}
	other := authn.Principal{Source: authn.FromToken, Token: &authn.Token{Key: authn.KeyID{Use: "dataplane-token"}}}
	for _, p := range []authn.Principal{user, authn.Anonymous(), authn.LoopbackAdmin()} {
		require.NoError(t, admit(p, "/admin.Admin/Apply"))
		require.Error(t, admit(p, "/zones.Sync/Stream"))
	}
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(admit(authn.Anonymous(), "/zones.Sync/Stream")))
	require.NoError(t, admit(zone, "/zones.Sync/Stream"))
	require.True(t, rpcerr.HasReason(admit(zone, "/admin.Admin/Get"), authn.ReasonNotForZones))
	require.True(t, rpcerr.HasReason(admit(other, "/admin.Admin/Get"), ReasonNotForUsers))
	require.True(t, rpcerr.HasReason(admit(other, "/zones.Sync/Stream"), authn.ReasonZoneOnly))

	require.NoError(t, admit(server, "/servers.Join/Join"))
	for _, p := range []authn.Principal{user, zone, other, authn.Anonymous(), authn.LoopbackAdmin()} {
		require.Error(t, admit(p, "/servers.Join/Join"))
	}
	require.True(t, rpcerr.HasReason(admit(zone, "/servers.Join/Join"), authn.ReasonServerOnly))
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(admit(authn.LoopbackAdmin(), "/servers.Join/Join")))
	require.True(t, rpcerr.HasReason(admit(server, "/zones.Sync/Stream"), authn.ReasonZoneOnly))
	err := admit(server, "/admin.Admin/Get")
	require.True(t, rpcerr.HasReason(err, authn.ReasonNotForServers))
	require.EqualError(t, err, "Access Denied: a server token does not open admin.Admin: users present a user token")
}

func TestService(t *testing.T) {
	p := newPlane(t, &Defaults{Restricted: true})
	p.write(backendOwner)
	p.write(permission("other"))
	p.write("type: AccessRole\nname: tokens\nrules: [{access: [GENERATE_USER_TOKEN]}]\n---\n" +
		"type: AccessRoleBinding\nname: strangers\nsubjects: [{type: Group, name: 'mesh-system:unauthenticated'}]\nroles: [tokens]\n")
	s := NewService(p.Authorizer, p.log.Read)

	me, err := s.WhoAmI(as("backend-owner", "team"), &meridianv1.WhoAmIRequest{})
	require.NoError(t, err)
	require.Equal(t, "backend-owner", me.GetName())
	require.Equal(t, []string{"team", "mesh-system:authenticated"}, me.GetGroups())
	require.Equal(t, "token", me.GetSource())
	require.Equal(t, "backend-owners", me.GetRoles()[0].GetBinding())

	stored, _ := p.View().Get(documentsOf(t, permission("x"))[0].Resource.Key())
	message := func(text string) *meridianv1.Resource {
		r := documentsOf(t, text)[0].Resource
		return &meridianv1.Resource{Kind: string(r.Key().Kind), Mesh: string(r.Key().Mesh), Name: r.Key().Name, Spec: r.Canonical()}
	}
	require.NotNil(t, stored)
	for name, tt := range map[string]struct {
		req  *meridianv1.CanIRequest
		want bool
	}{
		"create":          {&meridianv1.CanIRequest{Access: "CREATE", Resource: message(permission("backend"))}, true},
		"what is stored":  {&meridianv1.CanIRequest{Access: "UPDATE", Resource: message(permission("backend"))}, false},
		"old given":       {&meridianv1.CanIRequest{Access: "UPDATE", Resource: message(permission("backend")), Old: message(permission("backend"))}, true},
		"by identity":     {&meridianv1.CanIRequest{Access: "DELETE", Key: &meridianv1.ResourceKey{Kind: "traffic-permission", Mesh: "default", Name: "web-to-backend"}}, false},
		"another":         {&meridianv1.CanIRequest{Access: "GENERATE_USER_TOKEN", AsUser: "admin", AsGroups: []string{"mesh-system:admin"}}, true},
		"strangers":       {&meridianv1.CanIRequest{Access: "GENERATE_USER_TOKEN", AsUser: "mesh-system:anonymous"}, true},
		"another without": {&meridianv1.CanIRequest{Access: "CREATE", Resource: message(permission("backend")), AsUser: "eve"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := s.CanI(as("backend-owner"), tt.req)
			require.NoError(t, err)
			require.Equal(t, tt.want, answer.GetAllowed(), answer.GetReasons())
			require.NotEmpty(t, answer.GetReasons())
		})
	}
	for name, req := range map[string]*meridianv1.CanIRequest{
		"access":   {Access: "READ"},
		"user":     {Access: "GENERATE_USER_TOKEN", AsGroups: []string{"g"}},
		"resource": {Access: "CREATE"},
		"kind":     {Access: "CREATE", Key: &meridianv1.ResourceKey{Kind: "Nothing"}},
		"content":  {Access: "CREATE", Resource: &meridianv1.Resource{Kind: "Mesh", Name: "x", Spec: []byte("[]")}},
	} {
		_, err := s.CanI(as("bob"), req)
		require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), name)
	}
	who, err := s.WhoCan(as("bob"), &meridianv1.WhoCanRequest{Access: "UPDATE", Key: &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: "x"}})
	require.NoError(t, err)
	require.Len(t, who.GetHolders(), 2)
	require.Equal(t, "mesh-system:admin", who.GetHolders()[0].GetSubject().GetName())
	require.True(t, who.GetHolders()[1].GetConditional())
	_, err = s.WhoCan(as("bob"), &meridianv1.WhoCanRequest{Access: "UPDATE"})
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
}

// The rules of a restored state decide as soon as it is there, also when they
// are at a revision that other rules were at before.
func TestRestoredRulesDecide(t *testing.T) {
	p := newPlane(t, nil)
	grant := func(user string) {
		p.write("type: AccessRole\nname: r\nrules: [{access: [CREATE]}]\n---\ntype: AccessRoleBinding\nname: b\nsubjects: [{type: User, name: " + user + "}]\nroles: [r]\n")
	}
	may := func(user string) bool {
		_, err := p.Write(as(user), documentsOf(t, "type: Mesh\nname: new\n"), false)
		return err == nil
	}
	grant("bob")
	var file bytes.Buffer
	require.NoError(t, p.View().WriteBackup(&file, nil))
	grant("alice")
	require.True(t, may("alice"))
	require.False(t, may("bob"))
	before := p.View().AccessRevision()

	snap, err := store.ReadSnapshot(&file)
	require.NoError(t, err)
	for _, part := range snap.Parts(p.View().Epoch(), store.Epoch{Incarnation: 2}, 1<<20) {
		require.NoError(t, p.Apply(p.Store.Revision()+1, store.Txn{Restore: &part}).Err)
	}
	require.True(t, may("bob"))
	require.False(t, may("alice"))
	require.Greater(t, p.View().AccessRevision(), before)

	// A replica that is rewound may have other rules at the very same revision.
	revision := p.View().AccessRevision()
	grant("carol")
	var all []*resource.Resource
	for r := range p.View().All() {
		all = append(all, r)
	}
	require.NoError(t, p.Reset(&store.Snapshot{Revision: revision, AccessRevision: revision, Resources: all}))
	require.Equal(t, revision, p.View().AccessRevision())
	require.True(t, may("carol"))
	require.False(t, may("bob"))
}
