package rbac

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// oneRule compiles the rule of a role written in one line.
func oneRule(t testing.TB, text string) *Rule {
	t.Helper()
	w := decode(t, "type: AccessRole\nname: r\nrules: ["+text+"]\n")
	return compileRole("r", w[0].Spec().(*resource.AccessRole))[0]
}

func TestWithin(t *testing.T) {
	const all = "{access: [CREATE, UPDATE, DELETE, GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}"
	for _, tt := range []struct {
		name, inner, outer string
		want               bool
	}{
		{"itself", all, all, true},
		{"fewer accesses", "{access: [CREATE]}", all, true},
		{"more accesses", "{access: [CREATE, DELETE]}", "{access: [CREATE]}", false},
		{"a type", "{types: [Mesh], access: [CREATE]}", "{access: [CREATE]}", true},
		{"every type", "{access: [CREATE]}", "{types: [Mesh], access: [CREATE]}", false},
		{"another type", "{types: [Mesh, Zone], access: [CREATE]}", "{types: [Mesh], access: [CREATE]}", false},
		{"two spellings", "{types: [UpstreamTimeout], access: [CREATE]}", "{types: [MeshUpstreamTimeout], access: [CREATE]}", true},
		{"a name", "{names: [a], access: [CREATE]}", "{names: [a, b], access: [CREATE]}", true},
		{"every name", "{access: [CREATE]}", "{names: [a], access: [CREATE]}", false},
		{"a mesh", "{mesh: demo, access: [CREATE]}", "{mesh: '*', access: [CREATE]}", true},
		{"another mesh", "{mesh: demo, access: [CREATE]}", "{mesh: default, access: [CREATE]}", false},
		{"any mesh", "{mesh: '*', access: [CREATE]}", "{mesh: default, access: [CREATE]}", false},
		{"no mesh is more than any", "{access: [CREATE]}", "{mesh: '*', access: [CREATE]}", false},
		{"but not of kinds in a mesh", "{types: [Retry], access: [CREATE]}", "{mesh: '*', access: [CREATE]}", true},
		{"a mesh takes kinds out", "{types: [Retry, Mesh], mesh: demo, access: [CREATE]}", "{types: [Retry], access: [CREATE]}", true},
		{"a rule that covers nothing", "{types: [Mesh], mesh: demo, access: [CREATE]}", "{types: [Retry], access: [CREATE]}", true},
		{"a mesh takes tokens out", "{mesh: demo, access: [GENERATE_USER_TOKEN, CREATE]}", "{access: [CREATE]}", true},
		{"tokens of a mesh", "{mesh: demo, access: [GENERATE_DATAPLANE_TOKEN]}", "{mesh: '*', access: [GENERATE_DATAPLANE_TOKEN]}", true},
		{"tokens of every mesh", "{access: [GENERATE_DATAPLANE_TOKEN]}", "{mesh: demo, access: [GENERATE_DATAPLANE_TOKEN]}", false},
		{"types do not restrict tokens", "{access: [GENERATE_USER_TOKEN]}", "{types: [Mesh], access: [GENERATE_USER_TOKEN]}", true},
		{
			"a condition", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", "{access: [CREATE]}", true,
		},
		{
			"no condition", "{access: [CREATE]}", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", false,
		},
		{
			"more tags", "{access: [CREATE], when: [{sources: {match: {a: b, c: d}}}]}", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", true,
		},
		{
			"fewer tags", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", "{access: [CREATE], when: [{sources: {match: {a: b, c: d}}}]}", false,
		},
		{
			"a value of any", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", "{access: [CREATE], when: [{sources: {match: {a: '*'}}}]}", true,
		},
		{
			"any of a value", "{access: [CREATE], when: [{sources: {match: {a: '*'}}}]}", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", false,
		},
		{
			"another section", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", "{access: [CREATE], when: [{destinations: {match: {a: b}}}]}", false,
		},
		{
			"more qualifiers", "{access: [CREATE], when: [{sources: {match: {a: b}}, destinations: {match: {a: b}}}]}", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", true,
		},
		{
			"one of several", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", "{access: [CREATE], when: [{sources: {match: {x: y}}}, {sources: {match: {a: b}}}]}", true,
		},
		{
			"several of one", "{access: [CREATE], when: [{sources: {match: {x: y}}}, {sources: {match: {a: b}}}]}", "{access: [CREATE], when: [{sources: {match: {a: b}}}]}", false,
		},
		{
			"targets", "{access: [CREATE], when: [{targetRef: {kind: ServiceSubset, name: web, tags: {v: x}}}]}", "{access: [CREATE], when: [{targetRef: {kind: Service, name: web}}]}", true,
		},
		{
			"wider targets", "{access: [CREATE], when: [{targetRef: {kind: Mesh}}]}", "{access: [CREATE], when: [{targetRef: {kind: Service, name: web}}]}", false,
		},
		{
			"to a service", "{access: [CREATE], when: [{to: {targetRef: {kind: Service, name: web}}}]}", "{access: [CREATE], when: [{to: {targetRef: {kind: Mesh}}}]}", true,
		},
		{
			"to everything", "{access: [CREATE], when: [{to: {targetRef: {kind: Mesh}}}]}", "{access: [CREATE], when: [{to: {targetRef: {kind: Service, name: web}}}]}", false,
		},
		{
			"from everything", "{access: [CREATE], when: [{from: {targetRef: {kind: Mesh}}}]}", "{access: [CREATE], when: [{from: {targetRef: {kind: Service, name: web}}}]}", false,
		},
		{
			"to and from", "{access: [CREATE], when: [{to: {targetRef: {kind: Service, name: web}}}]}", "{access: [CREATE], when: [{from: {targetRef: {kind: Mesh}}}]}", false,
		},
		{
			"token tags", "{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {tags: [{name: a, value: b}, {name: c, value: d}]}}]}",
			"{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {tags: [{name: a, value: b}]}}]}", true,
		},
		{
			"token names", "{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {names: [web-1, 'web-2*']}}]}",
			"{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {names: ['web-*']}}]}", true,
		},
		{
			"more token names", "{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {names: ['web-*', db]}}]}",
			"{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {names: ['web-*']}}]}", false,
		},
		{
			"any token name", "{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {tags: [{name: a, value: b}]}}]}",
			"{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {names: ['web-*']}}]}", false,
		},
		{
			"fewer token tags", "{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {tags: [{name: a, value: b}]}}]}",
			"{access: [GENERATE_DATAPLANE_TOKEN], when: [{dpToken: {tags: [{name: a, value: c}]}}]}", false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, oneRule(t, tt.inner).Within(oneRule(t, tt.outer)))
		})
	}
}

