package global

import (
	"context"
	"fmt"

	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/commit"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/server"
)

// defaultMesh is the mesh that a new global begins with (§1.4).
var defaultMesh = resource.Key{Kind: resource.KindMesh, Name: "default"}

// bootstrap writes what a global needs before anybody can use it: the default
// access rules, keys, the admin token and, in a store that has never had any
// mesh, the default one. It is for the leader. Each write is made on the
// condition that nobody else has made it, so that a leader that falls in the
// middle and the next one do not both count.
func (g *global) bootstrap(ctx context.Context) error {
	fresh := g.store.View().Count(defaultMesh.Kind) == 0 && g.ring.AdminToken() == ""
	if fresh && !g.cfg.SkipDefaultMesh {
		if err := g.createDefaultMesh(ctx); err != nil {
			return err
		}
	}
	rules := authz.Defaults{Kubernetes: g.cfg.Environment == server.EnvironmentKubernetes}
	if err := rules.Ensure(ctx, g.store.View, g.writer, g.now); err != nil {
		return err
	}
	// The admin token comes last, so that a start cut off before the mesh was
	// written is still a first start.
	return g.ring.Ensure(ctx, g.writer, tokenUses()...)
}

// missing names something of what a global begins with that is not there, or
// nothing.
func (g *global) missing() string {
	view := g.store.View()
	if _, ok := view.Get(resource.Key{Kind: resource.KindAccessRole, Name: rbac.AdminRole}); !ok {
		return "the role " + rbac.AdminRole
	}
	for _, use := range tokenUses() {
		if !g.ring.Has(use) {
			return "a signing key for " + string(use) + "s"
		}
	}
	if g.ring.AdminToken() == "" {
		return "the admin token"
	}
	return ""
}

// tokenUses are the tokens that a global issues.
func tokenUses() []token.Use {
	return []token.Use{token.ForUser, token.ForZone, token.ForDataplane, token.ForServer}
}

func (g *global) createDefaultMesh(ctx context.Context) error {
	mesh, _, err := resource.Build(resource.Meta{Key: defaultMesh}, []byte("{}"))
	if err != nil {
		return fmt.Errorf("create the default mesh: %w", err)
	}
	return commit.CreateMissing(ctx, g.writer, g.now(), mesh)
}
