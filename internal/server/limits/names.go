package limits

// Names lists the limits, as in metrics and in what a refused caller is told.
func Names() []string {
	return []string{
		LimitConnections, LimitAddress, LimitUnauthenticated, LimitConnects, LimitCalls, LimitAborts, LimitWatches, LimitZoneWaits,
		LimitWriteRequests, LimitWriteBytes, LimitAllWriteRequests, LimitAllWriteBytes, LimitXDS, LimitXDSToken,
	}
}
