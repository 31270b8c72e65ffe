package inherit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// edges are the cases of §5.4 to §5.6, one to a line: a stack and what
// comes of it on the route's first rule.
var edges = []struct{ name, stack, want string }{
	// One policy: whatever the form, its rules are taken.
	{"bare alone", "R =(a,b)", "a:R b:R"},
	{"atomic defaults alone", "G d(a,b)", "a:G b:G"},
	{"merged defaults alone", "G D(a,b)", "a:G b:G"},
	{"atomic overrides alone", "G o(a,b)", "a:G b:G"},
	{"merged overrides alone", "G O(a,b)", "a:G b:G"},
	{"both blocks, other rules", "G D(a) O(b)", "a:G b:G"},
	{"both blocks, one rule: its own override wins and no policy lost", "G D(a) O(a)", "a:G"},
	{"atomic override behind its own default", "G D(a,b) o(c)", "c:G"},
	{"two sections", "G D(a,za)", "a:G za:G"},
	{"unset alone", "R -a", "nothing"},

	// §5.7 A: atomic defaults above something.
	{"atomic default is overridden by bare", "G d(a,b); R =(c)", "c:R | lost a:R b:R"},
	{"atomic default is overridden, same rule", "G d(a); R =(a)", "a:R | lost a:R"},
	{"atomic default is overridden by merged default", "G d(a); R D(b)", "b:R | lost a:R"},
	{"atomic default is overridden by override", "G d(a); R O(b)", "b:R | lost a:R"},
	{"bare on the gateway is an atomic default", "G =(a); R =(b)", "b:R | lost a:R"},
	{"atomic default above an unset only", "G d(a,b); R -a", "b:G | unset a:R"},
	{"atomic default all unset", "G d(a); R -a", "nothing | unset a:R"},
	{"atomic default: unset rules are dropped before it loses", "G d(a,b); R =(c) -a", "c:R | lost b:R | unset a:R"},
	{"the highest of three atomic defaults loses to the lowest", "G d(a); L d(b); R =(c)", "c:R | lost a:R b:R"},
	{"the second takes over where the lowest is empty", "G d(a); L d(b); R -x", "b:L | lost a:L"},
	{"the third takes over where two are unset away", "G d(a); L d(b); R -b", "a:G | unset b:R"},

	// §5.7 B: merged defaults above something.
	{"merged default adds", "G D(a,b); R =(c)", "a:G b:G c:R"},
	{"merged default keeps what is there", "G D(a,b); R =(a)", "a:R b:G | lost a:R"},
	{"merged default adds to an override", "G D(a,b); R O(a)", "a:R b:G | lost a:R"},
	{"merged default keeps to its section", "G D(a,za); R =(a)", "a:R za:G | lost a:R"},
	{"merged defaults on three levels", "G D(a,b,c); L D(b,c); R =(c)", "a:G b:L c:R | lost b:L c:R"},
	{"merged defaults on four levels", "G D(a,b,c,x); L D(b,c,x); R D(c,x); U =(x)", "a:G b:L c:R x:U | lost b:L c:R x:U"},
	{"a merged default above an atomic one that lost", "G D(a,b); L d(a,c); R =(x)", "a:G b:G x:R | lost a:G c:R"},

	// §5.7 C: atomic overrides.
	{"atomic override replaces", "G o(a,b); R =(c)", "a:G b:G | lost c:G"},
	{"atomic override replaces the same rule", "G o(a); R =(a)", "a:G | lost a:G"},
	{"atomic override on the listener, default above", "G D(b); L o(a); R =(c)", "a:L b:G | lost c:L"},
	{"the higher of two atomic overrides", "G o(a); L o(b); R =(c)", "a:G | lost b:G c:L"},
	{"an atomic override above a merged one", "G o(a); L O(b); R =(c)", "a:G | lost b:G c:G"},
	{"an atomic override ends an earlier quarrel", "G o(c); L O(a); R =(a,b)", "c:G | lost a:G b:G"},
	{"an atomic override names what was lost before", "G o(a); L O(a); R =(a)", "a:G | lost a:G"},
	{"an atomic override on four levels", "G o(a); L o(b); R o(c); U =(x)", "a:G | lost b:G c:L x:R"},

	// §5.7 D: merged overrides.
	{"merged override adds", "G O(a,b); R =(c)", "a:G b:G c:R"},
	{"merged override replaces by rule", "G O(a,b); R =(a,c)", "a:G b:G c:R | lost a:G"},
	{"merged overrides on three levels", "G O(a); L O(a,b); R =(a,b,c)", "a:G b:L c:R | lost a:G b:L"},
	{"merged overrides on four levels", "G O(a); L O(a,b); R O(a,b,c); U =(a,b,c,x)", "a:G b:L c:R x:U | lost a:G b:L c:R"},
	{"merged override above an atomic one", "G O(a); L o(b); R =(c)", "a:G b:L | lost c:L"},
	{"merged override where there is nothing", "G O(a); R -a", "a:G"},
	{"same name in another section is another rule", "G O(za); R =(a)", "a:R za:G"},

	// Both blocks of one policy: defaults first, then overrides.
	{"defaults and overrides", "G D(a,b) O(c); R =(a,c)", "a:R b:G c:G | lost a:R c:G"},
	{"atomic default and merged override", "G d(a,b) O(c); R =(x)", "c:G x:R | lost a:R b:R"},
	{"merged default and atomic override", "G D(a) o(b); R =(x)", "b:G | lost x:G"},
	{"atomic default and atomic override", "G d(a) o(b); R =(a)", "b:G | lost a:G"},
	{"both blocks with one rule above a third", "G D(a) O(a); R =(a)", "a:G | lost a:G"},
	{"both blocks on both levels", "G D(a,b) O(c,x); R D(a,c) O(b,x)", "a:R b:R c:G x:G | lost a:R b:R c:G x:G"},

	// §5.7 F: unset.
	{"unset a merged default", "G D(a); R =(b) -a", "b:R | unset a:R"},
	{"unset does not touch overrides", "G O(a); R =(b) -a", "a:G b:R"},
	{"unset does not touch atomic overrides", "G o(a); R =(b) -a", "a:G | lost b:G"},
	{"unset does not touch the policy's own defaults", "R =(a,b) -a", "a:R b:R"},
	{"unset does not touch what is below", "G D(b) -a; R =(a)", "a:R b:G"},
	{"unset reaches over a level", "G D(a,b); L D(a); U =(c) -a", "b:G c:U | unset a:U"},
	{"unset on a middle level", "G D(a,b); L D(b) -a; R =(c)", "b:L c:R | lost b:L | unset a:L"},
	{"unset twice: the more specific one did it", "G D(a); R =(b) -a; U =(c) -a", "c:U | lost b:U | unset a:U"},
	{"unset of a rule that does not exist", "G D(a); R =(b) -x", "a:G b:R"},
	{"unset of one's own and of an inherited one", "G D(a,b); R =(a) -a -b", "a:R | unset a:R b:R"},
	{"unset default comes back as override", "G D(a) O(a); R =(b) -a", "a:G b:R | unset a:R"},
	{"unset one of two sections", "G D(a,za); R =(b) -za", "a:G b:R | unset za:R"},
	{"unset by a policy whose block is skipped", "G D(a,b); R D(c)?f -a", "b:G | unset a:R | skip R.defaults"},
	{"unset of a default that is skipped anyway", "G D(a)?f; R =(b) -a", "b:R | skip G.defaults"},
	{"unset in an atomic default that is taken", "G d(a,b); R -b", "a:G | unset b:R"},
	{"unset empties a default, so that the next one is taken", "G d(b); L d(a); U -a", "b:G | unset a:U"},

	// §5.6: when.
	{"true default", "G D(a)?t; R =(b)", "a:G b:R"},
	{"false default", "G D(a)?f; R =(b)", "b:R | skip G.defaults"},
	{"true override", "G O(a)?t; R =(a)", "a:G | lost a:G"},
	{"false override", "G O(a)?f; R =(a)", "a:R | skip G.overrides"},
	{"true atomic override", "G o(b)?t; R =(a)", "b:G | lost a:G"},
	{"false atomic override", "G o(b)?f; R =(a)", "a:R | skip G.overrides"},
	{"false atomic default", "G d(b)?f; R -x", "nothing | skip G.defaults"},
	{"false default, true override", "G D(a)?f O(b)?t; R =(c)", "b:G c:R | skip G.defaults"},
	{"true default, false override", "G D(a)?t O(b)?f; R =(c)", "a:G c:R | skip G.overrides"},
	{"both false", "G D(a)?f O(b)?f; R =(c)", "c:R | skip G.defaults G.overrides"},
	{"missing key is not matched", "G O(a)?k; R =(a)", "a:R | skip G.overrides"},
	{"missing key is no error", "G O(a)?k!; R =(a)", "a:R | skip G.overrides"},
	{"false is no error", "G O(a)?f!; R =(a)", "a:R | skip G.overrides"},
	{"error skips an override", "G O(a)?e; R =(a)", "a:R | skip G.overrides"},
	{"error skips a default", "G D(a)?e; R =(b)", "b:R | skip G.defaults"},
	{"error skips an atomic override", "G o(a)?e; R =(b)", "b:R | skip G.overrides"},
	{"error skips an atomic default", "G d(a)?e; R -x", "nothing | skip G.defaults"},
	{"error applies an override that fails closed", "G O(a)?e!; R =(a)", "a:G | lost a:G"},
	{"error applies a default that fails closed", "G D(a)?e!; R =(b)", "a:G b:R"},
	{"error applies an atomic override that fails closed", "G o(a)?e!; R =(b)", "a:G | lost b:G"},
	{"no truth value is an error", "G O(a)?n; R =(a)", "a:R | skip G.overrides"},
	{"no truth value applies what fails closed", "G O(a)?n!; R =(a)", "a:G | lost a:G"},
	{"an error stops its own block only", "G D(a)?e O(b); R =(c)", "b:G c:R | skip G.defaults"},
	{"self is what is below: present", "G O(b)?a; R =(a)", "a:R b:G"},
	{"self is what is below: absent", "G O(b)?a; R =(c)", "c:R | skip G.overrides"},
	{"self of an override has the policy's own defaults", "G D(a) O(b)?a; R =(c)", "a:G b:G c:R"},
	{"self of a default has not the policy's own override", "G D(b)?a O(a); R =(c)", "a:G c:R | skip G.defaults"},
	{"self has what a middle level added", "G O(b)?a; L D(a); R =(c)", "a:L b:G c:R"},
	{"self lacks what a middle level replaced", "G O(b)?a; L o(c); R =(a)", "c:L | lost a:L | skip G.overrides"},
	{"self lacks what was unset", "G O(b)?a; L D(a); R =(c) -a", "c:R | unset a:R | skip G.overrides"},
	{"self is empty at the bottom", "G D(a)?0", "a:G"},
	{"self is empty where everything was unset", "G D(b)?0; L d(a); R -a", "b:G | unset a:R"},
	{"self is not empty", "G D(a)?0; R =(b)", "b:R | skip G.defaults"},
	{"a skipped bottom leaves self empty", "G D(a)?0; R D(b)?f", "a:G | skip R.defaults"},
	{"a condition in another section", "G O(b)?z; R =(z)", "b:G z:R"},

	// §5.5: ties on one level. The older one is higher.
	{"among atomic defaults the newer wins", "G1@1 d(a); G2@2 d(b)", "b:G2 | lost a:G2"},
	{"whatever their order", "G2@2 d(b); G1@1 d(a)", "b:G2 | lost a:G2"},
	{"among merged defaults the newer wins", "G1@1 D(a,b); G2@2 D(a,c)", "a:G2 b:G1 c:G2 | lost a:G2"},
	{"among merged overrides the older wins", "G1@1 O(a,b); G2@2 O(a,c)", "a:G1 b:G1 c:G2 | lost a:G1"},
	{"among atomic overrides the older wins", "G1@1 o(a); G2@2 o(b)", "a:G1 | lost b:G1"},
	{"no time is oldest", "G1 O(a); G2@2 O(a)", "a:G1 | lost a:G1"},
	{"no time is oldest, defaults", "G1 D(a); G2@2 D(a)", "a:G2 | lost a:G2"},
	{"one time: the name that sorts first is higher, overrides", "G1@5 O(a); G2@5 O(a)", "a:G1 | lost a:G1"},
	{"one time: the name that sorts first is higher, defaults", "G1@5 D(a); G2@5 D(a)", "a:G2 | lost a:G2"},
	{"no times at all", "G1 d(a); G2 d(b)", "b:G2 | lost a:G2"},
	{"bare ties on the route", "R1@1 =(a); R2@2 =(b)", "b:R2 | lost a:R2"},
	{"ties on the listener", "L1@1 O(a); L2@2 O(a); R =(a)", "a:L1 | lost a:L1"},
	{"ties on the rule", "U1@1 =(a); U2@2 =(b)", "b:U2 | lost a:U2"},
	{"the newer of a level unsets for the older", "G1@1 D(a,b); G2@2 D(c) -a", "b:G1 c:G2 | unset a:G2"},
	{"the older of a level unsets nothing of the newer", "G1@1 D(c) -a; G2@2 D(a,b)", "a:G2 b:G2 c:G1"},
	{"three of one level", "G1@1 D(a,b,c); G2@2 D(a,b); G3@3 D(a)", "a:G3 b:G2 c:G1 | lost a:G3 b:G2"},
	{"levels come before age", "G@9 D(a); R@1 =(a)", "a:R | lost a:R"},
	{"levels come before age, overrides", "G@9 O(a); R@1 O(a)", "a:G | lost a:G"},
	{"a tie under a default above", "G D(a,b,c); R1@1 =(a); R2@2 =(b)", "a:G b:R2 c:G | lost a:G b:R2"},
}

