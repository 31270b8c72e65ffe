package resource

// MeshEnvoyTemplate changes the proxy configuration of whole dataplanes.
type MeshEnvoyTemplate struct {
	OwnPolicy[EnvoyTemplate, *EnvoyTemplate, EnvoyTemplateBlock, *EnvoyTemplateBlock]
}

// EnvoyTemplateBlock is a block of defaults or overrides of a
// MeshEnvoyTemplate.
type EnvoyTemplateBlock struct {
	BlockHead
	EnvoyTemplate
}

func (b *EnvoyTemplateBlock) parts() (*BlockHead, checker) { return &b.BlockHead, &b.EnvoyTemplate }

// MeshVirtualOutbound gives services host names and ports by templates.
type MeshVirtualOutbound struct {
	OwnPolicy[VirtualOutboundParts, *VirtualOutboundParts, VirtualOutboundBlock, *VirtualOutboundBlock]
}

// VirtualOutboundParts is the configuration of a MeshVirtualOutbound, of which
// a policy may write any part: the others come from less specific policies.
type VirtualOutboundParts struct {
	VirtualOutboundConf
}

func (c *VirtualOutboundParts) check(at Path, r *Report) { c.checkParts(at, r) }

// VirtualOutboundBlock is a block of defaults or overrides of a
// MeshVirtualOutbound.
type VirtualOutboundBlock struct {
	BlockHead
	VirtualOutboundParts
}

func (b *VirtualOutboundBlock) parts() (*BlockHead, checker) {
	return &b.BlockHead, &b.VirtualOutboundParts
}
