package resource

// gatewayKinds are the rows of gateways, their routes and the policies that
// flow down them (§5).
func gatewayKinds() []Descriptor {
	row := func(kind Kind, plural string, class Class, direction Direction, make func() Spec, summary string) Descriptor {
		return Descriptor{
			Kind: kind, Plural: plural, Scope: MeshScoped, Owner: OwnedByGlobal, Synced: true,
			Class: class, Direction: direction, Summary: summary, New: make,
		}
	}
	return []Descriptor{
		row(KindGateway, "gateways", Infrastructure, 0, func() Spec { return new(Gateway) },
			"An entry for traffic with its listeners, in the shape of the Gateway API."),
		row(KindHTTPRoute, "http-routes", Infrastructure, 0, func() Spec { return new(HTTPRoute) },
			"Routes HTTP requests of gateways or services by rules, in the shape of the Gateway API."),
		row(KindGRPCRoute, "grpc-routes", Infrastructure, 0, func() Spec { return new(GRPCRoute) },
			"Routes gRPC calls of gateways or services by rules, in the shape of the Gateway API."),
		row(KindAuthPolicy, "auth-policies", Inherited, OnRoute, func() Spec { return new(AuthPolicy) },
			"Authentication and authorization rules that flow down from a gateway to its listeners, routes and their rules."),
		row(KindRateLimitPolicy, "rate-limit-policies", Inherited, OnRoute, func() Spec { return new(RateLimitPolicy) },
			"Limits on requests that flow down from a gateway to its listeners, routes and their rules."),
		row(KindMeshGateway, "mesh-gateways", Infrastructure, 0, func() Spec { return new(MeshGateway) },
			"The listeners of the gateway dataplanes it selects."),
		row(KindMeshGatewayRoute, "mesh-gateway-routes", Infrastructure, 0, func() Spec { return new(MeshGatewayRoute) },
			"Routes the traffic of the gateway dataplanes it selects."),
	}
}
