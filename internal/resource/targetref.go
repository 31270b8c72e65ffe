package resource

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"meridian/internal/doctree"
)

// TargetKind says what a targetRef points to, in its canonical spelling.
type TargetKind string

// The kinds of targets, lowest priority first (§4.2).
const (
	TargetMesh             TargetKind = "Mesh"
	TargetMeshSubset       TargetKind = "MeshSubset"
	TargetService          TargetKind = "Service"
	TargetServiceSubset    TargetKind = "ServiceSubset"
	TargetProxy            TargetKind = "Proxy"
	TargetMeshGatewayRoute TargetKind = "MeshGatewayRoute"
	TargetHTTPRoute        TargetKind = "HTTPRoute"
)

// TargetKinds lists the kinds of targets, lowest priority first.
func TargetKinds() []TargetKind {
	return []TargetKind{
		TargetMesh, TargetMeshSubset, TargetService, TargetServiceSubset,
		TargetProxy, TargetMeshGatewayRoute, TargetHTTPRoute,
	}
}

// Priority is the place of the kind in the order of §4.2: the higher
// one has priority. It is -1 for a kind that does not exist.
func (k TargetKind) Priority() int { return slices.Index(TargetKinds(), k) }

// canonical turns the accepted spellings of later releases into the kind.
func (k TargetKind) canonical() TargetKind {
	switch k {
	case "MeshService":
		return TargetService
	case "MeshServiceSubset":
		return TargetServiceSubset
	case "MeshHTTPRoute":
		return TargetHTTPRoute
	}
	return k
}

// laterSpelling is how later releases of the source documents spell the kind.
func (k TargetKind) laterSpelling() TargetKind {
	for _, later := range []TargetKind{"MeshService", "MeshServiceSubset", "MeshHTTPRoute"} {
		if later.canonical() == k {
			return later
		}
	}
	return k
}

func (k TargetKind) takesName() bool {
	return slices.Contains([]TargetKind{TargetService, TargetServiceSubset, TargetProxy, TargetMeshGatewayRoute, TargetHTTPRoute}, k)
}

func (k TargetKind) takesTags() bool { return k == TargetMeshSubset || k == TargetServiceSubset }

// Target points to what a policy, or one item of it, is about.
type Target struct {
	Kind TargetKind  `json:"kind" required:"true" enum:"Mesh|MeshSubset|Service|ServiceSubset|Proxy|MeshGatewayRoute|HTTPRoute|MeshService|MeshServiceSubset|MeshHTTPRoute" doc:"What is targeted; MeshService, MeshServiceSubset and MeshHTTPRoute are other spellings of Service, ServiceSubset and HTTPRoute."`
	Name string      `json:"name,omitzero" doc:"Name of the service, proxy or route; not with Mesh and MeshSubset."`
	Tags TagSelector `json:"tags,omitzero" doc:"Tags that narrow a MeshSubset or ServiceSubset; required there, nowhere else allowed."`
}

// String prints the target as users speak of it: Service backend, MeshSubset
// {version: v1}.
func (t Target) String() string {
	text := string(t.Kind)
	if t.Name != "" {
		text += " " + t.Name
	}
	if len(t.Tags) > 0 {
		var tags []string
		for _, name := range slices.Sorted(maps.Keys(t.Tags)) {
			tags = append(tags, name+": "+t.Tags[name])
		}
		text += " {" + strings.Join(tags, ", ") + "}"
	}
	return text
}

// normalized is the target in canonical spelling; an absent one is the Mesh.
func (t *Target) normalized() Target {
	if t == nil {
		return Target{Kind: TargetMesh}
	}
	return Target{Kind: t.Kind.canonical(), Name: t.Name, Tags: t.Tags}
}