// §5.4, §5.5, §5.6: the table, which the naive fold must agree with
// too.
func TestEdges(t *testing.T) {
	require.GreaterOrEqual(t, len(edges), 100)
	for _, tt := range edges {
		t.Run(tt.name, func(t *testing.T) {
			s := parseStack(t, tt.stack)
			require.Equal(t, tt.want, short(pathOf(t, indexOf(t, s.resources(t)...), "rule-1")))
			require.Equal(t, tt.want, s.naive(true))
		})
	}
}

// §1.4: a mesh can forbid unsetting.
func TestUnsetForbidden(t *testing.T) {
	s := parseStack(t, "G D(a); R =(b) -a")
	for setting, want := range map[string]string{"Forbidden": "a:G b:R", "Allowed": "b:R | unset a:R"} {
		mesh := build(t, "Mesh", "default", `{"matching": {"unset": "`+setting+`"}}`)
		x := indexOf(t, append(s.resources(t), mesh)...)
		require.Equal(t, want, short(pathOf(t, x, "rule-1")))
		require.Equal(t, want, s.naive(setting == "Allowed"))
		require.Equal(t, setting == "Forbidden", strings.Contains(conditionsOf(t, x, "AuthPolicy", "r")[0].Message, "forbids unsetting"))
	}
}

