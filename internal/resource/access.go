package resource

import (
	"slices"
	"strings"

	"meridian/internal/doctree"
)

// Access is something that a role can grant (§6.1).
type Access string

// Everything that a role can grant.
const (
	AccessCreate                 Access = "CREATE"
	AccessUpdate                 Access = "UPDATE"
	AccessDelete                 Access = "DELETE"
	AccessRead                   Access = "READ"
	AccessGenerateDataplaneToken Access = "GENERATE_DATAPLANE_TOKEN"
	AccessGenerateUserToken      Access = "GENERATE_USER_TOKEN"
	AccessGenerateZoneCPToken    Access = "GENERATE_ZONE_CP_TOKEN"
	AccessGenerateZoneToken      Access = "GENERATE_ZONE_TOKEN"
)

// AccessRole is a set of rights that bindings give to users and groups.
type AccessRole struct {
	Rules []AccessRule `json:"rules,omitzero" doc:"What the role grants; one rule that grants an access is enough."`
}

// AccessRule grants access to the resources it covers.
type AccessRule struct {
	Types  []Kind       `json:"types,omitzero" doc:"Kinds of resources; all when absent or empty."`
	Names  []string     `json:"names,omitzero" doc:"Names of resources; all when absent or empty."`
	Mesh   *MeshName    `json:"mesh,omitzero" doc:"Mesh of the resources, '*' for any; restricts the rule to kinds that live in a mesh."`
	Access []Access     `json:"access" required:"true" enum:"CREATE|UPDATE|DELETE|READ|GENERATE_DATAPLANE_TOKEN|GENERATE_USER_TOKEN|GENERATE_ZONE_CP_TOKEN|GENERATE_ZONE_TOKEN" doc:"What is granted."`
	When   []AccessWhen `json:"when,omitzero" doc:"Conditions on the content; one entry that holds is enough, none is no condition."`
}

// AccessWhen is one condition: every qualifier that is written must hold
// (§6.3).
type AccessWhen struct {
	Sources      *TagQualifier    `json:"sources,omitzero" doc:"Tags that every entry of the policy's sources must have."`
	Destinations *TagQualifier    `json:"destinations,omitzero" doc:"Tags that every entry of the policy's destinations must have."`
	Selectors    *TagQualifier    `json:"selectors,omitzero" doc:"Tags that every entry of the policy's selectors must have."`
	DPToken      *TokenQualifier  `json:"dpToken,omitzero" doc:"Condition on the dataplane token to generate."`
	TargetRef    *PolicyTargetRef `json:"targetRef,omitzero" doc:"Target that must cover the policy's own."`
	To           *TargetQualifier `json:"to,omitzero" doc:"Target that must cover every to item of the policy."`
	From         *TargetQualifier `json:"from,omitzero" doc:"Target that must cover every from item of the policy."`
}

// TagQualifier holds the tags that selectors must have.
type TagQualifier struct {
	Match TagSelector `json:"match" required:"true" doc:"Tags and their values; '*' accepts any value of a tag that is present."`
}

// TokenQualifier is a condition on a dataplane token.
type TokenQualifier struct {
	Tags  []TokenTag `json:"tags,omitzero" doc:"Tags that the token must carry, with no other value."`
	Names []string   `json:"names,omitzero" doc:"Names that the token may be for: exact, or a prefix before '*'; a token without a name is for none of them."`
}

// TokenTag is a tag that a token must carry.
type TokenTag struct {
	Name  string `json:"name" required:"true" notEmpty:"true" doc:"Name of the tag."`
	Value string `json:"value" required:"true" notEmpty:"true" doc:"The one value that the token may carry for it."`
}

// TargetQualifier holds a target that must cover items.
type TargetQualifier struct {
	TargetRef Target `json:"targetRef" required:"true" doc:"The target."`
}

// PolicyTargetRef is a target that must cover the one of a policy: of a
// targetRef policy, or of one that flows down from gateways (§6.3).
type PolicyTargetRef struct {
	Kind TargetKind  `json:"kind" required:"true" enum:"Mesh|MeshSubset|Service|ServiceSubset|Proxy|MeshGatewayRoute|HTTPRoute|Gateway|GRPCRoute|MeshService|MeshServiceSubset|MeshHTTPRoute" doc:"What the policy may target."`
	Name string      `json:"name,omitzero" doc:"Name of the service, proxy, gateway or route; not with Mesh and MeshSubset."`
	Tags TagSelector `json:"tags,omitzero" doc:"Tags that the target of the policy must have; required with MeshSubset and ServiceSubset, nowhere else allowed."`
}

