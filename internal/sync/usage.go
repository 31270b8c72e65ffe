package zonesync

// Usage is what a server keeps for its zones, as far as it grows with them or with what is
// written (I12).
type Usage struct {
	// Streams counts the open streams.
	Streams int
	// FeedBytes is what the feed keeps for zones to resume from, and FeedLimit its bound.
	FeedBytes, FeedLimit int
	// UnacknowledgedBytes is what zones were sent and have not acknowledged, together; the
	// most of it is not in this process any more.
	UnacknowledgedBytes uint64
}

// Usage returns what the server keeps for its zones now.
func (s *Server) Usage() Usage {
	u := Usage{FeedLimit: s.feed.limit}
	s.feed.mu.RLock()
	u.FeedBytes = s.feed.bytes
	s.feed.mu.RUnlock()
	for _, c := range s.dispatcher.streams() {
		u.Streams++
		c.mu.Lock()
		u.UnacknowledgedBytes += c.pub.sent - c.pub.consumed
		c.mu.Unlock()
	}
	return u
}
