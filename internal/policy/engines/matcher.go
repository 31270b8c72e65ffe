package engines

import (
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/inherit"
)

// NewMatcher returns a matcher that answers for every kind of policy: with all
// engines, and followed by the paths of the inherited policies (§5) and by what permissions
// that are only tried would do.
// It holds no resources until Reset.
func NewMatcher(compiler *condition.Compiler) *policy.Matcher {
	m := policy.NewMatcher(All()...)
	for _, f := range Followers(compiler) {
		m.Following(f)
	}
	return m
}

// Followers returns new ones of those that NewMatcher has.
func Followers(compiler *condition.Compiler) []policy.Follower {
	return []policy.Follower{inherit.New(compiler), Trial()}
}