// The targets that only policies of §5 have.
const (
	TargetGateway   TargetKind = "Gateway"
	TargetGRPCRoute TargetKind = "GRPCRoute"
)

// Normalized returns the target in canonical spelling.
func (t *PolicyTargetRef) Normalized() Target {
	target := Target(*t)
	return target.normalized()
}

func (t *PolicyTargetRef) check(at Path, r *Report) {
	if t.Kind != TargetGateway && t.Kind != TargetGRPCRoute {
		target := Target(*t)
		target.check(at, TargetKinds(), r)
		return
	}
	if t.Name == "" {
		r.Errorf(at.Field("name"), "is required with kind %s", t.Kind)
	}
	if t.Tags != nil {
		r.Errorf(at.Field("tags"), "is not taken by kind %s; leave it out", t.Kind)
	}
}

// Normalized returns a target in canonical spelling, as policies are compared.
func (t *Target) Normalized() Target { return t.normalized() }

// maxRules bounds the rules of a role, and their conditions together: whether a
// role gives more than its author holds is found by comparing them pair by pair.
const maxRules = 1000

// maxTokenTags bounds the tags of a condition on a token, which itself carries no
// more.
const maxTokenTags = 64

// Validate implements Spec.
func (a *AccessRole) Validate(at Path, r *Report) {
	if len(a.Rules) == 0 {
		r.Errorf(at.Field("rules"), "is required: a role without rules grants nothing")
	}
	conditions := 0
	for i := range a.Rules {
		conditions += len(a.Rules[i].When)
	}
	if len(a.Rules) > maxRules || conditions > maxRules {
		r.Errorf(at.Field("rules"), "has %d rules with %d entries of `when`; a role has at most %d of each: write several roles", len(a.Rules), conditions, maxRules)
		return
	}
	for i := range a.Rules {
		a.Rules[i].check(at.Field("rules").Index(i), r)
	}
}

func (a *AccessRule) check(at Path, r *Report) {
	for i, kind := range a.Types {
		if _, known := kinds().exact[kind]; !known {
			r.Errorf(at.Field("types").Index(i), "%s", unknownKind(string(kind)))
		}
	}
	for i, name := range a.Names {
		if err := CheckName(name); err != nil {
			r.Errorf(at.Field("names").Index(i), "%s", err)
		}
	}
	if a.Mesh != nil && *a.Mesh != AnyValue {
		if err := CheckName(string(*a.Mesh)); err != nil {
			r.Errorf(at.Field("mesh"), "%s; '*' is any mesh", err)
		}
	}
	if len(a.Access) == 0 {
		r.Errorf(at.Field("access"), "is required: a rule without access grants nothing")
	}
	for i := range a.When {
		a.When[i].check(at.Field("when").Index(i), r)
	}
	if a.Mesh != nil {
		a.checkMesh(at, r)
	}
}

// checkMesh warns of what a rule with a mesh never grants (§6.2).
func (a *AccessRule) checkMesh(at Path, r *Report) {
	for i, kind := range a.Types {
		if d, known := kinds().exact[kind]; known && d.Scope == GlobalScoped {
			r.Findf(CodeRoleGrantsNothing, at.Field("types").Index(i), "is never granted: a %s is in no mesh; write a rule without `mesh` for it", kind)
		}
	}
	for i, access := range a.Access {
		switch access {
		case AccessGenerateUserToken, AccessGenerateZoneCPToken, AccessGenerateZoneToken:
			r.Findf(CodeRoleGrantsNothing, at.Field("access").Index(i), "is never granted by a rule with `mesh`; write a rule without one for it")
		}
	}
}

func (w *AccessWhen) check(at Path, r *Report) {
	if *w == (AccessWhen{}) {
		r.Errorf(at, "holds for everything: write a qualifier, or remove when")
	}
	w.Sources.check(at.Field("sources"), r)
	w.Destinations.check(at.Field("destinations"), r)
	w.Selectors.check(at.Field("selectors"), r)
	w.DPToken.check(at.Field("dpToken"), r)
	if w.TargetRef != nil {
		w.TargetRef.check(at.Field("targetRef"), r)
	}
	if w.To != nil {
		w.To.TargetRef.check(at.Field("to").Field("targetRef"), toTargets, r)
	}
	if w.From != nil {
		w.From.TargetRef.check(at.Field("from").Field("targetRef"), fromTargets, r)
	}
}