const guardWorld = `
type: AccessRole
name: admin
rules: [{access: [CREATE, UPDATE, DELETE, GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}]
---
type: AccessRole
name: demo
rules: [{mesh: demo, access: [CREATE, UPDATE]}, {types: [AccessRole, AccessRoleBinding], access: [CREATE, UPDATE, DELETE]}]
---
type: AccessRoleBinding
name: admins
subjects: [{type: Group, name: ops}]
roles: [admin]
---
type: AccessRoleBinding
name: demos
subjects: [{type: User, name: ann}]
roles: [demo]
---
`

// Only what is granted anew counts, and it must be held within one rule.
func TestGrantedAndExcess(t *testing.T) {
	now := Compile(decode(t, guardWorld))
	ann, ops := Subject{Name: "ann"}, Subject{Name: "olga", Groups: []string{"ops"}}
	for _, tt := range []struct {
		name, more string
		granted    int
		ann        bool // may do it
	}{
		{"nothing", "", 0, true},
		{"a role she holds", "type: AccessRole\nname: x\nrules: [{mesh: demo, access: [CREATE]}]", 1, true},
		{"a role of two rules at once", "type: AccessRole\nname: x\nrules: [{mesh: demo, access: [CREATE, DELETE]}]", 1, false},
		{"another mesh", "type: AccessRole\nname: x\nrules: [{mesh: other, access: [CREATE]}]", 1, false},
		{"her role to another", "type: AccessRoleBinding\nname: x\nsubjects: [{type: User, name: bob}]\nroles: [demo]", 2, true},
		{"admin to herself", "type: AccessRoleBinding\nname: x\nsubjects: [{type: User, name: ann}]\nroles: [admin]", 1, false},
		{"admin to those who have it", "type: AccessRoleBinding\nname: x\nsubjects: [{type: Group, name: ops}]\nroles: [admin]", 0, true},
		{"a role that is not there", "type: AccessRoleBinding\nname: x\nsubjects: [{type: User, name: ann}]\nroles: [later]", 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := Compile(decode(t, guardWorld+tt.more))
			granted := now.Granted(next)
			require.Len(t, granted, tt.granted)
			require.Equal(t, tt.ann, now.Excess(ann, granted) == nil)
			require.Nil(t, now.Excess(ops, granted), "who holds everything may grant everything")
			require.True(t, next.HasAdmin())
		})
	}
	require.Empty(t, now.Granted(Compile(world(nil))), "taking rights away grants nothing")
	require.False(t, Compile(world(nil)).HasAdmin())
}