// drawStack draws any stack of up to six policies.
func drawStack(t *rapid.T) stack {
	rules := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "z"}), 1, 3, rapid.ID[string])
	var s stack
	for i := range rapid.IntRange(1, 6).Draw(t, "policies") {
		p := stacked{
			name: fmt.Sprintf("%s%d", rapid.SampledFrom([]string{"G", "L", "R", "U"}).Draw(t, "level"), i),
			age:  rapid.IntRange(0, 3).Draw(t, "age"),
		}
		block := func(ops string) {
			b := stackedBlock{op: rapid.SampledFrom([]byte(ops)).Draw(t, "op"), rules: rules.Draw(t, "rules")}
			if b.op != '=' && rapid.Bool().Draw(t, "conditional") {
				b.when = rapid.SampledFrom([]byte("tfken0abcz")).Draw(t, "when")
				b.apply = rapid.Bool().Draw(t, "apply")
			}
			p.blocks = append(p.blocks, b)
		}
		switch rapid.IntRange(0, 3).Draw(t, "form") {
		case 0:
			block("=")
		case 1:
			block("dD")
		case 2:
			block("oO")
		default:
			block("dD")
			block("oO")
		}
		if rapid.Bool().Draw(t, "unsets") {
			p.unset = rules.Draw(t, "unset")
		}
		s = append(s, p)
	}
	return s
}

