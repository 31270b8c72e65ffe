package inherit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// A stack is a pile of policies in one line, for tests that have many of them:
//
//	G D(a,b); R1@5 =(c) -a
//
// is a policy G with merged defaults a and b, and a policy R1, created
// five minutes after time began, with the bare rule c, that unsets a. The
// first letter of a name is what it targets: G the gateway, L its listener, R the
// route, U the route's first rule. Blocks are = bare, d and D atomic and merged
// defaults, o and O atomic and merged overrides. A rule's body is the name of the
// policy that wrote it; rules stand in authentication, or in authorization when
// their name begins with z.
//
// A block may have a condition: ?t true, ?f false, ?k asks for a key that is not
// there, ?e fails, ?n is no truth value, ?x asks whether there is a rule x for any
// other letter, ?0 whether there are no rules. A ! behind it is onError: apply.
type stack []stacked

// stacked is one policy of a stack.
type stacked struct {
	name   string
	age    int // minutes; 0: no creation time
	blocks []stackedBlock
	unset  []string
}

type stackedBlock struct {
	op    byte // = d D o O
	rules []string
	when  byte // 0: none
	apply bool // onError
}

// parseStack reads the notation above.
func parseStack(t testing.TB, line string) stack {
	t.Helper()
	var s stack
	for text := range strings.SplitSeq(line, ";") {
		words := strings.Fields(text)
		require.NotEmpty(t, words, line)
		name, age, _ := strings.Cut(words[0], "@")
		p := stacked{name: name}
		if age != "" {
			minutes, err := strconv.Atoi(age)
			require.NoError(t, err)
			p.age = minutes
		}
		for _, word := range words[1:] {
			if rule, ok := strings.CutPrefix(word, "-"); ok {
				p.unset = append(p.unset, rule)
				continue
			}
			head, tail, ok := strings.Cut(word[1:], ")")
			require.True(t, ok && head[0] == '(', word)
			b := stackedBlock{op: word[0], rules: strings.Split(head[1:], ",")}
			if when, ok := strings.CutPrefix(tail, "?"); ok {
				b.when, b.apply = when[0], strings.HasSuffix(when, "!")
			}
			p.blocks = append(p.blocks, b)
		}
		s = append(s, p)
	}
	return s
}

func section(rule string) string {
	if strings.HasPrefix(rule, "z") {
		return "authorization"
	}
	return "authentication"
}

// expression is a condition of the notation in CEL.
func expression(when byte) string {
	switch when {
	case 't':
		return "true"
	case 'f':
		return "false"
	case 'k':
		return "spec.rules.authentication.nothing == 'x'"
	case 'e':
		return "spec.rules.size() / 0 == 1"
	case 'n':
		return "spec.rules"
	case '0':
		return "spec.rules.authentication.size() + spec.rules.authorization.size() == 0"
	default:
		return fmt.Sprintf("has(self.spec.rules.%s.%c)", section(string(when)), when)
	}
}

// targetRef is what a policy of a name targets.
func targetRef(name string) map[string]any {
	switch name[0] {
	case 'G':
		return map[string]any{"kind": "Gateway", "name": "g"}
	case 'L':
		return map[string]any{"kind": "Gateway", "name": "g", "sectionName": "http"}
	case 'R':
		return map[string]any{"kind": "HTTPRoute", "name": "r"}
	default:
		return map[string]any{"kind": "HTTPRoute", "name": "r", "sectionName": "rule-1"}
	}
}

// spec is the policy as a document.
func (p *stacked) spec() map[string]any {
	spec := map[string]any{"targetRef": targetRef(p.name)}
	for _, b := range p.blocks {
		rules := map[string]map[string]any{}
		for _, rule := range b.rules {
			if rules[section(rule)] == nil {
				rules[section(rule)] = map[string]any{}
			}
			rules[section(rule)][rule] = p.name
		}
		if b.op == '=' {
			spec["rules"] = rules
			continue
		}
		block := map[string]any{"rules": rules}
		if b.op == 'D' || b.op == 'O' {
			block["strategy"] = "merge"
		}
		if b.when != 0 {
			block["when"] = expression(b.when)
		}
		if b.apply {
			block["onError"] = "apply"
		}
		spec[map[byte]string{'d': "defaults", 'D': "defaults", 'o': "overrides", 'O': "overrides"}[b.op]] = block
	}
	for _, rule := range p.unset {
		paths, _ := spec["unset"].([]string)
		spec["unset"] = append(paths, "rules."+section(rule)+"."+rule)
	}
	return spec
}

