package condition

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"

	"meridian/internal/resource"
)

// shape is what is known of a value that a condition sees. nil is a value of which
// nothing is known.
type shape struct {
	// members are those that there can be, closed when others cannot.
	members map[string]*shape
	closed  bool
	// rules says that the members are rules of policies, by name.
	rules bool
	// fields says that the members are fields of a configuration.
	fields bool
}

func object(members map[string]*shape) *shape { return &shape{members: members, closed: true} }

func names(of ...string) map[string]*shape {
	members := map[string]*shape{}
	for _, name := range of {
		members[name] = nil
	}
	return members
}

// scope has the shapes of the variables of a condition.
type scope map[string]*shape

// inheritedScope is what conditions of a kind of §5 see.
func inheritedScope(sections []string) scope {
	rules := &shape{rules: true}
	spec := map[string]*shape{"targetRef": object(names("group", "kind", "name", "sectionName"))}
	if sections == nil {
		spec["limits"] = rules
	} else {
		all := map[string]*shape{}
		for _, name := range sections {
			all[name] = rules
		}
		spec["rules"] = object(all)
	}
	metadata := object(names("name", "namespace", "mesh", "labels"))
	return scope{
		VarSelf:   object(map[string]*shape{"kind": nil, "metadata": metadata, "spec": object(spec)}),
		VarSpec:   object(spec),
		VarTarget: object(map[string]*shape{"kind": nil, "metadata": metadata, "spec": nil, "sectionName": nil}),
	}
}

// targetRefScope is what conditions of a kind of §4 see (§4.10).
func targetRefScope(kind resource.Kind) scope {
	configuration := func() *shape { return &shape{members: map[string]*shape{}, closed: true, fields: true} }
	conf := configuration()
	for _, f := range resource.ConfFields(kind) {
		at, path := conf, strings.Split(f.Path, ".")
		for _, name := range path[:len(path)-1] {
			if at = at.members[name]; at == nil {
				break // inside a list or map: not followed
			}
		}
		if at == nil {
			continue
		}
		var inner *shape
		if f.Type == "object" {
			inner = configuration()
		}
		at.members[path[len(path)-1]] = inner
	}
	self := maps.Clone(conf.members)
	self["kind"], self["metadata"], self["spec"] = nil, object(names("mesh")), conf
	return scope{
		VarSelf:   &shape{members: self, closed: true, fields: true},
		VarSpec:   conf,
		VarTarget: object(map[string]*shape{"kind": nil, "name": nil, "tags": nil, "attachment": object(names("type", "port", "service", "tags", "route"))}),
	}
}

// scopes has the shapes by the type of a spec.
var scopes = sync.OnceValue(func() map[reflect.Type]scope {
	all := map[reflect.Type]scope{}
	for _, d := range resource.Kinds() {
		switch spec := d.New().(type) {
		case *resource.AuthPolicy:
			all[reflect.TypeOf(spec)] = inheritedScope(resource.AuthSections())
		case *resource.RateLimitPolicy:
			all[reflect.TypeOf(spec)] = inheritedScope(nil)
		case resource.TargetRefSpec:
			all[reflect.TypeOf(spec)] = targetRefScope(d.Kind)
		}
	}
	return all
})

// ruleOf is the rule of a name in a section, or among the limits.
func ruleOf(section, name string) resource.RuleID {
	if section == "limits" {
		section = ""
	}
	return resource.RuleID{Section: section, Name: name}
}

// asked is what an expression asks for by name.
type asked struct {
	rules []resource.RuleID
	// fields are JSON pointers into a configuration.
	fields []string
}

// aboutSelf are the members of self that are no fields of a configuration (§4.10).
var aboutSelf = []string{"kind", "metadata", "spec"}

// walkPaths follows every path from a variable in an expression, as far as its
// steps are written as literals. It returns what is asked for, and an error for the
// first path that can never exist.
func walkPaths(expression *ast.AST, in scope) (used asked, wrong error) {
	root := ast.NavigateAST(expression)
	for _, ident := range ast.MatchDescendants(root, ast.KindMatcher(ast.IdentKind)) {
		name := ident.AsIdent()
		value, variable := in[name]
		if !variable || shadowed(ident, name) {
			continue
		}
		path, here := name, ident
		section, field := "", ""
		for value != nil {
			step, next, ok := stepFrom(here)
			if !ok {
				break
			}
			if value.rules {
				used.rules = append(used.rules, ruleOf(section, step))
			}
			if value.fields && (path != VarSelf || !slices.Contains(aboutSelf, step)) {
				field += "/" + step
			}
			inner, there := value.members[step]
			if !there && value.closed {
				return asked{}, at(expression, ident, "%s", noSuchPath(path, step, value))
			}
			path, section, value, here = path+"."+step, step, inner, next
		}
		if field != "" {
			used.fields = append(used.fields, field)
		}
	}
	return used, nil
}

// noSuchPath says that a step leads nowhere, and what was probably meant.
func noSuchPath(path, step string, value *shape) string {
	known := slices.Sorted(maps.Keys(value.members))
	text := fmt.Sprintf("%s.%s can never exist", path, step)
	if near, ok := resource.Nearest(step, known); ok {
		return text + fmt.Sprintf("; did you mean %s.%s?", path, near)
	}
	return text + fmt.Sprintf("; %s has %s", path, strings.Join(known, ", "))
}

// stepFrom returns the member that is taken of an expression, by a dot, by has, by
// an index or by `in`, where it is written as a literal.
func stepFrom(e ast.NavigableExpr) (name string, next ast.NavigableExpr, ok bool) {
	parent, has := e.Parent()
	if !has {
		return "", nil, false
	}
	switch parent.Kind() {
	case ast.SelectKind:
		return parent.AsSelect().FieldName(), parent, true
	case ast.CallKind:
		call := parent.AsCall()
		args := call.Args()
		if len(args) != 2 {
			return "", nil, false
		}
		switch {
		case call.FunctionName() == operators.Index && args[0].ID() == e.ID():
			name, ok = literalText(args[1])
		case call.FunctionName() == operators.In && args[1].ID() == e.ID():
			name, ok = literalText(args[0])
		}
		return name, parent, ok
	}
	return "", nil, false
}

// shadowed reports whether a macro around an expression binds its name.
func shadowed(e ast.NavigableExpr, name string) bool {
	for parent, ok := e.Parent(); ok; parent, ok = parent.Parent() {
		if parent.Kind() == ast.ComprehensionKind {
			c := parent.AsComprehension()
			if c.IterVar() == name || c.IterVar2() == name || c.AccuVar() == name {
				return true
			}
		}
	}
	return false
}
