// Package dial connects a client to one of several servers: the command to a
// control plane, a zone to its global, a joining server to a cluster.
//
// Guarantees. The order in which servers are tried has one definition, Rotate: a
// server that was left comes last. A failure is explained by its cause, from Log,
// not by the text that a transport makes of it.
//
// Non-goals: repeating a request. Only its sender knows whether it may be sent
// again.
package dial
