package authn

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// maxGrounds is how many rules are remembered of one request.
const maxGrounds = 16

// grounds are the rules that allowed a request. They are safe for concurrent
// use.
type grounds struct {
	mu    sync.Mutex
	rules []string // guarded by mu
}

type groundsKey struct{}

// CollectGrounds returns a context in which the rules that allow a request are
// remembered, for the record.
func CollectGrounds(ctx context.Context) context.Context {
	return context.WithValue(ctx, groundsKey{}, &grounds{})
}

// AddGround remembers a rule that allows a request, where they are collected.
func AddGround(ctx context.Context, rule fmt.Stringer) {
	g, ok := ctx.Value(groundsKey{}).(*grounds)
	if !ok {
		return
	}
	text := rule.String()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.rules) < maxGrounds && !slices.Contains(g.rules, text) {
		g.rules = append(g.rules, text)
	}
}

// Grounds returns the rules that allowed a request, in the order they were asked.
func Grounds(ctx context.Context) []string {
	g, ok := ctx.Value(groundsKey{}).(*grounds)
	if !ok {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.rules)
}