// epoch is when time begins in tests.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// build makes a resource from a spec that can be JSON text or anything that
// marshals to it.
func build(t testing.TB, kind resource.Kind, name string, spec any, age ...int) *resource.Resource {
	t.Helper()
	text, isText := spec.(string)
	if !isText {
		encoded, err := json.Marshal(spec)
		require.NoError(t, err)
		text = string(encoded)
	}
	meta := resource.Meta{Key: resource.Key{Kind: kind, Mesh: "default", Name: name}}
	if kind == resource.KindMesh {
		meta.Mesh = ""
	}
	if len(age) > 0 && age[0] > 0 {
		meta.CreationTime = epoch.Add(time.Duration(age[0]) * time.Minute)
	}
	r, _, err := resource.Build(meta, []byte(text))
	require.NoError(t, err)
	return r
}

// world is the gateway and the route that stacks stand on.
func world(t testing.TB) []*resource.Resource {
	return []*resource.Resource{
		build(t, "Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
		build(t, "HTTPRoute", "r", `{"parentRefs": [{"name": "g"}], "rules": [{}, {}]}`),
	}
}

func (s stack) resources(t testing.TB) []*resource.Resource {
	all := world(t)
	for i := range s {
		// Resource names are in small letters.
		all = append(all, build(t, "AuthPolicy", strings.ToLower(s[i].name), s[i].spec(), s[i].age))
	}
	return all
}

func newCompiler(t testing.TB) *condition.Compiler {
	t.Helper()
	c, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	return c
}

// indexOf returns an index of resources.
func indexOf(t testing.TB, resources ...*resource.Resource) *Index {
	t.Helper()
	x := New(newCompiler(t))
	x.Reset(policy.NewSnapshot(resources...))
	return x
}

// pathOf returns the effective AuthPolicy of a rule of route r.
func pathOf(t testing.TB, x *Index, rule string) *policy.PathRules {
	t.Helper()
	state, ok := x.Route("default", "r")
	require.True(t, ok)
	for i := range state.Paths {
		if state.Paths[i].Rule == rule {
			return &state.Paths[i]
		}
	}
	return nil
}

// short prints a path: "a:G b:R | lost a:G | unset c:R | skip g.overrides", with
// the winners of lost rules and the policies that unset.
func short(p *policy.PathRules) string {
	if p == nil {
		return "no policy"
	}
	part := func(by map[string]resource.Key) string {
		var items []string
		for _, id := range slices.Sorted(maps.Keys(by)) {
			_, name, _ := strings.Cut(id, ".")
			items = append(items, name+":"+strings.ToUpper(by[id].Name))
		}
		return strings.Join(items, " ")
	}
	text := part(p.Origins)
	if text == "" {
		text = "nothing"
	}
	if lost := part(p.Overridden); lost != "" {
		text += " | lost " + lost
	}
	if unset := part(p.Unset); unset != "" {
		text += " | unset " + unset
	}
	var skipped []string
	for _, d := range p.Decided {
		if !d.Used {
			skipped = append(skipped, strings.ToUpper(d.Policy.Name)+"."+d.Block)
		}
	}
	if len(skipped) > 0 {
		text += " | skip " + strings.Join(skipped, " ")
	}
	return text
}

// naive is §5.4 and §5.5 word by word: what the index must agree with.
func (s stack) naive(mayUnset bool) string {
	sorted := slices.Clone(s)
	slices.SortStableFunc(sorted, func(a, b stacked) int {
		const order = "URLG" // from the most specific up
		if a.name[0] != b.name[0] {
			return strings.IndexByte(order, a.name[0]) - strings.IndexByte(order, b.name[0])
		}
		if a.age != b.age {
			return b.age - a.age // the older one is higher, so it comes later
		}
		return strings.Compare(strings.ToLower(b.name), strings.ToLower(a.name))
	})
	n := naiveFold{ep: map[string]string{}, unset: map[string]string{}, lost: map[string]map[string]bool{}, taker: map[string]string{}, dropped: map[string]string{}}
	for _, p := range sorted {
		n.order = append(n.order, p.name)
		for _, defaults := range []bool{true, false} {
			for _, b := range p.blocks {
				if isDefault := strings.IndexByte("=dD", b.op) >= 0; isDefault == defaults {
					n.block(p.name, b)
				}
			}
		}
		for _, rule := range p.unset {
			if _, already := n.unset[rule]; !already && mayUnset {
				n.unset[rule] = p.name
			}
		}
	}
	return n.String()
}

type naiveFold struct {
	ep, unset, taker, dropped map[string]string
	order                     []string // names of policies, the most specific first
	lost                      map[string]map[string]bool
	skipped                   []string
}

func (n *naiveFold) block(name string, b stackedBlock) {
	blockName := "overrides"
	if strings.IndexByte("=dD", b.op) >= 0 {
		blockName = "defaults"
	}
	if !n.holds(b) {
		n.skipped = append(n.skipped, name+"."+blockName)
		return
	}
	var rules []string
	for _, rule := range b.rules {
		if by, unset := n.unset[rule]; unset && blockName == "defaults" {
			if _, already := n.dropped[rule]; !already {
				n.dropped[rule] = by
			}
			continue
		}
		rules = append(rules, rule)
	}
	empty := len(n.ep) == 0
	if b.op == 'o' {
		for rule, owner := range n.ep {
			n.lose(rule, owner, name)
		}
		clear(n.ep)
	}
	var first string
	if (b.op == '=' || b.op == 'd') && !empty {
		first = n.mostSpecific()
	}
	for _, rule := range rules {
		owner, has := n.ep[rule]
		switch {
		case first != "" && !has:
			n.lose(rule, name, first)
		case first != "" || (b.op == 'D' && has):
			n.lose(rule, name, owner)
		default:
			if has {
				n.lose(rule, owner, name)
			}
			n.ep[rule] = name
		}
	}
}

// mostSpecific finds who of those with a rule came first.
func (n *naiveFold) mostSpecific() string {
	for _, name := range n.order {
		for _, owner := range n.ep {
			if owner == name {
				return name
			}
		}
	}
	return ""
}

func (n *naiveFold) lose(rule, loser, winner string) {
	if n.lost[rule] == nil {
		n.lost[rule] = map[string]bool{}
	}
	n.lost[rule][loser] = true
	n.taker[rule] = winner
}

func (n *naiveFold) holds(b stackedBlock) bool {
	switch b.when {
	case 0, 't':
		return true
	case 'f', 'k':
		return false
	case 'e', 'n':
		return b.apply
	case '0':
		return len(n.ep) == 0
	default:
		_, has := n.ep[string(b.when)]
		return has
	}
}

// String prints as short does.
func (n *naiveFold) String() string {
	part := func(by map[string]string) string {
		var items []string
		for _, rule := range slices.SortedFunc(maps.Keys(by), func(a, b string) int {
			return strings.Compare(section(a)+"."+a, section(b)+"."+b)
		}) {
			items = append(items, rule+":"+by[rule])
		}
		return strings.Join(items, " ")
	}
	text := part(n.ep)
	if text == "" {
		text = "nothing"
	}
	lost := map[string]string{}
	for rule, losers := range n.lost {
		winner, in := n.ep[rule]
		if !in {
			winner = n.taker[rule]
		}
		for loser := range losers {
			if loser != winner {
				lost[rule] = winner
			}
		}
	}
	if text2 := part(lost); text2 != "" {
		text += " | lost " + text2
	}
	if text2 := part(n.dropped); text2 != "" {
		text += " | unset " + text2
	}
	if len(n.skipped) > 0 {
		text += " | skip " + strings.Join(n.skipped, " ")
	}
	return text
}
