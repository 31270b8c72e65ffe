// Package simnet is what nodes of package consensus stand on in tests,
// several of them in one process and inside testing/synctest: disks that crash,
// fill up, hang, fail and corrupt data, in memory, and a network that can be cut and
// delayed.
//
// It guarantees what a real disk does and no more: what a node synced is there
// after a crash, what it did not may be lost. The network behaves as TCP does:
// what is sent over a link that is cut waits and arrives when the link heals,
// unless the sender gave up before; a server that is gone refuses connections.
// Non-goals: helping the node. There are no checksums here, and damage is not
// told.
package simnet
