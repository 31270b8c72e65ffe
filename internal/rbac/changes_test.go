package rbac

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// rolesOf are access rules by role, bound to a group of the same name, and to others.
func rolesOf(t *testing.T, roles map[string]string, bound map[string]string) policy.View {
	w := policytest.NewWorld()
	for name, rules := range roles {
		w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindAccessRole, Name: name}}, `{"rules": `+rules+`}`)
	}
	for user, role := range bound {
		w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindAccessRoleBinding, Name: user}},
			fmt.Sprintf(`{"subjects": [{"type": "User", "name": %q}], "roles": [%q]}`, user, role))
	}
	return w.View()
}

// What is lost and gained is said for each access, whatever the rules look like that
// grant it.
func TestChangesOfRights(t *testing.T) {
	const wide, narrow = `[{"mesh": "demo", "access": ["CREATE", "UPDATE"]}]`, `[{"mesh": "demo", "types": ["Timeout"], "access": ["CREATE", "UPDATE"]}]`
	both := map[string]string{"ann": "r"}
	for name, tt := range map[string]struct {
		before, after map[string]string
		bound, later  map[string]string
		want          []string
	}{
		"nothing":        {map[string]string{"r": wide}, map[string]string{"r": wide}, both, both, nil},
		"split rules":    {map[string]string{"r": wide}, map[string]string{"r": `[{"mesh": "demo", "access": ["UPDATE"]}, {"mesh": "demo", "access": ["CREATE"]}]`}, both, both, nil},
		"narrowed":       {map[string]string{"r": wide}, map[string]string{"r": narrow}, both, both, []string{"ann false CREATE, UPDATE on everything in a mesh in mesh demo"}},
		"widened":        {map[string]string{"r": narrow}, map[string]string{"r": wide}, both, both, []string{"ann true CREATE, UPDATE on everything in a mesh in mesh demo"}},
		"one access":     {map[string]string{"r": narrow}, map[string]string{"r": `[{"mesh": "demo", "types": ["Timeout"], "access": ["UPDATE"]}]`}, both, both, []string{"ann false CREATE on Timeout in mesh demo"}},
		"bound":          {map[string]string{"r": narrow}, map[string]string{"r": narrow}, both, map[string]string{"ann": "r", "bob": "r"}, []string{"bob true CREATE, UPDATE on Timeout in mesh demo"}},
		"tokens as well": {map[string]string{"r": narrow}, map[string]string{"r": `[{"mesh": "demo", "access": ["GENERATE_DATAPLANE_TOKEN"]}]`}, both, both, []string{"ann false CREATE, UPDATE on Timeout in mesh demo", "ann true GENERATE_DATAPLANE_TOKEN in mesh demo"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range Compile(rolesOf(t, tt.before, tt.bound)).Changes(Compile(rolesOf(t, tt.after, tt.later))) {
				got = append(got, fmt.Sprintf("%s %t %s", c.Subject.Name, c.Gained, c.String()))
			}
			require.Equal(t, tt.want, got)
		})
	}
}
