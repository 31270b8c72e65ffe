package authn

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// maxReasons is how many access rules are recorded for one request.
const maxReasons = 16

// reasons are the access rules that permitted a request. They are safe for
// concurrent use.
type reasons struct {
	mu    sync.Mutex
	rules []string // guarded by mu
	// exceptions are what the request was exempted from. Guarded by mu.
	exceptions []string
}

type reasonsKey struct{}

// CollectReasons returns a context in which the access rules that permit a request
// are recorded, for the audit log.
func CollectReasons(ctx context.Context) context.Context {
	return context.WithValue(ctx, reasonsKey{}, &reasons{})
}

// AddReason records an access rule that permits a request. Without CollectReasons
// it does nothing.
func AddReason(ctx context.Context, rule fmt.Stringer) {
	r, ok := ctx.Value(reasonsKey{}).(*reasons)
	if !ok {
		return
	}
	text := rule.String()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rules) < maxReasons && !slices.Contains(r.rules, text) {
		r.rules = append(r.rules, text)
	}
}

// SetExceptions records what a request was exempted from, in place of what was recorded
// before. Without CollectReasons it does nothing.
func SetExceptions(ctx context.Context, exceptions ...string) {
	r, ok := ctx.Value(reasonsKey{}).(*reasons)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exceptions = exceptions
}

// Reasons returns what a request was exempted from, and then the access rules that
// permitted it, in the order in which they were evaluated.
func Reasons(ctx context.Context) []string {
	r, ok := ctx.Value(reasonsKey{}).(*reasons)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.exceptions, r.rules)
}
