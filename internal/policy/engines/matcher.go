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
	return policy.NewMatcher(All()...).Following(inherit.New(compiler)).Following(Trial())
}