// check reports kinds that have no place here, and names and tags that are
// missing or not taken (§4.2).
func (t *Target) check(at Path, allowed []TargetKind, r *Report) {
	kind := t.Kind.canonical()
	if !slices.Contains(allowed, kind) {
		names := make([]string, len(allowed))
		for i, k := range allowed {
			names[i] = string(k)
		}
		r.Errorf(at.Field("kind"), "%s cannot be targeted here; use one of %s", kind, strings.Join(names, ", "))
		return
	}
	switch {
	case kind.takesName() && t.Name == "":
		r.Errorf(at.Field("name"), "is required with kind %s", kind)
	case t.Name == AnyValue && (kind == TargetService || kind == TargetServiceSubset):
		r.Errorf(at.Field("name"), "'*' is not the name of a service; %s", anyServiceInstead(kind))
	case !kind.takesName() && t.Name != "":
		r.Errorf(at.Field("name"), "is not taken by kind %s; %s", kind, nameInstead(kind))
	}
	switch {
	case kind.takesTags() && len(t.Tags) == 0:
		r.Errorf(at.Field("tags"), "is required with kind %s: at least one tag", kind)
	case !kind.takesTags() && t.Tags != nil:
		r.Errorf(at.Field("tags"), "is not taken by kind %s; %s", kind, tagsInstead(kind))
	default:
		checkTags(at.Field("tags"), t.Tags, r)
	}
}

// anyServiceInstead says how to target every service (§4.2).
func anyServiceInstead(kind TargetKind) string {
	if kind == TargetServiceSubset {
		return "use kind MeshSubset without a name"
	}
	return "use kind Mesh without a name"
}

func nameInstead(kind TargetKind) string {
	if kind == TargetMeshSubset {
		return "to target part of a service use ServiceSubset"
	}
	return "leave it out, or use Service"
}

func tagsInstead(kind TargetKind) string {
	switch kind {
	case TargetMesh:
		return "use MeshSubset"
	case TargetService:
		return "use ServiceSubset"
	}
	return "leave it out"
}

// TargetItem is one element of `to` or `from`, in either of its forms
// (§4.1).
type TargetItem struct {
	Target
	// Conf is the item's configuration as a tree of map[string]any, []any,
	// string, bool and json.Number, durations as written.
	Conf map[string]any
	// Path is the item's place in the spec, such as conf.to[0].
	Path Path
}

// Strategy says how a block of defaults or overrides meets other policies.
type Strategy string

const (
	// Atomic blocks are taken whole or not at all.
	Atomic Strategy = "atomic"
	// Merge blocks are taken field by field, or rule by rule.
	Merge Strategy = "merge"
)

// OnError says what becomes of a block whose condition cannot be evaluated.
type OnError string

const (
	// SkipOnError leaves the block out.
	SkipOnError OnError = "skip"
	// ApplyOnError applies the block, so that a guard fails closed.
	ApplyOnError OnError = "apply"
)

// BlockHead is what every block of defaults or overrides has besides its
// content (§4.10, §5.2).
type BlockHead struct {
	Strategy *Strategy `json:"strategy,omitzero" enum:"atomic|merge" doc:"Whether the block is taken as a whole or merged piece by piece; atomic when absent."`
	When     *string   `json:"when,omitzero" doc:"Condition in CEL on what the more specific policies result in, bound as self; always when absent."`
	OnError  *OnError  `json:"onError,omitzero" enum:"skip|apply" doc:"What to do when the condition fails to evaluate; skip when absent."`
}

// strategy is the block's strategy or the default of §5.2.
func (h *BlockHead) strategy() Strategy {
	if h.Strategy == nil {
		return Atomic
	}
	return *h.Strategy
}

func (h *BlockHead) onError() OnError {
	if h.OnError == nil {
		return SkipOnError
	}
	return *h.OnError
}

func (h *BlockHead) when() string {
	if h.When == nil {
		return ""
	}
	return *h.When
}

// targetBlock is the engines' view of a block, without its content.
func (h *BlockHead) targetBlock(at Path) *TargetBlock {
	return &TargetBlock{Strategy: h.strategy(), When: h.when(), OnError: h.onError(), Path: at}
}

func (h *BlockHead) check(at Path, r *Report) {
	if h.When != nil && strings.TrimSpace(*h.When) == "" {
		r.Errorf(at.Field("when"), "must not be empty; leave it out for a block that always applies")
	}
	if h.OnError != nil && h.When == nil {
		r.Findf(CodeNoEffect, at.Field("onError"), "has no effect without when")
	}
}

