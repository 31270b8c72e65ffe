package resource

// targetRefKinds are the rows of the policies of §4.
func targetRefKinds() []Descriptor {
	row := func(kind Kind, plural string, direction Direction, make func() Spec, summary string, spellings ...Kind) Descriptor {
		return Descriptor{
			Kind: kind, Plural: plural, Spellings: spellings, Scope: MeshScoped, Owner: OwnedByGlobal, Synced: true,
			Class: TargetRef, Direction: direction, Summary: summary, New: make,
		}
	}
	return []Descriptor{
		row(KindMeshTrafficPermission, "mesh-traffic-permissions", OnInbound, func() Spec { return new(MeshTrafficPermission) },
			"Says which callers inbounds allow and which they deny, by the first rule that matches the caller."),
		row(KindMeshTrafficRoute, "mesh-traffic-routes", OnOutbound, func() Spec { return new(MeshTrafficRoute) },
			"Sends the traffic of outbounds elsewhere, whole, in weighted shares or by properties of HTTP requests."),
		row(KindMeshCircuitBreaker, "mesh-circuit-breakers", OnInbound|OnOutbound, func() Spec { return new(MeshCircuitBreaker) },
			"Bounds the load on a service and ejects endpoints whose real traffic fails."),
		row(KindMeshHealthCheck, "mesh-health-checks", OnOutbound, func() Spec { return new(MeshHealthCheck) },
			"Probes the endpoints behind outbounds and keeps traffic away from those that fail."),
		row(KindMeshHTTPFault, "mesh-http-faults", OnInbound|OnOutbound, func() Spec { return new(MeshHTTPFault) },
			"Delays, aborts or slows down a share of HTTP requests, to test how callers cope."),
		row(KindMeshRequestRetry, "mesh-request-retries", OnOutbound, func() Spec { return new(MeshRequestRetry) },
			"Repeats failed requests and connection attempts of outbounds."),
		row(KindMeshUpstreamTimeout, "mesh-upstream-timeouts", OnOutbound, func() Spec { return new(MeshUpstreamTimeout) },
			"Bounds how long outbounds wait for a destination to connect, answer and stay active.", "UpstreamTimeout"),
		row(KindMeshRateLimit, "mesh-rate-limits", OnInbound|OnOutbound, func() Spec { return new(MeshRateLimit) },
			"Bounds how many requests or connections are accepted in an interval."),
		row(KindMeshTracing, "mesh-tracings", OnDataplane, func() Spec { return new(MeshTracing) },
			"Sends the traces of dataplanes to tracing backends."),
		row(KindMeshLogging, "mesh-loggings", OnInbound|OnOutbound, func() Spec { return new(MeshLogging) },
			"Sends access logs of inbounds and outbounds to logging backends."),
		row(KindMeshMetrics, "mesh-metrics", OnDataplane, func() Spec { return new(MeshMetrics) },
			"Chooses the metrics of dataplanes and where they go."),
		row(KindMeshEnvoyTemplate, "mesh-envoy-templates", OnDataplane, func() Spec { return new(MeshEnvoyTemplate) },
			"Changes the generated proxy configuration of dataplanes."),
		row(KindMeshVirtualOutbound, "mesh-virtual-outbounds", OnDataplane, func() Spec { return new(MeshVirtualOutbound) },
			"Gives the services that dataplanes consume host names and ports made from tags."),
	}
}
