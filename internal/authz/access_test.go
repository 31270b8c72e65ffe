package authz_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/authz/authztest"
	"meridian/internal/pki"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/access"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// §6.5: whom the default binding names.
func TestDefaultBindings(t *testing.T) {
	for _, tt := range []struct {
		name     string
		defaults authz.Defaults
		groups   []string
	}{
		{"global or standalone", authz.Defaults{}, []string{"mesh-system:authenticated", "mesh-system:unauthenticated"}},
		{"federated zone", authz.Defaults{Restricted: true}, []string{"mesh-system:admin"}},
		{"on Kubernetes", authz.Defaults{Kubernetes: true}, []string{"mesh-system:authenticated", "mesh-system:unauthenticated", "system:authenticated", "system:unauthenticated"}},
		{"federated on Kubernetes", authz.Defaults{Kubernetes: true, Restricted: true}, []string{"mesh-system:admin", "system:masters", "system:serviceaccounts:kube-system"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := authztest.New(t, &tt.defaults)
			r, ok := p.View().Get(authztest.BindingDefault)
			require.True(t, ok)
			var groups []string
			for _, s := range r.Spec().(*resource.AccessRoleBinding).Subjects {
				require.Equal(t, resource.SubjectGroup, s.Type)
				groups = append(groups, s.Name)
			}
			require.Equal(t, tt.groups, groups)
			role, ok := p.View().Get(authztest.RoleAdmin)
			require.True(t, ok)
			require.Equal(t, rbac.Accesses(), role.Spec().(*resource.AccessRole).Rules[0].Access)

			open := tt.groups[0] == authn.AuthenticatedGroup
			require.Equal(t, open, p.May(authztest.As("bob"), authztest.Permission("x")) == nil)
			require.Equal(t, open, p.May(authztest.Anonymous(), authztest.Permission("x")) == nil, "anonymous callers have the rights of their group")
			require.NoError(t, p.May(authztest.Admin(), authztest.Permission("x")))
		})
	}
}

// §6.5: the role is recreated at start when missing; the binding is
// created once and left alone.
func TestDefaultsAtALaterStart(t *testing.T) {
	d := authz.Defaults{}
	p := authztest.New(t, &d)
	start := func() { require.NoError(t, d.Ensure(t.Context(), p.View, p.Log, p.Now)) }

	before := p.Store.Revision()
	start()
	require.Equal(t, before, p.Store.Revision(), "nothing is missing, nothing is written")

	p.Seed(authztest.RestrictedBinding)
	p.Remove(authztest.RoleAdmin)
	start()
	_, ok := p.View().Get(authztest.RoleAdmin)
	require.True(t, ok, "the role is back")
	require.Error(t, p.May(authztest.As("bob"), authztest.Permission("x")), "the binding is as it was left")

	p.Remove(authztest.RoleAdmin, authztest.BindingDefault)
	start()
	_, ok = p.View().Get(authztest.BindingDefault)
	require.False(t, ok, "a binding that was deleted stays deleted")
}

// Two servers that start together agree on one outcome.
func TestDefaultsLoseARace(t *testing.T) {
	p := authztest.New(t, nil)
	other := authz.Defaults{Restricted: true}
	p.Log.Once(func() { require.NoError(t, other.Ensure(t.Context(), p.View, p.Log, p.Now)) })
	require.NoError(t, authz.Defaults{}.Ensure(t.Context(), p.View, p.Log, p.Now))
	r, _ := p.View().Get(authztest.BindingDefault)
	require.Len(t, r.Spec().(*resource.AccessRoleBinding).Subjects, 1, "the first one's stands")
}

