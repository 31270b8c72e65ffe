package policy

import (
	"meridian/internal/resource"
)

// Engine chooses and orders the policies of one generation (§3, §4).
// It never merges: the fold does. Implementations are stateless and safe for
// concurrent use; they must not modify what they are given.
type Engine interface {
	// Kinds are the kinds the engine answers for. Two engines never share one.
	Kinds() []resource.Kind
	// Compile prepares one policy: where it can reach, what else it was
	// compiled from, and whatever the engine needs to rank it quickly. It is
	// called again when one of Policy.Depends changes, and, without a view, to
	// have once more what was compiled before and depends on nothing.
	Compile(view View, r *resource.Resource) *Policy
	// Rules decides what one kind does on one attachment. Candidates come in no
	// particular order, without duplicates, and are a superset of the policies
	// that reach the attachment: the engine checks each, its type of attachment
	// too, with Policy.Reaches or more precisely. It returns nothing when no policy matches; one rule for
	// the attachment; and one more for every route of it that has rules of its
	// own (§4.6), with Target.Attachment.Route set.
	//
	// The result may depend on the dataplane's name only where a candidate's
	// Reach names it, because dataplanes of equal shape share one computation.
	Rules(q *Query) []Rule
}

// Adviser has something to say about resources as they are written.
type Adviser interface {
	// Advise reports what an author may want to know about a resource in the
	// context of the other resources. Severity Error is never used: advice does
	// not refuse.
	Advise(view View, r *resource.Resource) []resource.Problem
}

// Warner is an Adviser that can leave out the notes, and what they take to find: those of
// policies that tie take a look at others.
type Warner interface {
	Adviser
	// Warnings reports what Advise does, but for notes.
	Warnings(view View, r *resource.Resource) []resource.Problem
}

// Judge is an Adviser that knows conditions of stored policies that only what stands
// around them shows.
type Judge interface {
	Adviser
	// Conditions returns those that hold.
	Conditions(r *resource.Resource) []Condition
}

// Surveyor advises on many resources at the cost of one look at everything.
type Surveyor interface {
	// Survey returns an adviser for one view. It is used for one batch and not
	// concurrently.
	Survey(view View) Adviser
}

// Superseder is an Engine with kinds that supersede kinds of another one: where
// both take effect on one attachment, the successor holds for all of it (§4.11).
type Superseder interface {
	// Successors returns the engine's kinds by the sibling that each supersedes. A
	// successor has no successor.
	Successors() map[resource.Kind]resource.Kind
}

// Query is one question to an engine.
type Query struct {
	Mesh       *Mesh
	Dataplane  *Dataplane
	Attachment *Attachment
	Kind       resource.Kind
	// Candidates is valid during the call only: the slice is reused.
	Candidates []*Policy
	// Explain asks for Rule.Unused: a reason for every candidate without a
	// step. The candidates are then all policies of the kind that select the
	// dataplane, also those that reach other attachments only. When false, steps
	// that cannot show in the result may be left out.
	Explain bool
}

// Policy is a policy prepared by its engine.
type Policy struct {
	Resource *resource.Resource
	// Reach says where the policy can take effect. Its dataplane part is exact
	// (it defines "selects the dataplane"); its attachment part may be wider
	// than the truth, never narrower.
	Reach []Reach
	// Depends are the other resources Compile looked at, present or not.
	Depends []resource.Key
	// Data is the engine's own.
	Data any
}

// Key returns the policy's identity.
func (p *Policy) Key() resource.Key { return p.Resource.Key() }

// Selects reports whether the policy selects a dataplane.
func (p *Policy) Selects(dp *Dataplane) bool {
	for i := range p.Reach {
		if p.Reach[i].selects(dp) {
			return true
		}
	}
	return false
}

// Reaches reports whether the policy can take effect on an attachment of a
// dataplane.
func (p *Policy) Reaches(dp *Dataplane, a *Attachment) bool {
	for i := range p.Reach {
		if p.Reach[i].includes(a) && p.Reach[i].selects(dp) {
			return true
		}
	}
	return false
}

// Reach is one area in which a policy can take effect: some dataplanes, and
// some attachments on them. All conditions must hold.
type Reach struct {
	// Name, when not empty, is the one dataplane it is about.
	Name string
	// Member must match the tags of one inbound, or the gateway's. Empty
	// matches every dataplane.
	Member resource.TagSelector
	// GatewayOnly leaves out dataplanes that are not gateways.
	GatewayOnly bool
	// Sends, when not empty, must match one of the dataplane's outbounds.
	Sends resource.TagSelector

	// On is the type of attachment.
	On AttachmentType
	// Attachment must match the tags of the inbound or outbound. Empty matches
	// all of the type.
	Attachment resource.TagSelector
}

func (r *Reach) selects(dp *Dataplane) bool {
	if (r.Name != "" && r.Name != dp.Name) || (r.GatewayOnly && !dp.Gateway) {
		return false
	}
	return (len(r.Member) == 0 || matchesAny(r.Member, dp.Members)) && (len(r.Sends) == 0 || dp.sendsTo(r.Sends))
}

func (r *Reach) includes(a *Attachment) bool {
	return r.On == a.Type && r.Attachment.Matches(a.Tags)
}