// TargetBlock is a block of defaults or overrides on a targetRef kind, ready to
// be merged (§4.10).
type TargetBlock struct {
	Strategy Strategy
	// When is the condition in CEL; empty means always.
	When    string
	OnError OnError
	// To and From are the block's items, Own the fields of a kind without items.
	To, From []TargetItem
	Own      map[string]any
	Path     Path
}

// TargetRefSpec is implemented by the kinds of §4: one view of all
// their forms. Every call builds what it returns; the caller owns the result,
// except for tag maps, which must not be modified.
type TargetRefSpec interface {
	Spec
	// TopTarget returns the top-level target; an absent one is the Mesh.
	TopTarget() Target
	// ToItems and FromItems return the items of the bare form, wherever they
	// stand; nil for kinds and documents without.
	ToItems() []TargetItem
	FromItems() []TargetItem
	// ItemTargets returns what all items target, in every form and block, without
	// building their configuration.
	ItemTargets() (to, from []Target)
	// OwnConf returns the bare configuration of a kind without items
	// (§4.8); nil for other kinds and for documents without.
	OwnConf() map[string]any
	// Defaults and Overrides return the blocks; nil when absent.
	Defaults() *TargetBlock
	Overrides() *TargetBlock
	// UnsetPointers returns the JSON pointers into an attachment's configuration
	// that the policy takes out of less specific defaults.
	UnsetPointers() []string
}

// PolicyTarget is the head of every targetRef policy.
type PolicyTarget struct {
	TargetRef *Target `json:"targetRef,omitzero" doc:"Proxies that the policy configures; the whole Mesh when absent."`
}

// TopTarget implements TargetRefSpec.
func (p *PolicyTarget) TopTarget() Target { return p.TargetRef.normalized() }

func (p *PolicyTarget) check(at Path, r *Report) {
	if p.TargetRef != nil {
		p.TargetRef.check(at.Field("targetRef"), TargetKinds(), r)
	}
}

// PolicyUnset is the list of pointers that every targetRef policy may have.
type PolicyUnset struct {
	Unset []string `json:"unset,omitzero" doc:"JSON pointers, such as /http/requestTimeout, of fields to take out of what less specific defaults bring."`
}

// UnsetPointers implements TargetRefSpec.
func (p *PolicyUnset) UnsetPointers() []string { return p.Unset }

// check reports pointers that do not lead to a field of conf's type.
func (p *PolicyUnset) check(at Path, conf reflect.Type, r *Report) {
	for i, pointer := range p.Unset {
		path := at.Field("unset").Index(i)
		if slices.Contains(p.Unset[:i], pointer) {
			r.Warnf(path, "%s is listed twice", doctree.Clip(pointer))
			continue
		}
		if err := checkPointer(pointer, conf); err != nil {
			r.Errorf(path, "%s", err)
		}
	}
}

var pointerUnescapes = strings.NewReplacer("~1", "/", "~0", "~")

// checkPointer follows a JSON pointer (RFC 6901) through the fields of a type.
// Lists and opaque values are single values: nothing inside them can be unset.
func checkPointer(pointer string, t reflect.Type) error {
	if pointer == "" || pointer[0] != '/' {
		return fmt.Errorf("expected a JSON pointer such as /http/requestTimeout, got %q", doctree.Clip(pointer))
	}
	for _, name := range strings.Split(pointer[1:], "/") {
		name = pointerUnescapes.Replace(name)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch {
		case t.Kind() == reflect.Map:
			t = t.Elem()
			continue
		case t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(nodeDecoderType):
			return fmt.Errorf("%s leads into a single value; it can only be unset as a whole", doctree.Clip(pointer))
		}
		plan := planOf(t)
		i, known := plan.byName[name]
		if !known {
			return fmt.Errorf("%s: there is no field `%s`%s", doctree.Clip(pointer), doctree.Clip(name), didYouMean(name, plan.names))
		}
		t = plan.fields[i].typ
	}
	return nil
}
