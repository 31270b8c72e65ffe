package rbac

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// restarted is a view after the next start of its control plane, which creates
// the role admin where it is missing (§6.5).
func restarted(t failer, w world) world {
	if slices.ContainsFunc(w, func(r *resource.Resource) bool {
		return r.Key() == (resource.Key{Kind: resource.KindAccessRole, Name: AdminRole})
	}) {
		return w
	}
	return append(slices.Clone(w), build(t, "AccessRole", "", AdminRole, resource.AccessRole{Rules: []resource.AccessRule{{Access: Accesses()}}}))
}

// drawChange draws a change of the rules: a role narrowed from one that is there
// or made anew, a binding of some role, or the loss of one of them.
func drawChange(t *rapid.T, d *drawn) Change {
	subject := pick(t, "subject", resource.Subject{Type: "User", Name: "bob"}, resource.Subject{Type: "User", Name: "ann"}, resource.Subject{Type: "Group", Name: "g"})
	name := pick(t, "role", "r0", "r1", "new", AdminRole)
	switch pick(t, "change", "narrow", "narrow", "role", "bind", "bind", "remove") {
	case "narrow":
		rules := d.naive.roles[pick(t, "like", "r0", "r1", "r2")].Rules
		aim, token := pick(t, "aim", d.now...), d.tokens[0]
		narrow := narrowed(t, pick(t, "rule", rules...), aim, token)
		r := build(t, "AccessRole", "", name, resource.AccessRole{Rules: []resource.AccessRule{narrow}})
		return Change{r.Key(), r}
	case "role":
		r := build(t, "AccessRole", "", name, resource.AccessRole{Rules: []resource.AccessRule{drawRule(t, pick(t, "aim", d.now...), d.tokens[0])}})
		return Change{r.Key(), r}
	case "bind":
		r := build(t, "AccessRoleBinding", "", pick(t, "binding", "b0", "more"), resource.AccessRoleBinding{Subjects: []resource.Subject{subject}, Roles: []string{name, "r2"}[:rapid.IntRange(1, 2).Draw(t, "roles")]})
		return Change{r.Key(), r}
	default:
		return Change{Key: pick(t, "gone", d.view...).Key()}
	}
}

// Whatever allowed changes of roles and bindings a subject makes, one after the
// other, no subject gains an access that the author lacks, not even after the next
// start.
func TestNoSubjectGainsWhatTheAuthorLacks(t *testing.T) {
	made, refused, gained := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		d := drawWorld(t, 3)
		if oneIn(t, 2, "a weak role admin") {
			d.view = append(d.view, build(t, "AccessRole", "", AdminRole, d.naive.roles["r3"]))
		}
		author := Subject{Name: "ann", Groups: []string{"h"}}
		for range 4 {
			change := drawChange(t, d)
			next := world(slices.Collect(each(After(d.view, change))))
			held := Compile(d.view)
			if held.Guard(author, d.view, change) != nil {
				refused++
				continue
			}
			made++
			before, after := Compile(restarted(t, d.view)), Compile(restarted(t, next))
			for r := range d.requests {
				if r.Access == resource.AccessUpdate || !after.Check(r).Allowed || before.Check(r).Allowed {
					continue // two rules of two people may meet in an UPDATE
				}
				gained++
				r.Subject = author
				require.True(t, held.Check(r).Allowed, "%s gives %v\n%s", change.Key, r, fmt.Sprint(after.Check(r).By))
			}
			d.view = next
		}
	})
	require.Positive(t, made)
	require.Positive(t, refused)
	require.Positive(t, gained)
}

// each yields the rules of a view.
func each(v View) func(yield func(*resource.Resource) bool) {
	return func(yield func(*resource.Resource) bool) {
		for _, kind := range []resource.Kind{resource.KindAccessRole, resource.KindAccessRoleBinding} {
			for r := range v.List(kind, "") {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Who provides the authority of a mesh speaks for every dataplane of it, so that only who
// has all rights may; other secrets of the mesh give nothing.
func TestAnAuthorityIsProvidedByWhoHasAllRights(t *testing.T) {
	ann := Subject{Name: "ann"}
	change := func(name string) Change {
		r := build(t, "Secret", "m", name, resource.Secret{Data: "eA=="})
		return Change{Key: r.Key(), Resource: r}
	}
	require.NotNil(t, Compile(world(nil)).Guard(ann, world(nil), change("certificate-authority.ours")))
	require.Nil(t, Compile(world(nil)).Guard(ann, world(nil), change("gateway")))
}