// The role admin comes back at the next start of a control plane
// (§6.5), with every access, to the subjects bound to it by then.
func TestTheRoleAdminComesBack(t *testing.T) {
	const without = `
type: AccessRole
name: delegate
rules: [{mesh: demo, access: [CREATE]}, {types: [AccessRole, AccessRoleBinding], access: [CREATE, UPDATE, DELETE]}, {access: [GENERATE_USER_TOKEN]}]
---
type: AccessRole
name: everything
rules: [{access: [CREATE, UPDATE, DELETE, GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}]
---
type: AccessRoleBinding
name: roots
subjects: [{type: User, name: root}]
roles: [everything]
---
type: AccessRoleBinding
name: anns
subjects: [{type: User, name: ann}]
roles: [delegate]
---
`
	const weak = "type: AccessRole\nname: admin\nrules: [{mesh: demo, access: [CREATE]}]\n---\n"
	const full = "type: AccessRole\nname: admin\nrules: [{access: [CREATE, UPDATE, DELETE, GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}]\n---\n"
	const annIsAdmin = "type: AccessRoleBinding\nname: sneaky\nsubjects: [{type: User, name: ann}]\nroles: [admin]\n---\n"
	const opsAreAdmin = "type: AccessRoleBinding\nname: ops\nsubjects: [{type: Group, name: ops}]\nroles: [admin]\n---\n"
	ann, root := Subject{Name: "ann", Groups: []string{"mesh-system:authenticated"}}, Subject{Name: "root"}
	guard := func(who Subject, now, next string) *Overreach {
		before, after := decode(t, without+now), decode(t, without+next)
		var changes []Change
		for _, r := range before {
			changes = append(changes, Change{Key: r.Key()})
		}
		for _, r := range after {
			changes = append(changes, Change{r.Key(), r})
		}
		return Compile(before).Guard(who, before, changes...)
	}
	require.NotNil(t, guard(ann, "", annIsAdmin).Excess, "bound while there is no such role")
	require.Nil(t, guard(root, "", annIsAdmin), "who holds everything may give it")
	require.NotNil(t, guard(ann, opsAreAdmin, opsAreAdmin+annIsAdmin).Excess)
	require.Nil(t, guard(ann, weak, weak+annIsAdmin), "the role grants no more than she holds")
	require.NotNil(t, guard(ann, weak+annIsAdmin, annIsAdmin).Excess, "and is taken away, to come back whole")
	require.Nil(t, guard(ann, weak, ""), "no subject is bound to it")
	require.Nil(t, guard(root, weak+annIsAdmin, annIsAdmin))
	require.NotNil(t, guard(ann, annIsAdmin, full+annIsAdmin).Excess, "nor does she bring it back herself")
	over := guard(root, full+opsAreAdmin, opsAreAdmin)
	require.NotNil(t, over)
	require.Nil(t, over.Excess, "it grants nothing new; it is the last one")
	require.Nil(t, guard(ann, opsAreAdmin, opsAreAdmin+"type: AccessRole\nname: x\nrules: [{mesh: demo, access: [CREATE]}]\n"), "other changes are allowed")

	set := Compile(decode(t, without+opsAreAdmin))
	require.Nil(t, set.Excess(ann, set.Entitled(Subject{Name: "carl"})))
	require.NotNil(t, set.Excess(ann, set.Entitled(Subject{Name: "carl", Groups: []string{"ops"}})), "a token for who will be admin")
	require.Nil(t, set.Excess(root, set.Entitled(Subject{Name: "carl", Groups: []string{"ops"}})))
	require.False(t, set.Check(Request{Subject: Subject{Name: "carl", Groups: []string{"ops"}}, Access: "GENERATE_USER_TOKEN"}).Allowed, "meanwhile nothing is granted")
}

func TestHasAdmin(t *testing.T) {
	admin := "type: AccessRole\nname: admin\nrules: [{access: [CREATE, UPDATE, DELETE, GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}]\n---\n"
	binding := "type: AccessRoleBinding\nname: b\nsubjects: [{type: Group, name: ops}]\nroles: [admin]\n"
	require.True(t, Compile(decode(t, admin+binding)).HasAdmin())
	require.False(t, Compile(decode(t, admin)).HasAdmin(), "no subject has it")
	require.False(t, Compile(decode(t, binding)).HasAdmin(), "there is no such role")
	halves := "type: AccessRole\nname: admin\nrules: [{access: [CREATE, UPDATE, DELETE]}, {access: [GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}]\n---\n"
	require.True(t, Compile(decode(t, halves+binding)).HasAdmin(), "its rules together grant everything")
	require.False(t, Compile(decode(t, strings.Replace(halves, "{access: [CREATE,", "{mesh: demo, access: [CREATE,", 1)+binding)).HasAdmin())
	weak := "type: AccessRole\nname: admin\nrules: [{access: [CREATE]}]\n---\n"
	require.False(t, Compile(decode(t, weak+binding)).HasAdmin(), "it is not what it was")
}

