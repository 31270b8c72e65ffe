package generate

import (
	"encoding/json"
	"fmt"
	"reflect"

	"meridian/internal/policy"
	"meridian/internal/policy/permission"
	"meridian/internal/policy/shadow"
	"meridian/internal/resource"
	"meridian/internal/xds/world"
)

// Tried are the permissions on a dataplane as if those that are only tried were in effect.
// Immutable.
type Tried struct{ Rules []policy.Rule }

// TriedOn returns what is tried on a dataplane; nil for nothing.
func TriedOn(m *policy.Matcher, key resource.Key) (*Tried, error) {
	trial, ok := policy.FollowerOf[*shadow.Trial](m)
	if !ok {
		return nil, nil
	}
	rules, tried, err := trial.Rules(key)
	if err != nil || !tried {
		return nil, err
	}
	return &Tried{rules}, nil
}

// Trial is what is tried on the attachments of one address.
type Trial struct {
	// Lists are those of the attachments as Permissions returns them.
	Lists []permission.List
	// Stamp tells trials apart: another one of what is in effect, and of what is tried, has
	// another stamp.
	Stamp string
}

// TrialOf returns what is tried on the attachments of one address, where that is not what
// is in effect; nil for nothing. lists are those in effect.
func TrialOf(mtls bool, lists []permission.List, tried *Tried, at []policy.Attachment) (*Trial, error) {
	if tried == nil {
		return nil, nil
	}
	would := Permissions(mtls, tried.Rules, at)
	if reflect.DeepEqual(lists, would) {
		return nil, nil
	}
	text, err := json.Marshal([2][]permission.List{lists, would})
	if err != nil {
		return nil, fmt.Errorf("spell permissions: %w", err)
	}
	return &Trial{would, world.Hash(string(text))}, nil
}
