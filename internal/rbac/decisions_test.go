package rbac

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// §6.1, §6.2, §6.3, §6.4, §6.5 and §6.11, row by row: every example role and what its
// holder may and may not do, with the reason.
func TestDecisions(t *testing.T) {
	set := Compile(exampleRoles(t))
	text, err := os.ReadFile("testdata/decisions.txt")
	require.NoError(t, err)
	rows := 0
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rows++
		cells := strings.Split(line, " | ")
		require.Len(t, cells, 5, "line %d", i+1)
		rule, user, access, what, want := cells[0], cells[1], cells[2], cells[3], cells[4]
		t.Run(fmt.Sprintf("line %d: §%s %s %s", i+1, rule, user, access), func(t *testing.T) {
			request := requestOf(t, user, access, what)
			d := set.Check(request)
			old, next := everyForm(t, request.Old), everyForm(t, request.New)
			for i := range max(len(old), len(next)) {
				r := request
				r.Old, r.New = old[min(i, len(old)-1)], next[min(i, len(next)-1)]
				require.Equal(t, d, set.Check(r), "form %d", i)
			}
			if want == "yes" {
				require.True(t, d.Allowed, "%v", d.Denial)
				require.Nil(t, d.Denial)
				require.NotNil(t, d.By)
				return
			}
			require.False(t, d.Allowed, "%v", d.By)
			require.Nil(t, d.By)
			require.Contains(t, d.Denial.Missing()+"\n"+d.Denial.Rule(), want)
			require.Contains(t, d.Denial.Missing(), access)
		})
	}
	require.GreaterOrEqual(t, rows, 160)
}

// A group gives its members what it was given, next to what they hold
// themselves (§6.1).
func TestGroups(t *testing.T) {
	w := decode(t, `
type: AccessRole
name: writers
rules: [{types: [TrafficPermission], access: [CREATE]}]
---
type: AccessRole
name: deleters
rules: [{types: [TrafficPermission], access: [DELETE]}]
---
type: AccessRoleBinding
name: team
subjects: [{type: Group, name: team-a}, {type: Group, name: "mesh-system:unauthenticated"}]
roles: [writers]
---
type: AccessRoleBinding
name: user
subjects: [{type: User, name: team-a}]
roles: [deleters, not-there]
`)
	set := Compile(w)
	may := func(access string, subject Subject) bool {
		r := requestOf(t, "", access, "TrafficPermission default/a s=* d=*")
		r.Subject = subject
		return set.Check(r).Allowed
	}
	require.True(t, may("CREATE", Subject{Name: "bob", Groups: []string{"x", "team-a"}}))
	require.True(t, may("CREATE", Subject{Name: "mesh-system:anonymous", Groups: []string{"mesh-system:unauthenticated"}}))
	require.False(t, may("CREATE", Subject{Name: "team-a"}), "a user is not the group of that name")
	require.True(t, may("DELETE", Subject{Name: "team-a"}), "a role that does not exist takes nothing away")
	require.False(t, may("DELETE", Subject{Name: "bob", Groups: []string{"team-a"}}))
	require.False(t, may("UPDATE", Subject{}))
}

// A decision says which rule made it, and by which binding.
func TestADecisionNamesItsRules(t *testing.T) {
	set := Compile(exampleRoles(t))
	d := set.Check(requestOf(t, "mover", "UPDATE", "TrafficPermission default/a s=* d=web => TrafficPermission default/a s=* d=backend"))
	require.Equal(t, `rules[1] of AccessRole "mover", through AccessRoleBinding "mover" to user "mover"`, d.By.String())
	require.Equal(t, 0, d.ByOld.Index)

	d = set.Check(requestOf(t, "walk-through", "UPDATE", "TrafficPermission default/a s=web d=backend => TrafficPermission default/a s=web d=other"))
	require.Equal(t, `UPDATE on TrafficPermission "a" in mesh "default"`, d.Denial.Missing())
	require.Equal(t, `rules[0] of AccessRole "walk-through", through AccessRoleBinding "walk-through" to user "walk-through": `+
		`when[0].destinations wants kuma.io/service: backend, entry 1 has other`, d.Denial.Rule())
}

// Without content, a rule with conditions does not grant, and says why.
func TestIdentityAlone(t *testing.T) {
	set := Compile(exampleRoles(t))
	o := object(t, "TrafficPermission default/a s=web d=backend")
	o = Object{Key: o.Key}
	d := set.Check(Request{Subject: Subject{Name: "walk-through"}, Access: "CREATE", New: o})
	require.False(t, d.Allowed)
	require.Contains(t, d.Denial.Rule(), "destinations cannot be judged without the content")
	require.True(t, set.Check(Request{Subject: Subject{Name: "admin"}, Access: "CREATE", New: o}).Allowed)
	require.False(t, set.Check(Request{Subject: Subject{Name: "admin"}, Access: "CREATE"}).Allowed, "there is nothing to create")
}

// What rules without conditions decide takes no decoding: of a million policies, few stay
// decoded.
func TestContentIsDecodedForConditionsOnly(t *testing.T) {
	set := Compile(exampleRoles(t))
	stored := document(t, "TrafficPermission default/a s=web d=backend")
	decoded := 0
	request := Request{Access: resource.AccessDelete, Old: ObjectOf(resource.Deferred(stored.Meta(), stored.Canonical(), func() resource.Spec {
		decoded++
		return stored.Spec()
	}))}
	request.Subject.Name = "admin"
	require.True(t, set.Check(request).Allowed)
	request.Subject.Name = "ann"
	require.False(t, set.Check(request).Allowed)
	require.Zero(t, decoded)
	request.Subject.Name = "walk-through"
	require.True(t, set.Check(request).Allowed, set.Check(request).Denial)
	require.Equal(t, 1, decoded)
}
