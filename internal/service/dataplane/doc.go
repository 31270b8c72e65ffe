// Package dataplane is where proxies meet their zone: it registers a proxy's
// dataplane for as long as the proxy stays, and keeps the proxy at its effective
// configuration.
//
// It guarantees:
//
//   - A dataplane is registered only by the holder of a token that covers its
//     mesh, its name and every one of its tags (§6.8), and each reason
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
// One lock guards the table of proxies and what the sessions stand at. It is
// never held while anything blocks.
//
// There are ten thousand proxies and next to nothing happens, so that what an
// idle one holds is what a zone needs. Each has one goroutine, which receives and
// whose stack stays small: the registration is done aside; configurations are
// made by as many workers as there are processors; and each is sent by a
// goroutine that is gone when it is, since a proxy that has stopped reading holds
// up its send until the stream ends. The stream is ended from within by
// auth.EndOf, without which the goroutine that receives could not be.
package dataplane