func (q *TokenQualifier) check(at Path, r *Report) {
	switch {
	case q == nil:
		return
	case len(q.Tags) == 0 && len(q.Names) == 0:
		r.Errorf(at, "needs at least one of tags and names")
	case len(q.Tags) > maxTokenTags:
		r.Errorf(at.Field("tags"), "has %d tags; a token carries at most %d", len(q.Tags), maxTokenTags)
	}
	for i, tag := range q.Tags {
		if tag.Value == AnyValue {
			r.Findf(CodeRoleGrantsNothing, at.Field("tags").Index(i).Field("value"), "never holds: '*' is compared as it is written, and no token carries it")
		}
	}
	for i, name := range q.Names {
		if strings.Contains(strings.TrimSuffix(name, AnyValue), AnyValue) || len(name) > maxName || name == "" {
			r.Errorf(at.Field("names").Index(i), "must be a name, or a prefix before '*'")
		}
	}
}

// Allows reports whether the qualifier permits tokens for dataplanes of that name;
// an empty name is a token for dataplanes of any name.
func (q *TokenQualifier) Allows(name string) bool {
	return len(q.Names) == 0 || slices.ContainsFunc(q.Names, func(pattern string) bool { return namePatternCovers(pattern, name) })
}

// NamesWithin reports whether every name that q permits is permitted by other.
func (q *TokenQualifier) NamesWithin(other *TokenQualifier) bool {
	return len(other.Names) == 0 || len(q.Names) > 0 && !slices.ContainsFunc(q.Names, func(name string) bool {
		return !slices.ContainsFunc(other.Names, func(pattern string) bool { return namePatternCovers(pattern, name) })
	})
}

// namePatternCovers reports whether a pattern covers a name, or every name of
// another pattern. "*" alone also covers the absent name.
func namePatternCovers(pattern, name string) bool {
	prefix, open := strings.CutSuffix(pattern, AnyValue)
	if !open {
		return name == pattern && name != ""
	}
	return strings.HasPrefix(name, prefix)
}

func (q *TagQualifier) check(at Path, r *Report) {
	if q == nil {
		return
	}
	if len(q.Match) == 0 {
		r.Errorf(at.Field("match"), "needs at least one tag")
	}
	checkTags(at.Field("match"), q.Match, r)
}

// SubjectType says whether a binding names a user or a group.
type SubjectType string

// The types of subjects.
const (
	SubjectUser  SubjectType = "User"
	SubjectGroup SubjectType = "Group"
)

// AccessRoleBinding gives roles to users and groups.
type AccessRoleBinding struct {
	Subjects []Subject `json:"subjects,omitzero" doc:"Users and groups that get the roles."`
	Roles    []string  `json:"roles,omitzero" doc:"Names of the roles they get."`
}

// Subject is a user or a group.
type Subject struct {
	Type SubjectType `json:"type" required:"true" enum:"User|Group" doc:"Whether the name is a user's or a group's."`
	Name string      `json:"name" required:"true" notEmpty:"true" doc:"Name of the user or group."`
}

// Validate implements Spec. A role that does not exist is no error here
// (§6.2).
func (b *AccessRoleBinding) Validate(at Path, r *Report) {
	if len(b.Subjects) == 0 {
		r.Errorf(at.Field("subjects"), "is required: at least one user or group")
	}
	subjects, roles := map[Subject]bool{}, map[string]bool{}
	for i, s := range b.Subjects {
		path := at.Field("subjects").Index(i)
		if subjects[s] {
			r.Warnf(path, "%s %s is listed twice", s.Type, doctree.Clip(s.Name))
		}
		subjects[s] = true
	}
	if len(b.Roles) == 0 {
		r.Errorf(at.Field("roles"), "is required: at least one role")
	}
	for i, role := range b.Roles {
		path := at.Field("roles").Index(i)
		if err := CheckName(role); err != nil {
			r.Errorf(path, "%s", err)
		} else if roles[role] {
			r.Warnf(path, "%s is listed twice", role)
		}
		roles[role] = true
	}
}

// accessControlKinds are the rows of §6.
func accessControlKinds() []Descriptor {
	return []Descriptor{
		{
			Kind: KindAccessRole, Plural: "access-roles", Scope: GlobalScoped, Owner: OwnedByEach, Class: AccessControl,
			Summary: "Rights on resources and tokens that bindings give to users and groups.",
			New:     func() Spec { return new(AccessRole) },
		},
		{
			Kind: KindAccessRoleBinding, Plural: "access-role-bindings", Scope: GlobalScoped, Owner: OwnedByEach, Class: AccessControl,
			Summary: "Gives access roles to users and groups.",
			New:     func() Spec { return new(AccessRoleBinding) },
		},
	}
}