func TestWhoCan(t *testing.T) {
	set := Compile(append(exampleRoles(t), decode(t, `
type: AccessRoleBinding
name: ops
subjects: [{type: Group, name: ops}, {type: User, name: backend-owner}]
roles: [admin]
`)...))
	names := func(access resource.Access, key resource.Key) []string {
		var out []string
		for _, h := range set.WhoCan(access, key) {
			name := string(h.Subject.Type) + " " + h.Subject.Name
			if h.Grant.Conditional() {
				name += " (conditional)"
			}
			out = append(out, name)
		}
		return out
	}
	require.Equal(t, []string{"Group ops", "User admin", "User backend-owner"}, names("GENERATE_ZONE_TOKEN", resource.Key{}))
	require.Equal(t, []string{"Group ops", "User admin", "User backend-owner", "User demo-mesh-operator", "User gateway-owner (conditional)", "User observability-operator", "User several", "User web-proxies (conditional)"},
		names("UPDATE", resource.Key{Kind: "Mesh", Name: "demo"}))
	require.NotContains(t, names("UPDATE", resource.Key{Kind: "Mesh"}), "User demo-mesh-operator", "only by name")
	require.Contains(t, names("GENERATE_DATAPLANE_TOKEN", resource.Key{Mesh: "default"}), "User role-1 (conditional)")

	require.Equal(t, []RoleHolder{
		{"admin", resource.Subject{Type: "User", Name: "admin"}},
		{"ops", resource.Subject{Type: "Group", Name: "ops"}},
		{"ops", resource.Subject{Type: "User", Name: "backend-owner"}},
	}, set.Holders("admin"))
	require.Equal(t, []HeldRole{
		{Role: "backend-owner", Binding: "backend-owner", Subject: resource.Subject{Type: "User", Name: "backend-owner"}},
		{Role: "admin", Binding: "ops", Subject: resource.Subject{Type: "User", Name: "backend-owner"}},
	}, set.RolesOf(Subject{Name: "backend-owner"}))
}

func TestAsk(t *testing.T) {
	set := Compile(exampleRoles(t))
	good := document(t, "TrafficPermission default/a s=web d=backend")
	bad := document(t, "TrafficPermission default/a s=web d=other")
	ask := func(user string, q Question) bool {
		answer := set.Ask(Subject{Name: user}, q)
		require.NotEmpty(t, answer.Reasons)
		return answer.Allowed
	}
	stored := func(r *resource.Resource) func(resource.Key) (*resource.Resource, bool) {
		return func(k resource.Key) (*resource.Resource, bool) { return r, k == r.Key() }
	}
	require.True(t, ask("walk-through", Question{Access: "UPDATE", New: good}), "what is stored nowhere is judged by the new content")
	require.False(t, ask("walk-through", Question{Access: "UPDATE", New: good, Stored: stored(bad)}))
	require.False(t, ask("walk-through", Question{Access: "UPDATE", New: good, Old: bad}))
	require.True(t, ask("walk-through", Question{Access: "UPDATE", New: good, Old: good, Stored: stored(bad)}))
	require.False(t, ask("walk-through", Question{Access: "DELETE", New: good, Stored: stored(bad)}), "what is deleted is what is stored")
	require.True(t, ask("walk-through", Question{Access: "DELETE", Key: good.Key(), Stored: stored(good)}))
	require.False(t, ask("walk-through", Question{Access: "CREATE", Key: good.Key()}), "it depends on the content")
	require.True(t, ask("demo-mesh-operator", Question{Access: "CREATE", Key: resource.Key{Kind: "Retry", Mesh: "demo"}}))
	require.False(t, ask("demo-mesh-operator", Question{Access: "CREATE", Key: resource.Key{Kind: "Mesh"}}), "not whatever the name")
	require.True(t, ask("token-issuer", Question{Access: "GENERATE_USER_TOKEN"}))

	// A role is answered as its writing would be.
	wide := decode(t, "type: AccessRole\nname: x\nrules: [{access: [DELETE]}]\n")[0]
	require.True(t, ask("creator", Question{Access: "CREATE", New: wide}), "only who knows the rules can tell")
	require.False(t, ask("creator", Question{Access: "CREATE", New: wide, Rules: exampleRoles(t)}))
	require.True(t, ask("admin", Question{Access: "CREATE", New: wide, Rules: exampleRoles(t)}))
	require.False(t, ask("admin", Question{Access: "DELETE", Key: resource.Key{Kind: "AccessRole", Name: "admin"}, Rules: exampleRoles(t)}))
	require.True(t, ask("admin", Question{Access: "DELETE", Key: resource.Key{Kind: "AccessRole", Name: "creator"}, Rules: exampleRoles(t)}))
}