// The fold agrees with the naive one, whatever the order of resources, and
// leaves its inputs alone.
func TestEqualsNaive(t *testing.T) {
	compiler := newCompiler(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStack(rt)
		resources := rapid.Permutation(s.resources(t)).Draw(rt, "order")
		x := New(compiler)
		x.Reset(policy.NewSnapshot(resources...))
		before := blocksOf(x)
		require.Equal(rt, s.naive(true), short(pathOf(t, x, "rule-1")), "%+v", s)
		require.Equal(rt, before, blocksOf(x), "a block was written to")
	})
}

// blocksOf prints the rules of every block of an index.
func blocksOf(x *Index) string {
	var b strings.Builder
	for _, m := range x.meshes {
		for _, key := range slices.SortedFunc(maps.Keys(m.policies), resource.Key.Compare) {
			for _, block := range m.policies[key].blocks {
				fmt.Fprintln(&b, key, block.name, block.rules)
			}
		}
	}
	return b.String()
}

// An atomic override of the gateway that always holds decides everything below
// and beside it that is newer.
func TestOverrideDominance(t *testing.T) {
	compiler := newCompiler(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := append(drawStack(rt), stacked{name: "Gfirst", blocks: []stackedBlock{{op: 'o', rules: []string{"a"}}}})
		for i := range s[:len(s)-1] {
			s[i].age++ // Gfirst is established
		}
		x := New(compiler)
		x.Reset(policy.NewSnapshot(s.resources(t)...))
		require.Equal(rt, policy.Tree{"authentication": policy.Tree{"a": "Gfirst"}}, pathOf(t, x, "rule-1").Rules)
	})
}
