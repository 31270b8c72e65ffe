// Package consensustest is what nodes of package consensus stand on in tests:
// disks that crash, fill up, hang, fail and rot, in memory and inside
// testing/synctest.
//
// It guarantees what a real disk does and no more: what a node synced is there
// after a crash, what it did not may be lost. It refuses to help the node: there
// are no checksums here, and damage is not told.
package consensustest
