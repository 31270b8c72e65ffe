// Package agent runs beside an application and connects its stock xDS client to a zone:
// it registers the application's dataplane and relays xDS streams between a unix socket
// and the zone, adding TLS and the dataplane token.
//
// It guarantees:
//
//   - The socket is for its owner only (mode 0600), and the bootstrap file that names it
//     is replaced atomically, after the socket accepts connections.
//   - The token is read from its file for every connection to the zone, so that it can be
//     replaced while the agent runs.
//   - Streams are relayed message by message, as bytes, with at most one message in each
//     direction held: a slow end slows the other, and nothing queues.
//   - A stream that the zone ends is ended for the client with the zone's status, so
//     that the client connects again by its own rules. While the zone cannot be reached,
//     the registration is tried again in growing intervals; what cannot succeed by
//     waiting ends the agent.
//   - When its context ends, Run has the zone withdraw the dataplane from other proxies
//     at once. Streams of its own clients are served until they close them, for the
//     drain time at most; then the registration ends, and Run.
//
// With an Envoy to run, it also guarantees:
//
//   - Envoy is of a release that is served, and runs until the agent ends; when it ends
//     before, it is started again in growing intervals. It never outlives the agent.
//   - The dataplane is registered as draining for as long as Envoy is not ready, so that
//     others send it no requests then.
//   - When the context of Run ends, Envoy asks its callers to go elsewhere, and is stopped
//     when nothing has been under way for a second, or the drain time is over.
//   - Envoy has its metrics, and those of applications beside it, made by the agent: which
//     ones, the zone says with each request, so that the agent keeps no state of it.
//
// Non-goals: looking into what is relayed; starting the application.
package agent
