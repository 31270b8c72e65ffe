// Package raftnet connects the servers of a cluster: raft's messages and calls
// between servers, over mutually authenticated TLS 1.3 on one port.
//
// Guarantees. A message reaches the server that is meant, of the same cluster, or
// none: the handshake names both. Heartbeats are handled in raft's main loop
// (hashicorp/raft#695). A leader can tell that a majority followed it after a
// given moment (Endpoint). A server that does not answer at its address in the log
// is tried at the one that gossip knows. Raft is told at once what a leader has answered
// to be committed, of the entries that it has from that leader. Neither end of a pipeline
// waits for the other for ever.
//
// Non-goals. It does not decide who is a member, and does not encrypt calls again
// inside the connection. There is no network without TLS, except inside one
// process.
package raftnet
