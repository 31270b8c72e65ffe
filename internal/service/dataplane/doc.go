// Package dataplane is the DataplaneService of a zone: it registers a proxy's
// dataplane for as long as the proxy is connected, and streams the proxy its
// effective configuration.
//
// It guarantees:
//
//   - A dataplane is registered only by the holder of a token that covers its
//     mesh, its name and every one of its tags (§6.8), and each reason to refuse
//     has its own message.
//   - What a proxy registered outlives its stream, and a restart of the zone, by
//     the grace period and no longer. A proxy never removes or overwrites what an
//     operator applied.
//   - In a zone of several servers a registration is at one of them, where its proxy came
//     last; that server removes it, or one that looks after those of an absent server. It
//     moves with its proxy, and is never removed because of that.
//   - A server that is cut off from the others of its zone sends proxies to these, takes
//     none, and removes nothing.
//   - A proxy that drains is labelled so at once, and keeps its registration, its
//     configuration and its streams until it leaves.
//   - A zone that drains registers nothing, withdraws what is registered from others,
//     and ends the streams of proxies with a code and a reason that send them elsewhere.
//   - A proxy receives its configuration in full once, and then exactly what
//     differs from what it was last sent. A change that touches 100 dataplanes of
//     10,000 wakes 100 streams.
//   - A slow proxy delays no other and queues nothing: each stream has at most one
//     unacknowledged configuration, and the next one is made from the state at
//     that time.
//   - A stream ends, with the reason, within a second of its token being revoked
//     or expiring, of its dataplane being deleted, or of a newer connection of
//     the same dataplane, also to another server.
//
// Non-goals: deciding what is effective, which is internal/policy's; trusting what
// a proxy says beyond its token.
//
// One lock guards the table of proxies and the state of their sessions. It is
// never held while anything blocks.
//
// A zone holds ten thousand idle proxies, so its memory is what an idle one holds:
// two goroutines with small stacks, of which one waits for the end of the session
// and one receives. What needs a deep stack runs on goroutines that end: the
// registration, and the making of configurations by as many workers as there are
// processors. A send has a goroutine of its own, since a proxy that has stopped
// reading blocks it until the stream ends.
package dataplane
