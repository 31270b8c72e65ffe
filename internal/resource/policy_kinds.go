package resource

// sourceDestinationKinds are the rows of the policies of §3.
func sourceDestinationKinds() []Descriptor {
	row := func(kind Kind, plural string, direction Direction, make func() Spec, summary string) Descriptor {
		return Descriptor{
			Kind: kind, Plural: plural, Scope: MeshScoped, Owner: OwnedByGlobal, Synced: true,
			Class: SourceDestination, Direction: direction, Summary: summary, New: make,
		}
	}
	return []Descriptor{
		row(KindTrafficPermission, "traffic-permissions", OnInbound, func() Spec { return new(TrafficPermission) },
			"Says which callers the inbounds of a destination accept."),
		row(KindFaultInjection, "fault-injections", OnInbound, func() Spec { return new(FaultInjection) },
			"Delays, aborts or slows down a share of the requests to a destination, to test how its callers cope."),
		row(KindRateLimit, "rate-limits", OnInbound, func() Spec { return new(RateLimit) },
			"Bounds how many requests a destination accepts from its callers in an interval."),
		row(KindTrafficRoute, "traffic-routes", OnOutbound, func() Spec { return new(TrafficRoute) },
			"Sends the traffic for a destination elsewhere, whole, in weighted shares or by properties of HTTP requests."),
		row(KindTrafficLog, "traffic-logs", OnOutbound, func() Spec { return new(TrafficLog) },
			"Sends the access log of the traffic to a destination to a logging backend of the mesh."),
		row(KindHealthCheck, "health-checks", OnOutbound, func() Spec { return new(HealthCheck) },
			"Probes the endpoints of a destination and keeps traffic away from those that fail."),
		row(KindCircuitBreaker, "circuit-breakers", OnOutbound, func() Spec { return new(CircuitBreaker) },
			"Bounds the load on a destination and ejects endpoints whose real traffic fails."),
		row(KindRetry, "retries", OnOutbound, func() Spec { return new(Retry) },
			"Repeats failed requests and connection attempts to a destination."),
		row(KindTimeout, "timeouts", OnOutbound, func() Spec { return new(Timeout) },
			"Bounds how long a source waits for a destination to connect, answer and stay active."),
		row(KindTrafficTrace, "traffic-traces", OnDataplane, func() Spec { return new(TrafficTrace) },
			"Sends the traces of dataplanes to a tracing backend of the mesh."),
		row(KindProxyTemplate, "proxy-templates", OnDataplane, func() Spec { return new(ProxyTemplate) },
			"Changes the generated proxy configuration of dataplanes."),
		row(KindVirtualOutbound, "virtual-outbounds", OnDataplane, func() Spec { return new(VirtualOutbound) },
			"Gives the services that dataplanes consume host names and ports made from tags."),
	}
}
