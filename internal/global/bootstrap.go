package global

import (
	"meridian/internal/authn/token"
	"meridian/internal/controlplane"
)

// bootstrap is what a global begins with.
func (g *global) bootstrap() controlplane.Bootstrap {
	return controlplane.Bootstrap{Mesh: !g.cfg.SkipDefaultMesh, Uses: tokenUses()}
}

// tokenUses are the tokens that a global issues.
func tokenUses() []token.Use {
	return []token.Use{token.ForUser, token.ForZone, token.ForDataplane, token.ForServer}
}
