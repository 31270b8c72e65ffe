// Package envoy makes the xDS resources of one dataplane for an Envoy beside its
// application: what its policies come to, as listeners, routes, clusters and endpoints.
//
// Names. An inbound is the listener in_PORT, with routes of that name where it speaks
// HTTP, and the cluster local_PORT, which is the application. An outbound is the listener
// out_SERVICE_PORT on a local port, with routes of that name where the service speaks
// HTTP, and a cluster cl_SERVICE_HASH for each destination, which refers to endpoints
// ep_SERVICE_HASH, one for each selector in a mesh. No name has a colon: names are
// parts of the names of statistics.
//
// Guarantees. Equal input gives equal bytes. Every resource passes the validation of
// its protocol buffers and is accepted by Envoy. Every value that a policy set has an
// origin that names the policy and its field. A route that cannot be expressed fails
// requests; it never sends them elsewhere. What policies often change is in routes and
// clusters, not in listeners, whose connections a change drains.
//
// Non-goals: matching, and identity: in a mesh with mutual TLS nothing is made
// (Withheld says why).
package envoy
