package rbac

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// What is refused before its content is decoded would be refused with every
// content, and nothing else is: Could answers as rules without their conditions
// would. With less known it never refuses more.
func TestCouldEqualsRulesWithoutConditions(t *testing.T) {
	refused := 0
	rapid.Check(t, func(t *rapid.T) {
		d := drawWorld(t, 8)
		set := Compile(d.view)
		plain := d.naive
		plain.roles = maps.Clone(d.naive.roles)
		for name, role := range plain.roles {
			role.Rules = slices.Clone(role.Rules)
			for i := range role.Rules {
				role.Rules[i].When = nil
			}
			plain.roles[name] = role
		}
		for r := range d.requests {
			key := r.New.Key
			if r.Access == resource.AccessDelete {
				key = r.Old.Key
			}
			var could bool
			switch {
			case OnResources(r.Access):
				could = set.Could(r.Subject, r.Access, Known{Key: key})
			case r.Access == resource.AccessGenerateDataplaneToken:
				could = set.Could(r.Subject, r.Access, Known{Key: resource.Key{Mesh: r.Token.Mesh}})
			default:
				could = set.Could(r.Subject, r.Access, Known{})
			}
			if set.Check(r).Allowed {
				require.True(t, could, "%+v is granted", r)
			}
			if r.Access != resource.AccessUpdate { // whose two contents may have two keys here
				require.Equal(t, plain.allowed(r), could, "%+v", r)
			}
			if could {
				less := []Known{{}}
				if OnResources(r.Access) {
					nameless := key
					nameless.Name = ""
					less = append(less, Known{Key: key, AnyMesh: true}, Known{Key: nameless}, Known{Key: nameless, AnyMesh: true})
				}
				for _, known := range less {
					require.True(t, set.Could(r.Subject, r.Access, known), "%+v with only %+v known", r, known)
				}
				continue
			}
			refused++
			if OnResources(r.Access) {
				denial := set.Refusal(r.Subject, r.Access, Known{Key: key})
				require.Equal(t, key, denial.Object)
				if denial.Nearest != nil {
					require.NotEmpty(t, denial.Because)
				}
			}
		}
	})
	require.Positive(t, refused)
}
