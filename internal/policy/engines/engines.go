// Package engines lists the engines of the product, so that a zone, the global
// and the command match with the same ones.
//
// Guarantee: a kind added to the table of kinds is matched by all of them or by
// none. Non-goals: state.
package engines

import (
	"meridian/internal/policy"
	"meridian/internal/policy/inherit"
	"meridian/internal/policy/shadow"
	"meridian/internal/policy/specificity"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
)

// All returns the engines of policies that are matched to dataplanes: those of
// §3 and §4, without the permissions that are only tried.
func All() []policy.Engine { return shadow.Engines(whole()...) }

// whole are the engines with everything that is stored.
func whole() []policy.Engine { return []policy.Engine{specificity.Engine{}, targetref.New()} }

// Trial returns a follower that knows what would be in effect with the permissions that
// are only tried.
func Trial() *shadow.Trial { return shadow.New(whole()...) }

// Surveyors returns everything that advises on resources as they are written.
func Surveyors() []policy.Surveyor {
	return []policy.Surveyor{specificity.Engine{}, targetref.New(), inherit.Surveyor{}, shadow.Surveyor{}}
}

// Terms returns the terms under which Surveyors find a policy (see policy.TermLister).
func Terms(r *resource.Resource) []string { return specificity.Terms(r) }
