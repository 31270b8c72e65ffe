// Package consensus makes a store durable and, with several servers, replicated:
// one raft node around a store.Store.
//
// Guarantees. A write that Propose acknowledged is on the disks of a majority
// and survives any crash (§7.1); a batch is applied completely or not at all; the
// revision of a write is its raft index (§7.2). Read is a linearizable read point:
// a view taken after it returns holds every write that was acknowledged before it
// was called. When storage fails or is damaged, the process ends with the cause;
// after a failed write a restart rejoins.
//
// Any server takes writes and reads: a follower sends the decided batch to the
// leader, or asks it for a read point, and waits until its own store has come as
// far. A change of leader is a delay; so is the stop of a leader, which transfers
// leadership first.
//
// Non-goals. It does not look inside a command (package store encodes and applies
// them), does not decide who may write (package rbac), does not run in a data
// directory that another process uses or that belongs to another cluster, node or
// role, and does not listen without TLS.
//
// Parts. A Node consists of a proposer, a reader, members (with autopilot), a
// restorer, a joiner, transfers of leadership and a guard of the disk, which share
// a core: raft, the log below it (package raftlog), the network (package raftnet)
// and who leads. Committed entries are not restored before the loop runs, and a
// new leader writes an empty batch before it serves (leadership.go). What raft
// needs to keep its own guarantees is in docs/adr/0020-raft-workarounds.md.
//
// Raft counts and times what it does through go-metrics' global sink, which
// nothing here sets. A command that wants those figures installs a sink and is
// built with the tag hashicorpmetrics, without which raft reports to the sink of
// an older module.
//
// A cluster starts as one server, which needs no network: without an address the
// transport is in memory, as in a zone. With one the TLS listener is bound from
// the start, so that other servers can join without a restart of the first
// (Config.Join). Servers find each other again when their addresses change.
package consensus
