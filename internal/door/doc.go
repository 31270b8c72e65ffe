// Package door is where proxies meet their zone: it registers a proxy's
// dataplane for as long as the proxy stays, and keeps the proxy at its effective
// configuration.
//
// It guarantees:
//
//   - A dataplane is registered only by the holder of a token that covers its
//     mesh, its name and every one of its tags (SEMANTICS §6.8), and each reason
//     to refuse has its own message.
//   - What a proxy registered outlives its stream, and a restart of the zone, by
//     the grace period and no longer. What an operator applied is never removed
//     or overwritten by a proxy.
//   - A proxy gets its configuration in full once and then exactly what differs
//     from what it was last sent. A change that touches 100 dataplanes of 10,000
//     wakes 100 streams.
//   - A slow proxy holds nobody back and piles nothing up: each stream has at
//     most one unanswered configuration, and the next one is made from the state
//     of the moment it is made.
//   - A stream ends, with the reason, within a second of its token being revoked
//     or expiring, of its dataplane being deleted, or of a newer connection of
//     the same dataplane.
//
// It refuses to decide what is effective, which is internal/policy's, and to
// trust anything a proxy says beyond its token.
//
// One lock guards the table of proxies. It is never held while anything blocks:
// who waits, for the store, the matcher or a proxy, does so as the goroutine of
// one stream. Sending is a goroutine of its own, since only the end of a stream
// frees a send to a proxy that has stopped reading.
package door
