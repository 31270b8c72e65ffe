// Package serve is the server's side of the xDS transport protocol, as a state
// machine without a network or a clock: what one client of one stream was sent, has
// accepted, and is to be sent next. It speaks both variants, state of the world and
// incremental ("delta").
//
// A Stream takes the client's requests and the set of resources that its proxy is
// to have, and says what to send. It looks at where the client is and where it
// should be, not at a script of phases, so that whatever the client does, and
// however often the set changes meanwhile, the next response leads to the latest set.
//
// It guarantees:
//
//   - A request with an outdated nonce, or none, is no answer to a response; its
//     subscriptions take effect all the same.
//   - Each type has at most one unanswered response, and what changes meanwhile is
//     in the next one once.
//   - A listener or route configuration is sent only once the client has accepted
//     every change of the clusters it refers to, as far as the client subscribes to
//     them. Endpoints do not wait for clusters: Envoy accepts a cluster only when it
//     has them.
//   - Routes that replace others send a client that follows references, as gRPC does, to
//     no cluster that it does not have with its endpoints: routes that match nothing
//     introduce such clusters first. A client that takes longer than 5 s for them, or
//     refuses these routes, is sent the new ones in any case.
//   - Such routes also name the clusters that the client's calls have left, until Drain has
//     passed since. A cluster that they do not name any more is introduced again once the
//     client has unsubscribed from it, or 5 s later.
//   - A listener is removed after everything else has been accepted; a cluster when no
//     listener or route configuration that the client has refers to it, and Drain has
//     passed since.
//   - A cluster that is sent has its endpoints sent after it, also unchanged ones, and
//     a listener its routes.
//   - What a client rejects it keeps in the version it had. If a response with several
//     changes is rejected, each is sent once more by itself, which finds those at
//     fault; a version found so is not sent to that proxy again, also not on
//     another stream (Memory).
//   - No response is larger than stock clients receive. Of clusters and listeners in the
//     variant state of the world, which one response has all of, what does not fit is
//     withheld by name, and the client keeps the version that it had.
//   - Endpoints that do not exist are an empty assignment; other names that do not
//     exist are removed resources where the protocol can say so. A client that rejects
//     that is not told again.
//   - A client that connects again with the versions it has is sent what differs, and
//     that what it has no more is removed. Only the incremental protocol can say
//     which versions those are; in the other one everything is sent again, because a
//     client may have dropped a resource without a sign of it in its version. Such a
//     client continues where its last stream ended, if Memory has that (Leave), or its
//     version carries it: that of clusters and of routes to them does.
//     Endpoints that it brings along and that do not exist any more stay until nothing
//     of the client can refer to them.
//
// Non-goals: authentication, deciding what a proxy is to have, sending.
package serve
