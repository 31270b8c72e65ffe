package resource

// Code names what is found in a document that is accepted, such as a target that selects
// nothing. It is the same in every release.
type Code string

// The codes of findings.
const (
	// CodeDocument is what one document alone shows, such as an entry that is listed twice.
	CodeDocument Code = "document"
	// CodeTargetNotFound is a target or reference to what does not exist.
	CodeTargetNotFound Code = "target-not-found"
	// CodeSelectsNothing is a target or selector that no dataplane has.
	CodeSelectsNothing Code = "selects-nothing"
	// CodeNeverMatches is a target that nothing can have.
	CodeNeverMatches Code = "never-matches"
	// CodeDeadPolicy is a policy that takes effect nowhere.
	CodeDeadPolicy Code = "dead-policy"
	// CodeOverridden is a policy that takes effect nowhere, on which conditions and
	// strategies of others may still depend.
	CodeOverridden Code = "overridden-policy"
	// CodeShadowedRule is a part of a policy that takes effect nowhere.
	CodeShadowedRule Code = "shadowed-rule"
	// CodeIdleOverride is an override that takes effect nowhere.
	CodeIdleOverride Code = "override-never-applies"
	// CodeSuperseded is a policy whose successor holds in its place (§4.11).
	CodeSuperseded Code = "both-generations"
	// CodeTie is an order that names or times alone decide (§3.4, §4.3).
	CodeTie Code = "tie"
	// CodeNoEffect is a field that does nothing where it stands.
	CodeNoEffect Code = "without-effect"
	// CodeBackendNotFound is a backend that the mesh does not define (§1.4).
	CodeBackendNotFound Code = "backend-not-found"
	// CodeDeniesAll is a mesh or policy that denies every caller.
	CodeDeniesAll Code = "denies-all"
	// CodeNoMTLS is a mesh without mutual TLS.
	CodeNoMTLS Code = "mesh-without-mtls"
	// CodeUnqualifiedFrom is a permission for every caller.
	CodeUnqualifiedFrom Code = "unqualified-from"
	// CodeRoleGrantsNothing is a part of a role that grants nothing.
	CodeRoleGrantsNothing Code = "role-grants-nothing"
	// CodeRoleUnbound is a role that no binding gives to a subject.
	CodeRoleUnbound Code = "role-unbound"
	// CodeRoleGrantsAll is a role that grants everything.
	CodeRoleGrantsAll Code = "role-grants-everything"
	// CodeNotAttached is a route that no gateway takes.
	CodeNotAttached Code = "not-attached"
)

// Explanation is what is known of a code, whatever resource it is found on.
type Explanation struct {
	Code Code
	// Severity is Error for what cannot be meant; the document is accepted all the same.
	Severity Severity
	// Title says what is found, in a few words.
	Title string
	// Fix says what to do.
	Fix string
}

var explanations = []Explanation{
	{CodeDocument, Warning, "A document that does not do what it says", "change the document as the message says"},
	{CodeTargetNotFound, Warning, "A reference to what does not exist", "correct the name, or apply what it names"},
	{CodeSelectsNothing, Warning, "A target or selector that no dataplane has", "correct the tag or its value, or remove the selector"},
	{CodeNeverMatches, Error, "A target that nothing can have", "remove one of the values that stand against each other"},
	{CodeDeadPolicy, Warning, "A policy that takes effect nowhere", "delete the policy, or make it more specific than those that hold in its place"},
	{CodeOverridden, Warning, "A policy of which nothing is left in effect", "compare with `meridian why` before deleting it: conditions and strategies of others may depend on it"},
	{CodeShadowedRule, Warning, "A part of a policy that takes effect nowhere", "remove it, or place it above what takes effect first"},
	{CodeIdleOverride, Warning, "An override that takes effect nowhere", "correct its target or its `when`, or remove it"},
	{CodeSuperseded, Warning, "A policy in whose place its successor holds", "move what it configures to the successor, and delete it"},
	{CodeTie, Info, "An order that names or times alone decide", "make one of them more specific, or merge them"},
	{CodeNoEffect, Warning, "A field that does nothing where it stands", "remove the field, or change what stands against it"},
	{CodeBackendNotFound, Error, "A backend that the mesh does not define", "add the backend to the mesh, or correct its name"},
	{CodeDeniesAll, Error, "Every caller is denied", "apply a permission for the callers that may connect"},
	{CodeNoMTLS, Warning, "A mesh without mutual TLS", "set `mtls.enabledBackend` of the mesh"},
	{CodeUnqualifiedFrom, Warning, "A permission for every caller", "name the services that may call"},
	{CodeRoleGrantsNothing, Warning, "A part of a role that grants nothing", "correct the rule, or remove what it never grants"},
	{CodeRoleUnbound, Info, "A role without subjects", "bind the role with an AccessRoleBinding, or delete it"},
	{CodeRoleGrantsAll, Warning, "A role that grants everything", "name the types, names or mesh that the role is for"},
	{CodeNotAttached, Warning, "A route that is attached to nothing", "correct the parent, or what its listeners allow"},
}

// Explanations lists all codes in the order of docs/policies/analysis.md.
func Explanations() []Explanation { return explanations }

// Explanation returns what is known of the code. An unknown one, such as none, is that of
// CodeDocument.
func (c Code) Explanation() *Explanation {
	for i := range explanations {
		if explanations[i].Code == c {
			return &explanations[i]
		}
	}
	return &explanations[0]
}
