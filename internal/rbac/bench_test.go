package rbac

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// manyTeams is 1,000 roles and 1,000 bindings, one of each per team. shape writes
// the one rule of a team's role, subject who is bound to it.
func manyTeams(t testing.TB, shape func(team int) resource.AccessRule, subject func(team int) string) *Set {
	t.Helper()
	var w world
	for i := range 1000 {
		role := fmt.Sprintf("role-%03d", i)
		w = append(w,
			build(t, "AccessRole", "", role, resource.AccessRole{Rules: []resource.AccessRule{shape(i)}}),
			bindingFor(t, fmt.Sprintf("binding-%03d", i), resource.Subject{Type: resource.SubjectUser, Name: subject(i)}, role))
	}
	return Compile(w)
}

func perTeam(team int) string { return fmt.Sprintf("user-%d", team) }

func alwaysBob(int) string { return "bob" }

func byName(team int) resource.AccessRule {
	mesh := resource.MeshName("default")
	return resource.AccessRule{
		Types: []resource.Kind{"TrafficPermission"}, Names: []string{fmt.Sprintf("team-%d", team)}, Mesh: &mesh,
		Access: []resource.Access{"CREATE", "UPDATE", "DELETE"},
	}
}

func byContent(team int) resource.AccessRule {
	rule := byName(team)
	rule.Names = nil
	rule.When = []resource.AccessWhen{{Destinations: &resource.TagQualifier{
		Match: resource.TagSelector{resource.ServiceTag: fmt.Sprintf("service-%d", team)},
	}}}
	return rule
}

func byTarget(team int) resource.AccessRule {
	rule := byName(team)
	rule.Types, rule.Names = []resource.Kind{"MeshUpstreamTimeout"}, nil
	rule.When = []resource.AccessWhen{
		{TargetRef: &resource.PolicyTargetRef{Kind: "Service", Name: fmt.Sprintf("service-%d", team)}},
		{To: &resource.TargetQualifier{TargetRef: resource.Target{Kind: "Service", Name: fmt.Sprintf("service-%d", team)}}},
	}
	return rule
}

// cases are questions to 1,000 roles and 1,000 bindings.
var cases = []struct {
	name    string
	rule    func(int) resource.AccessRule
	subject func(int) string
	user    string
	object  string
}{
	{"by name, one role each", byName, perTeam, "user-700", "TrafficPermission default/team-700 s=* d=service-700"},
	{"by name, all roles held", byName, alwaysBob, "bob", "TrafficPermission default/team-700 s=* d=service-700"},
	{"by content, one role each", byContent, perTeam, "user-700", "TrafficPermission default/x s=* d=service-700"},
	{"by content, all roles held", byContent, alwaysBob, "bob", "TrafficPermission default/x s=* d=service-999"},
	{"by target, one role each", byTarget, perTeam, "user-700", "MeshUpstreamTimeout default/x t=Service:service-700 to=Mesh"},
	{"by target, all roles held", byTarget, alwaysBob, "bob", "MeshUpstreamTimeout default/x t=Service:service-999 to=Mesh"},
	{"by item, all roles held", byTarget, alwaysBob, "bob", "MeshUpstreamTimeout default/x t=Mesh to=Service:service-999"},
}

func BenchmarkCheck(b *testing.B) {
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			set := manyTeams(b, c.rule, c.subject)
			o := object(b, c.object)
			request := Request{
				Subject: Subject{Name: c.user, Groups: []string{"team", "mesh-system:authenticated"}},
				Access:  resource.AccessUpdate, Old: o, New: o,
			}
			b.ReportAllocs()
			for b.Loop() {
				if !set.Check(request).Allowed {
					b.Fatal("denied")
				}
			}
		})
	}
}

// What is allowed by name is decided without allocating; by content, without
// looking at the conditions of a thousand others, of the same kind.
func TestAllowedByNameAllocatesNothing(t *testing.T) {
	for i, c := range cases {
		set := manyTeams(t, c.rule, c.subject)
		o := object(t, c.object)
		request := Request{Subject: Subject{Name: c.user, Groups: []string{"team"}}, Access: resource.AccessUpdate, Old: o, New: o}
		most := 16.0
		if i < 2 {
			most = 0
		}
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			if !set.Check(request).Allowed {
				t.Error("denied")
			}
		}), most, c.name)
	}
}

// A rule that asks for the tags of a target is looked at for these only.
func TestConditionsOnTargetsAreIndexed(t *testing.T) {
	for _, c := range cases[2:] {
		h := manyTeams(t, c.rule, alwaysBob).users["bob"]
		require.Empty(t, h.byKind[object(t, c.object).Key.Kind], c.name)
		for tag, rules := range h.byTag {
			require.Len(t, rules, 1, "%s: %v", c.name, tag)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	var w world
	for i := range 1000 {
		role := fmt.Sprintf("role-%03d", i)
		w = append(w,
			build(b, "AccessRole", "", role, resource.AccessRole{Rules: []resource.AccessRule{byName(i)}}),
			bindingFor(b, fmt.Sprintf("binding-%03d", i), resource.Subject{Type: resource.SubjectUser, Name: perTeam(i)}, role))
	}
	for b.Loop() {
		Compile(w)
	}
}

// A denial evaluates every rule of the subject; denied requests must not be able to
// keep a server busy.
func BenchmarkDenial(b *testing.B) {
	set := manyTeams(b, byContent, alwaysBob)
	o := object(b, "TrafficPermission default/x s=* d=absent")
	request := Request{Subject: Subject{Name: "bob"}, Access: resource.AccessCreate, New: o}
	for b.Loop() {
		if set.Check(request).Allowed {
			b.Fatal("allowed")
		}
	}
}
