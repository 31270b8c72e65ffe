package resource

// MeshEnvoyTemplate changes the proxy configuration of whole dataplanes.
type MeshEnvoyTemplate struct {
	OwnPolicy[EnvoyTemplate, *EnvoyTemplate]
}

// MeshVirtualOutbound gives services host names and ports by templates.
type MeshVirtualOutbound struct {
	OwnPolicy[VirtualOutboundParts, *VirtualOutboundParts]
}

// VirtualOutboundParts is the configuration of a MeshVirtualOutbound, of which
// a policy may write any part: the others come from less specific policies.
type VirtualOutboundParts struct {
	VirtualOutboundConf
}

func (c *VirtualOutboundParts) check(at Path, r *Report) { c.checkParts(at, r) }
