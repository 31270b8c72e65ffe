package global

import (
	"context"

	"meridian/internal/authn/token"
	"meridian/internal/controlplane"
	"meridian/internal/rbac"
	"meridian/internal/resource"
)

// bootstrap writes what a global needs before its first use. It is for the leader.
func (g *global) bootstrap(ctx context.Context) error {
	return g.Bootstrap(ctx, controlplane.Bootstrap{Mesh: !g.cfg.SkipDefaultMesh, Uses: tokenUses()})
}

// missing names something of what a global begins with that is not there, or
// nothing.
func (g *global) missing() string {
	view := g.Store.View()
	if _, ok := view.Get(resource.Key{Kind: resource.KindAccessRole, Name: rbac.AdminRole}); !ok {
		return "the role " + rbac.AdminRole
	}
	for _, use := range tokenUses() {
		if !g.Keys.Has(use) {
			return "a signing key for " + string(use) + "s"
		}
	}
	if g.Keys.AdminToken() == "" {
		return "the admin token"
	}
	return ""
}

// tokenUses are the tokens that a global issues.
func tokenUses() []token.Use {
	return []token.Use{token.ForUser, token.ForZone, token.ForDataplane, token.ForServer}
}