// §6.5: which bindings make every caller an administrator, and that a server
// does not write one where that is not accepted, also with force.
func TestOpenAccess(t *testing.T) {
	bind := func(subject, role string) string {
		return "type: AccessRoleBinding\nname: all\nsubjects: [" + subject + "]\nroles: [" + role + "]\n"
	}
	const unauthenticated = "{type: Group, name: 'mesh-system:unauthenticated'}"
	writers := "type: AccessRole\nname: some\nrules: [{access: [CREATE, UPDATE]}, {access: [DELETE]}]\n"
	for name, tt := range map[string]struct {
		stored, write string
		open          bool
	}{
		"role admin":                {write: bind(unauthenticated, "admin"), open: true},
		"the anonymous user":        {write: bind("{type: User, name: 'mesh-system:anonymous'}", "admin"), open: true},
		"role of the same rights":   {stored: writers, write: bind(unauthenticated, "some"), open: true},
		"role that grows":           {stored: "type: AccessRole\nname: some\nrules: [{access: [CREATE]}]\n---\n" + bind(unauthenticated, "some"), write: writers, open: true},
		"authenticated users":       {write: bind("{type: Group, name: 'mesh-system:authenticated'}", "admin")},
		"role for one kind":         {stored: "type: AccessRole\nname: some\nrules: [{types: [Timeout], access: [CREATE, UPDATE, DELETE]}]\n", write: bind(unauthenticated, "some")},
		"role without deletions":    {stored: "type: AccessRole\nname: some\nrules: [{access: [CREATE, UPDATE]}]\n", write: bind(unauthenticated, "some")},
		"roles of administrators":   {write: bind("{type: Group, name: 'mesh-system:admin'}", "admin")},
		"a change of another thing": {write: authztest.Permission("x")},
	} {
		t.Run(name, func(t *testing.T) {
			p := authztest.New(t, &authz.Defaults{Restricted: true})
			if tt.stored != "" {
				p.Seed(tt.stored)
			}
			require.False(t, p.Open())
			require.NoError(t, p.May(authztest.Admin(), tt.write), "accepted where it is not refused")
			p.RefuseOpen("--grpc-addr 0.0.0.0:1 is reached from other hosts")
			for _, force := range [][]bool{nil, {true}} {
				err := p.May(authztest.Admin(), tt.write, force...)
				if !tt.open {
					require.NoError(t, err)
					continue
				}
				authztest.RequireDenied(t, err, authz.ReasonOpen, "--grpc-addr 0.0.0.0:1 is reached from other hosts", "--default-access=open")
			}
			p.Seed(tt.write)
			require.Equal(t, tt.open, p.Open())
			require.NoError(t, p.May(authztest.Admin(), authztest.BackendOwner), "an open binding that is there does not stop other writes")
		})
	}
}

// §6.7 and §6.11: the walk-through, with its exact denial.
func TestWalkThrough(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	require.NoError(t, p.May(authztest.Admin(), authztest.RestrictedBinding))
	p.Seed(authztest.RestrictedBinding)
	require.NoError(t, p.May(authztest.Admin(), authztest.BackendOwner))
	p.Seed(authztest.BackendOwner)

	user := authztest.As("backend-owner")
	require.NoError(t, p.May(user, authztest.Permission("backend")))
	p.Seed(authztest.Permission("backend"))
	err := p.May(user, authztest.Permission("other"))
	authztest.RequireDenied(t, err, authz.ReasonDenied)
	require.Equal(t, []string{
		`Access Denied (user "backend-owner/mesh-system:authenticated" cannot access the resource)`,
		`  missing: UPDATE on TrafficPermission "web-to-backend" in mesh "default"`,
		`  nearest rule: rules[0] of AccessRole "backend-owner", through AccessRoleBinding "backend-owners" to user "backend-owner": when[0].destinations wants kuma.io/service: backend, entry 1 has other`,
	}, strings.Split(err.Error(), "\n"))

	err = p.May(authztest.As("eve", "team-a", "team-b"), authztest.Permission("backend"))
	authztest.RequireDenied(t, err, authz.ReasonDenied, `(user "eve/team-a,team-b,mesh-system:authenticated" cannot access the resource)`, "no role is bound")
	err = p.May(authztest.Anonymous(), authztest.Permission("backend"))
	authztest.RequireDenied(t, err, authz.ReasonDenied, `(user "mesh-system:anonymous/mesh-system:unauthenticated" cannot access the resource)`)
}

// A batch is refused whole, with what is missing on each of its resources.
func TestADenialNamesEveryResource(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	var batch []string
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		batch = append(batch, strings.Replace(authztest.Permission("x"), "web-to-backend", name, 1))
	}
	err := p.May(authztest.As("bob"), strings.Join(batch, "---"))
	authztest.RequireDenied(t, err, authz.ReasonDenied, `CREATE on TrafficPermission "a"`, `CREATE on TrafficPermission "e"`, "and 2 more resources")
}

// §6.3: what is deleted is what is stored.
func TestDeletionsAreJudgedByWhatIsStored(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(authztest.BackendOwner)
	p.Seed(authztest.Permission("other"))
	key := authztest.Ops(t, authztest.Permission("x"))[0].Resource.Key()
	_, err := p.Write(authztest.As("backend-owner"), []store.Op{store.Delete(key)}, false)
	authztest.RequireDenied(t, err, authz.ReasonDenied, "DELETE on TrafficPermission", "entry 1 has other")
	p.Seed(authztest.Permission("backend"))
	permit, err := p.Write(authztest.As("backend-owner"), []store.Op{store.Delete(key)}, false)
	require.NoError(t, err)
	stored, _ := p.View().Get(key)
	require.Equal(t, []store.Precondition{{Key: key, Version: 2, Revision: stored.Meta().Revision}}, permit.Preconditions)
	require.Equal(t, p.View().AccessRevision(), permit.AccessRevision)
	_, err = p.Write(authztest.Admin(), []store.Op{store.Delete(resource.Key{Kind: "Mesh", Name: "none"})}, false)
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
}

