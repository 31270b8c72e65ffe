// Package grpc makes the xDS resources of one dataplane for stock gRPC, without a
// proxy beside the program: what its policies come to, as listeners, routes, clusters
// and endpoints.
//
// Names. A client's target is xds:///SERVICE, for the outbound to the service with the
// lowest port, or xds:///SERVICE:PORT. Both are listeners that refer to the routes
// out_SERVICE_PORT, which refer to clusters cl_SERVICE_HASH, one for each destination,
// which refer to endpoints ep_SERVICE_HASH, one for each selector in a mesh. A server
// that listens on ADDRESS:PORT asks for the listener in/ADDRESS:PORT.
//
// Guarantees. Equal input gives equal bytes. Every resource passes the validation of
// its protocol buffers and is accepted by grpc-go. Every value that a policy set has
// an origin that names the policy and its field. A route that cannot be expressed
// fails calls; it never sends them elsewhere.
//
// Non-goals: matching, and identity: in a mesh with mutual TLS nothing is made
// (Withheld says why).
package grpc
