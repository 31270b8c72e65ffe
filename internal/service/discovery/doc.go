// Package discovery is the xDS service of a zone: the aggregated discovery service by
// which proxies receive their configuration, in both variants of the protocol.
//
// It guarantees:
//
//   - A stream is for one dataplane, which its first request names as the node
//     "MESH/NAME" and its token covers (§6.8). It ends within a second of the token
//     being revoked or expiring, and when the dataplane is deleted or becomes one
//     that the token does not cover.
//   - A stream holds the registration of its dataplane, together with the other
//     streams of that dataplane.
//   - A change wakes the streams that it touches and no other. A slow proxy delays no
//     other and queues nothing: what it is sent is made when it has answered.
//   - Nothing is sent before Run: by then the zone holds what it stored.
//   - What a client sends is bounded: the message by the server, names by package
//     serve, streams per dataplane here. So is what is held for all streams, with a share
//     for each token: what is unanswered and what was rejected counts, too. Requests and
//     updates take turns between tokens.
//
// Non-goals: what is sent, which the source makes, and in which order, which package
// serve decides.
//
// As in package dataplane, an idle stream has two goroutines with small stacks: one
// waits for its end, one receives. As many workers as processors make what is sent;
// a send has a goroutine of its own while it lasts.
package discovery
