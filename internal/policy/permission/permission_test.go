package permission

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

func key(kind resource.Kind, name string) resource.Key {
	return resource.Key{Kind: kind, Mesh: "m", Name: name}
}

// The list decides as the fold of the steps that match a caller does, whatever the
// operations are.
func TestTheListDecidesAsTheFoldDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	tag := func() (string, string) { return []string{"a", "b", "c"}[r.IntN(3)], []string{"1", "2"}[r.IntN(2)] }
	allowed, denied, ended := 0, 0, 0
	for range 10000 {
		rule := policy.Rule{Target: policy.Target{Kind: resource.KindMeshTrafficPermission}, PerCaller: true}
		for i := range r.IntN(6) {
			s := policy.Step{Op: policy.Op(r.IntN(4)), Origin: key(resource.KindMeshTrafficPermission, string(rune('p'+i))), Match: resource.TagSelector{}}
			for range r.IntN(3) {
				name, value := tag()
				if s.Match[name] = value; r.IntN(4) == 0 {
					s.Match[name] = resource.AnyValue
				}
			}
			if action := []string{"ALLOW", "DENY", "Deny", "AUDIT", ""}[r.IntN(5)]; action != "" {
				s.Conf = policy.Tree{"action": action}
			}
			rule.Steps = append(rule.Steps, s)
		}
		mtls := r.IntN(2) == 0
		list := Of(mtls, []*policy.Rule{&rule})
		for range 4 {
			var caller []resource.Tags
			for range r.IntN(3) {
				tags := resource.Tags{}
				for range r.IntN(4) {
					name, value := tag()
					tags[name] = value
				}
				caller = append(caller, tags)
			}
			got, by := list.Decide(caller)
			fold := rule.ForCaller(caller).Fold()
			action, decided := fold.Conf()["action"].(string)
			if !decided {
				require.Equal(t, !mtls, got, "%v %v", rule.Steps, caller)
				require.Empty(t, by)
				ended++
				continue
			}
			require.Equal(t, action == "ALLOW", got, "%v %v %v", rule.Steps, caller, list)
			require.Len(t, by, 1)
			if from := fold.Fields()["/action"]; from != by[0] {
				// Left out, because an earlier entry decides about the same callers.
				t.Fatalf("%v %v: on the word of %s, not %s", rule.Steps, caller, by[0].Name, from.Name)
			}
			if got {
				allowed++
			} else {
				denied++
			}
		}
	}
	for _, n := range []int{allowed, denied, ended} {
		require.Greater(t, n, 1000)
	}
}

func TestPermissionsOfTheOlderGeneration(t *testing.T) {
	rule := &policy.Rule{Target: policy.Target{Kind: resource.KindTrafficPermission}, Steps: []policy.Step{
		{Origin: key(resource.KindTrafficPermission, "p"), Match: resource.TagSelector{"kuma.io/service": "web"}},
		{Origin: key(resource.KindTrafficPermission, "p"), Match: resource.TagSelector{"kuma.io/service": "api"}},
		{Origin: key(resource.KindTrafficPermission, "q"), Match: resource.TagSelector{"kuma.io/service": "web", "version": "1"}},
	}}
	for _, mtls := range []bool{false, true} {
		list := Of(mtls, []*policy.Rule{rule})
		require.Len(t, list.Entries, 2, "the last one decides nothing")
		allow, by := list.Decide([]resource.Tags{{"kuma.io/service": "api"}})
		require.True(t, allow)
		require.Equal(t, "p", by[0].Name)
		allow, by = list.Decide([]resource.Tags{{"kuma.io/service": "db"}})
		require.False(t, allow, "where there is a permission, it denies others without mTLS, too")
		require.Len(t, by, 2)
		// The newer generation decides alone, where it is.
		none := &policy.Rule{Target: policy.Target{Kind: resource.KindMeshTrafficPermission}}
		list = Of(mtls, []*policy.Rule{rule, none})
		allow, _ = list.Decide([]resource.Tags{{"kuma.io/service": "api"}})
		require.Equal(t, !mtls, allow)
		list = Of(mtls, nil)
		allow, by = list.Decide(nil)
		require.Equal(t, !mtls, allow)
		require.Empty(t, by)
	}
}
