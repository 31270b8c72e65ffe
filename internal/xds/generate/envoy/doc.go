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
// In a mesh with mutual TLS inbounds accept certificates of the mesh alone, and outbounds
// those of the service that they are to. Routes decide about callers, or, where there are
// none, the listener does. An inbound is closed until something opens it; permissions that
// cannot be expressed deny every caller.
//
// Non-goals: matching, and certificates: Envoy reads them where its agent puts them.
package envoy