// §6.1: secret material takes write access to it, everything else is
// open.
func TestReading(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(`
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
	require.NoError(t, p.Read(authztest.As("bob"), mesh))
	authztest.RequireDenied(t, p.Read(authztest.Anonymous(), mesh), authz.ReasonDenied, `missing: READ on Mesh "default"`)
	require.NoError(t, p.Read(authztest.As("dba"), secret("db")))
	authztest.RequireDenied(t, p.Read(authztest.As("dba"), secret("other")), authz.ReasonDenied, `UPDATE on GlobalSecret "other"`, `names db, not "other"`)
	authztest.RequireDenied(t, p.Read(authztest.As("bob"), secret("db")), authz.ReasonDenied, "takes write access")
	require.NoError(t, p.Read(authztest.Admin(), secret("other")))
}

// A user cannot grant rights beyond their own.
func TestRightsDoNotGrow(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(`
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
	ann := authztest.As("ann")
	role := func(rule string) string { return "type: AccessRole\nname: x\nrules: [" + rule + "]\n" }
	bind := func(role string) string {
		return "type: AccessRoleBinding\nname: x\nsubjects: [{type: User, name: ann}]\nroles: [" + role + "]\n"
	}
	require.NoError(t, p.May(ann, role("{mesh: demo, types: [Retry], access: [CREATE]}")))
	authztest.RequireDenied(t, p.May(ann, role("{mesh: demo, access: [CREATE, DELETE]}")), authz.ReasonEscalation, "CREATE, DELETE on everything in a mesh in mesh demo", "only a member of mesh-system:admin")
	authztest.RequireDenied(t, p.May(ann, bind("admin")), authz.ReasonEscalation, `rules[0] of AccessRole "admin"`)
	authztest.RequireDenied(t, p.May(ann, role("{access: [CREATE]}")+"---\n"+bind("x")), authz.ReasonEscalation)
	authztest.RequireDenied(t, p.May(ann, bind("admin"), true), authz.ReasonEscalation, "only a member of mesh-system:admin")
	require.NoError(t, p.May(ann, bind("delegate")))
	authztest.RequireDenied(t, p.May(ann, bind("not-there")), authz.ReasonEscalation, `AccessRole "not-there", which does not exist and may come to grant every access`)
	require.NoError(t, p.May(authztest.Admin(), bind("not-there"), true))

	p.Seed(bind("later"))
	authztest.RequireDenied(t, p.May(ann, "type: AccessRole\nname: later\nrules: [{access: [DELETE]}]\n"), authz.ReasonEscalation)

	// Who is in mesh-system:admin but holds less can insist.
	p.Seed(strings.Replace(authztest.RestrictedBinding, "roles: [admin]", "roles: [delegate]", 1))
	p.Seed("type: AccessRoleBinding\nname: root\nsubjects: [{type: User, name: root}]\nroles: [admin]\n")
	authztest.RequireDenied(t, p.May(authztest.Admin(), bind("admin")), authz.ReasonEscalation, "--force does it all the same")
	require.NoError(t, p.May(authztest.Admin(), bind("admin"), true))
	require.NoError(t, p.May(authztest.As("root"), bind("admin")), "who holds everything may grant it")

	// Tokens
	require.NoError(t, p.GenerateUserToken(ann, "carl", nil, false))
	require.NoError(t, p.GenerateUserToken(ann, "ann", nil, false))
	authztest.RequireDenied(t, p.GenerateUserToken(ann, "root", nil, true), authz.ReasonEscalation, "only a member of mesh-system:admin")
	authztest.RequireDenied(t, p.GenerateUserToken(ann, "carl", []string{authn.AdminGroup}, true), authz.ReasonEscalation)
	authztest.RequireDenied(t, p.GenerateUserToken(ann, "root", nil, false), authz.ReasonEscalation, `user "root/mesh-system:authenticated" would hold`)
	authztest.RequireDenied(t, p.GenerateUserToken(ann, "carl", []string{authn.AdminGroup}, false), authz.ReasonEscalation, "membership of group mesh-system:admin")
	authztest.RequireDenied(t, p.GenerateUserToken(authztest.As("carl"), "carl", nil, false), authz.ReasonDenied, "missing: GENERATE_USER_TOKEN")
	require.NoError(t, p.GenerateUserToken(authztest.Admin(), "root", nil, true))
}

// The last binding that grants admin cannot be lost by accident.
func TestTheLastAdmin(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	remove := func(key resource.Key, force bool) error {
		_, err := p.Write(authztest.Admin(), []store.Op{store.Delete(key)}, force)
		return err
	}
	weaker := strings.Replace(authztest.RestrictedBinding, "roles: [admin]", "roles: [other]", 1)
	authztest.RequireDenied(t, remove(authztest.BindingDefault, false), authz.ReasonLastAdmin, "--force")
	authztest.RequireDenied(t, remove(authztest.RoleAdmin, false), authz.ReasonLastAdmin)
	authztest.RequireDenied(t, p.May(authztest.Admin(), weaker), authz.ReasonLastAdmin)
	_, err := p.Write(authztest.As("bob"), []store.Op{store.Delete(authztest.BindingDefault)}, true)
	authztest.RequireDenied(t, err, authz.ReasonLastAdmin, "only a member of mesh-system:admin")
	require.NoError(t, remove(authztest.BindingDefault, true))

	p.Seed("type: AccessRoleBinding\nname: second\nsubjects: [{type: User, name: root}]\nroles: [admin]\n")
	require.NoError(t, remove(authztest.BindingDefault, false), "there is another one")
}

// §6.5: the role admin comes back at the next start, so no user is granted it
// by waiting for that.
func TestNoBindingToTheMissingRoleAdmin(t *testing.T) {
	d := authz.Defaults{Restricted: true}
	p := authztest.New(t, &d)
	p.Seed(authztest.Delegates)
	p.Seed("type: AccessRole\nname: issuer\nrules: [{access: [GENERATE_USER_TOKEN]}]\n---\n" +
		"type: AccessRoleBinding\nname: issuers\nsubjects: [{type: User, name: ann}]\nroles: [issuer]\n")
	p.Remove(authztest.RoleAdmin)
	const bind = "type: AccessRoleBinding\nname: sneaky\nsubjects: [{type: User, name: ann}]\nroles: [admin]\n"
	authztest.RequireDenied(t, p.May(authztest.As("ann"), bind), authz.ReasonEscalation, `rules[0] of AccessRole "admin"`)
	require.NoError(t, p.GenerateUserToken(authztest.As("ann"), "carl", []string{"ops"}, false))
	p.Seed("type: AccessRoleBinding\nname: ops\nsubjects: [{type: Group, name: ops}]\nroles: [admin]\n")
	authztest.RequireDenied(t, p.GenerateUserToken(authztest.As("ann"), "carl", []string{"ops"}, false), authz.ReasonEscalation, `user "carl/ops,mesh-system:authenticated" would hold rules[0] of AccessRole "admin"`)

	// A weak role of that name, held by herself, is not hers to take away.
	p.Seed("type: AccessRole\nname: admin\nrules: [{mesh: demo, access: [CREATE]}]\n")
	require.NoError(t, p.May(authztest.As("ann"), bind))
	p.Seed(bind)
	_, err := p.Write(authztest.As("ann"), []store.Op{store.Delete(authztest.RoleAdmin)}, false)
	authztest.RequireDenied(t, err, authz.ReasonEscalation, `rules[0] of AccessRole "admin"`)
	_, err = p.Admit(authztest.As("ann"), authz.Change{Access: resource.AccessDelete, Old: rbac.Object{Key: authztest.RoleAdmin}})
	authztest.RequireDenied(t, err, authz.ReasonEscalation)

	p.Remove(authztest.RoleAdmin)
	require.NoError(t, d.Ensure(t.Context(), p.View, p.Log, p.Now))
	require.NoError(t, p.May(authztest.As("ann"), "type: Mesh\nname: hers\n"), "this is what all of it is kept from")
}

// Who writes a signing key can make tokens with it, so it takes holding what they
// give. What is no key does not come to stand in one's place.
func TestWritingASigningKeyIsAGrant(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(`
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
	secret := func(use token.Use) string {
		id := token.KeyID{Use: use, Serial: 7}
		key, err := token.GenerateSigningKey(id)
		require.NoError(t, err)
		text, err := key.PEM()
		require.NoError(t, err)
		return fmt.Sprintf("type: GlobalSecret\nname: %s\ndata: %s\n", id, base64.StdEncoding.EncodeToString(text))
	}
	mallory, paula := authztest.As("mallory"), authztest.As("paula")
	require.NoError(t, p.May(mallory, "type: GlobalSecret\nname: db\ndata: AA==\n"))
	require.NoError(t, p.May(mallory, "type: GlobalSecret\nname: jwt-signing-key-1\ndata: AA==\n"), "a key of an application")
	for _, use := range []token.Use{token.ForUser, token.ForDataplane, token.ForZone, token.ForServer} {
		authztest.RequireDenied(t, p.May(mallory, secret(use)), authz.ReasonEscalation, "can sign with it", string(use))
		requireForeign(t, p.May(authztest.Admin(), secret(use)))
		require.NoError(t, p.May(authztest.Admin(), secret(use), true))
	}
	authztest.RequireDenied(t, p.May(mallory, secret(token.ForUser), true), authz.ReasonEscalation, "GENERATE_USER_TOKEN", "only a member of mesh-system:admin")
	requireForeign(t, p.May(paula, secret(token.ForDataplane))) // she can issue such tokens anyway
	authztest.RequireDenied(t, p.May(paula, secret(token.ForZone)), authz.ReasonEscalation, "GENERATE_ZONE_CP_TOKEN")
	key, err := token.GenerateSigningKey(token.KeyID{Use: token.ForDataplane, Serial: 7})
	require.NoError(t, err)
	der, err := key.Public().PKIX()
	require.NoError(t, err)
	public := "type: SigningKey\nname: dataplane-token-signing-key-7\nuse: dataplane-token\nserial: 7\npublicKey: " + base64.StdEncoding.EncodeToString(der) + "\n"
	authztest.RequireDenied(t, p.May(mallory, public), authz.ReasonEscalation)
	requireForeign(t, p.May(paula, public), "SigningKey/dataplane-token-signing-key-7")
	requireForeign(t, p.May(paula, public, true))

	kept := secret(token.ForUser)
	p.Seed(kept)
	require.NoError(t, p.May(mallory, kept), "what is there already gives nothing new")
	_, err = p.WriteOwn(mallory, authztest.Ops(t, secret(token.ForUser)))
	require.NoError(t, err, "a key that no client has seen grants nothing")

	err = p.May(authztest.Admin(), "type: GlobalSecret\nname: user-token-signing-key-9\ndata: Z2FyYmFnZQ==\n", true)
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "GlobalSecret/user-token-signing-key-9 is the name of a signing key: reading user-token-signing-key-9: not a PEM file")
}

// requireForeign fails the test unless err refuses foreign trust and says all texts.
func requireForeign(t *testing.T, err error, contains ...string) {
	t.Helper()
	require.True(t, rpcerr.HasReason(err, authz.ReasonForeignTrust), "%v", err)
	for _, text := range contains {
		require.ErrorContains(t, err, text)
	}
}

// The rotation of the certificate authority is not deleted before it has finished.
func TestTheRotationIsNotDeletedInBetween(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	p.Seed("type: AccessRole\nname: cleaner\nrules: [{types: [GlobalSecret], access: [DELETE]}]\n---\n" +
		"type: AccessRoleBinding\nname: cleaner\nsubjects: [{type: User, name: ann}]\nroles: [cleaner]\n---\n" + authztest.RestrictedBinding)
	ann := authztest.As("ann")
	remove := func(ctx context.Context, force bool) error {
		_, err := p.Write(ctx, []store.Op{store.Delete(token.AuthorityKey)}, force)
		return err
	}
	ca, err := pki.NewCA(p.Now())
	require.NoError(t, err)
	r, err := pki.NewRotation(ca, p.Now())
	require.NoError(t, err)
	for range 2 {
		data, err := r.Encode()
		require.NoError(t, err)
		p.Seed("type: GlobalSecret\nname: certificate-authority\ndata: " + base64.StdEncoding.EncodeToString(data) + "\n")
		for _, force := range []bool{false, true} {
			err = remove(ann, force)
			require.True(t, rpcerr.HasReason(err, authz.ReasonRotation), "%s: %v", r.Phase, err)
			require.ErrorContains(t, err, "meridian cluster rotate-ca status")
		}
		require.True(t, rpcerr.HasReason(remove(authztest.Admin(), false), authz.ReasonRotation))
		require.NoError(t, remove(authztest.Admin(), true))
		r = r.Next()
	}
	require.Equal(t, pki.PhaseFinish, r.Phase)
	data, err := r.Encode()
	require.NoError(t, err)
	p.Seed("type: GlobalSecret\nname: certificate-authority\ndata: " + base64.StdEncoding.EncodeToString(data) + "\n")
	require.NoError(t, remove(ann, false), "no server needs it any more")
}

// What the servers know of those that were removed is not deleted by mistake, alone or
// among others.
func TestTheRegisterOfServersIsNotDeleted(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	p.Seed("type: AccessRole\nname: cleaner\nrules: [{types: [GlobalSecret], access: [DELETE]}]\n---\n" +
		"type: AccessRoleBinding\nname: cleaner\nsubjects: [{type: User, name: ann}]\nroles: [cleaner]\n---\n" + authztest.RestrictedBinding)
	other := resource.Key{Kind: resource.KindGlobalSecret, Name: "other"}
	remove := func(ctx context.Context, force bool, keys ...resource.Key) error {
		ops := make([]store.Op, len(keys))
		for i, key := range keys {
			ops[i] = store.Delete(key)
		}
		_, err := p.Write(ctx, ops, force)
		return err
	}
	ann := authztest.As("ann")
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(remove(ann, false, token.ServersKey)), "there is none")
	p.Seed("type: GlobalSecret\nname: cluster-servers\ndata: " + base64.StdEncoding.EncodeToString([]byte(`{"formatVersion": 1}`)) + "\n---\n" +
		"type: GlobalSecret\nname: other\ndata: AAAA\n")
	for _, force := range []bool{false, true} {
		for _, keys := range [][]resource.Key{{token.ServersKey}, {other, token.ServersKey}} {
			err := remove(ann, force, keys...)
			require.True(t, rpcerr.HasReason(err, authz.ReasonServers), "%v", err)
			require.ErrorContains(t, err, "a removed server and its certificate may be accepted again")
		}
	}
	require.True(t, rpcerr.HasReason(remove(authztest.Admin(), false, token.ServersKey), authz.ReasonServers))
	require.NoError(t, remove(authztest.Admin(), true, token.ServersKey))
	require.NoError(t, remove(ann, false, other))
}

// What one cluster trusts is not taken over by another through apply.
func TestForeignTrustIsRefused(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	record := "type: IssuedToken\nname: abc\nuse: user-token\nid: abc\nsubject: bob\nserial: 1\nissued: 2026-01-01T00:00:00Z\nexpires: 2027-01-01T00:00:00Z\n"
	revocation := func(id string) string {
		return fmt.Sprintf("type: TokenRevocation\nname: %s\nuse: user-token\nid: %s\n", id, id)
	}
	adminToken := "type: GlobalSecret\nname: admin-user-token\ndata: AA==\n"
	mesh := "type: Mesh\nname: harmless\n"
	for name, text := range map[string]string{
		"IssuedToken/abc": record, "TokenRevocation/abc": revocation("abc"), "GlobalSecret/admin-user-token": adminToken,
	} {
		err := p.May(authztest.Admin(), mesh+"---\n"+text)
		requireForeign(t, err, "did not make "+name+":", "meridian cluster snapshot restore", "--force")
		require.NoError(t, p.May(authztest.Admin(), text, true), name)
	}
	p.Seed(record)
	require.NoError(t, p.May(authztest.Admin(), record), "its own export")
	require.NoError(t, p.May(authztest.Admin(), revocation("abc")), "of a token that was issued here")
	requireForeign(t, p.May(authztest.Admin(), strings.Replace(revocation("abc"), "user-token", "zone-token", 1)))
	p.Seed(revocation("other"))
	require.NoError(t, p.May(authztest.Admin(), revocation("other")), "what is stored already")
	requireForeign(t, p.May(authztest.Admin(), strings.Replace(record, "subject: bob", "subject: eve", 1)))
}

// The admin token takes membership of the group that it gives.
func TestTheAdminTokenIsForAdmins(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	p.Seed("type: GlobalSecret\nname: admin-user-token\ndata: AA==\n---\ntype: GlobalSecret\nname: other\ndata: AA==\n")
	tokenOf, ok := p.View().Get(token.AdminTokenKey)
	require.True(t, ok)
	other, ok := p.View().Get(resource.Key{Kind: resource.KindGlobalSecret, Name: "other"})
	require.True(t, ok)
	for _, ctx := range []context.Context{authztest.Anonymous(), authztest.As("bob")} {
		require.NoError(t, p.Read(ctx, other), "the default binding lets everyone write it")
		authztest.RequireDenied(t, p.Read(ctx, tokenOf), authz.ReasonDenied, "mesh-system:admin")
	}
	require.NoError(t, p.Read(authztest.Admin(), tokenOf))
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
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	huge := bindingOf(5000)
	err := p.May(authztest.Admin(), huge, true)
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, "there would be 25000001 grants")
	document := authztest.Ops(t, huge)[0].Resource
	answer, err := access.New(p.Authorizer, p.Log.Read, turns.NewServer()).Decide(authztest.Admin(), &meridianv1.CanIRequest{
		Access: "CREATE", AsUser: "admin", AsGroups: []string{authn.AdminGroup},
		Resource: &meridianv1.Resource{Kind: string(document.Key().Kind), Name: document.Key().Name, Spec: document.Canonical()},
	})
	require.NoError(t, err)
	require.False(t, answer.GetAllowed())

	// Who has so many already can still take some away.
	p.Seed(bindingOf(510))
	require.NoError(t, p.May(authztest.Admin(), bindingOf(505)))
	require.Error(t, p.May(authztest.Admin(), bindingOf(515)))
}

// Of two administrators who each remove the other's binding, the second is decided
// again.
func TestTheLastAdminIsRaced(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed("type: AccessRoleBinding\nname: second\nsubjects: [{type: User, name: root}]\nroles: [admin]\n")
	second := resource.Key{Kind: resource.KindAccessRoleBinding, Name: "second"}
	first, err := p.Write(authztest.Admin(), []store.Op{store.Delete(authztest.BindingDefault)}, false)
	require.NoError(t, err)
	other, err := p.Write(authztest.Admin(), []store.Op{store.Delete(second)}, false)
	require.NoError(t, err)
	propose := func(permit authz.Permit, key resource.Key) error {
		_, err := p.Log.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Delete(key)}, AccessRevision: &permit.AccessRevision, Preconditions: permit.Preconditions})
		return err
	}
	require.NoError(t, propose(first, authztest.BindingDefault))
	var changed *store.AccessChangedError
	require.ErrorAs(t, propose(other, second), &changed)
	_, err = p.Write(authztest.As("root"), []store.Op{store.Delete(second)}, false)
	authztest.RequireDenied(t, err, authz.ReasonLastAdmin)
}

// A batch that takes away two bindings, neither of which is the last, is refused.
func TestTheLastAdminInABatch(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	const second = "type: AccessRoleBinding\nname: second\nsubjects: [{type: User, name: root}]\nroles: [admin]\n"
	p.Seed(second)
	keys := []store.Op{store.Delete(authztest.BindingDefault), store.Delete(resource.Key{Kind: resource.KindAccessRoleBinding, Name: "second"})}
	_, err := p.Write(authztest.Admin(), keys, false)
	authztest.RequireDenied(t, err, authz.ReasonLastAdmin)
	weaker := strings.ReplaceAll(authztest.RestrictedBinding+"---\n"+second, "[admin]", "[other]")
	authztest.RequireDenied(t, p.May(authztest.Admin(), weaker), authz.ReasonLastAdmin)
	require.NoError(t, p.May(authztest.Admin(), strings.Replace(weaker, "[other]", "[admin]", 1)))
	_, err = p.Admit(authztest.Admin(), authz.Change{Access: resource.AccessDelete, Old: rbac.Object{Key: authztest.RoleAdmin}})
	authztest.RequireDenied(t, err, authz.ReasonLastAdmin)
}

// §6.2: a binding to a role that does not exist is accepted with a
// warning.
func TestBindingToNothing(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	binding := "type: AccessRoleBinding\nname: x\nsubjects: [{type: User, name: ann}]\nroles: [nothing, admin]\n"
	permit, err := p.Write(authztest.Admin(), authztest.Ops(t, binding), false)
	require.NoError(t, err)
	require.Equal(t, []string{`AccessRoleBinding/x: there is no AccessRole "nothing": until there is, it grants nothing`}, permit.Warnings)
	permit, err = p.Write(authztest.Admin(), authztest.Ops(t, binding+"---\ntype: AccessRole\nname: nothing\nrules: [{access: [CREATE]}]\n"), false)
	require.NoError(t, err)
	require.Empty(t, permit.Warnings, "the role comes with it")

	p.Seed(binding)
	permit, err = p.Write(authztest.Admin(), authztest.Ops(t, "type: AccessRole\nname: nothing\nrules: [{access: [CREATE]}]\n"), false)
	require.NoError(t, err)
	require.Equal(t, []string{`AccessRole/nothing: it takes effect at once for the subjects of AccessRoleBinding/x`}, permit.Warnings)
}

// §6.2: what each token takes.
func TestTokens(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(`
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
	require.NoError(t, p.GenerateZoneToken(authztest.As("zoe"), token.ScopeControlPlane))
	authztest.RequireDenied(t, p.GenerateZoneToken(authztest.As("zoe"), token.ScopeIngress), authz.ReasonDenied, "GENERATE_ZONE_TOKEN")
	authztest.RequireDenied(t, p.GenerateZoneToken(authztest.As("zoe"), token.ScopeControlPlane, token.ScopeEgress), authz.ReasonDenied)
	require.NoError(t, p.GenerateZoneToken(authztest.As("ed"), token.ScopeIngress, token.ScopeEgress))
	authztest.RequireDenied(t, p.GenerateZoneToken(authztest.As("ed"), token.ScopeControlPlane), authz.ReasonDenied, "missing: GENERATE_ZONE_CP_TOKEN", "it grants GENERATE_ZONE_TOKEN, not GENERATE_ZONE_CP_TOKEN")
	require.NoError(t, p.GenerateDataplaneToken(authztest.As("ed"), rbac.Token{Mesh: "demo"}))
	authztest.RequireDenied(t, p.GenerateDataplaneToken(authztest.As("ed"), rbac.Token{Mesh: "default"}), authz.ReasonDenied, `in mesh "default"`)
	require.NoError(t, p.RequireAdmin(authztest.Admin()))
	authztest.RequireDenied(t, p.RequireAdmin(authztest.As("ed")), authz.ReasonDenied, "membership of group mesh-system:admin")
}

// Rules are compiled once for as long as they stay as they are.
func TestRulesAreCompiledOnce(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{})
	first := p.Rules(p.View())
	p.Seed(authztest.Permission("x"))
	require.Same(t, first, p.Rules(p.View()), "another resource changed")
	p.Seed(authztest.RestrictedBinding)
	require.NotSame(t, first, p.Rules(p.View()))
}

// Both packages know the group by which rights are insisted on.
func TestMethodsByTokenType(t *testing.T) {
	allow := authz.AuthorizeMethods(map[string]token.Use{"zones.Sync": token.ForZone, "servers.Join": token.ForServer})
	user, zone := authn.UserPrincipal("bob", nil), authn.Principal{Source: authn.FromToken, Token: &token.Token{Key: token.KeyID{Use: token.ForZone}, Zone: "east"}}
	server := authn.Principal{Source: authn.FromToken, Token: &token.Token{Key: token.KeyID{Use: token.ForServer}}}
	other := authn.Principal{Source: authn.FromToken, Token: &token.Token{Key: token.KeyID{Use: "dataplane-token"}}}
	for _, p := range []authn.Principal{user, authn.Anonymous(), authn.LoopbackAdmin()} {
		require.NoError(t, allow(p, "/admin.Admin/Apply"))
		require.Error(t, allow(p, "/zones.Sync/Stream"))
	}
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(allow(authn.Anonymous(), "/zones.Sync/Stream")))
	require.NoError(t, allow(zone, "/zones.Sync/Stream"))
	require.True(t, rpcerr.HasReason(allow(zone, "/admin.Admin/Get"), authn.ReasonNotForZones))
	require.True(t, rpcerr.HasReason(allow(other, "/admin.Admin/Get"), authz.ReasonNotForUsers))
	require.True(t, rpcerr.HasReason(allow(other, "/zones.Sync/Stream"), authn.ReasonZoneOnly))

	require.NoError(t, allow(server, "/servers.Join/Join"))
	for _, p := range []authn.Principal{user, zone, other, authn.Anonymous(), authn.LoopbackAdmin()} {
		require.Error(t, allow(p, "/servers.Join/Join"))
	}
	require.True(t, rpcerr.HasReason(allow(zone, "/servers.Join/Join"), authn.ReasonServerOnly))
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(allow(authn.LoopbackAdmin(), "/servers.Join/Join")))
	require.True(t, rpcerr.HasReason(allow(server, "/zones.Sync/Stream"), authn.ReasonZoneOnly))
	err := allow(server, "/admin.Admin/Get")
	require.True(t, rpcerr.HasReason(err, authn.ReasonNotForServers))
	require.EqualError(t, err, "Access Denied: admin.Admin takes a user token, not a server token")
}

// The rules of a restored state decide as soon as it is there, also when they
// are at a revision that other rules were at before.
func TestRestoredRulesDecide(t *testing.T) {
	p := authztest.New(t, nil)
	grant := func(user string) {
		p.Seed("type: AccessRole\nname: r\nrules: [{access: [CREATE]}]\n---\ntype: AccessRoleBinding\nname: b\nsubjects: [{type: User, name: " + user + "}]\nroles: [r]\n")
	}
	may := func(user string) bool {
		_, err := p.Write(authztest.As(user), authztest.Ops(t, "type: Mesh\nname: new\n"), false)
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
