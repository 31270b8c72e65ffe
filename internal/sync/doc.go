// Package zonesync keeps a replica in every zone equal to the synced part of
// the global's state (§7.3 to §7.7).
//
// # Guarantees
//
// A zone is a non-voting follower. These hold for every zone, whatever is killed,
// partitioned, delayed, restored or corrupted, on either side:
//
//   - A replica that reports revision r of an epoch holds exactly the synced kinds
//     of the global at r; what is served from it is the same, except for
//     quarantined keys, which serve their last valid version (I3).
//   - Within one epoch a replica's revision never goes back. It changes epoch
//     only by adopting one as a whole (I4).
//   - A reader in the zone sees r or a later revision, and nothing between two
//     of the global's batches (I5).
//   - Batches are chained: each names the revision that it follows, so that a
//     gap, a repetition or a reorder is detected before anything is written (I6).
//   - A bookmark at r comes after everything up to r, with the digest that the
//     replica must have there (I7). A difference is repaired within two of them.
//   - Nothing is deleted in a zone that was not deleted in a committed state of
//     the global. Losing the connection deletes nothing; an update that would
//     remove more than a fifth of a replica at once, and more than a
//     hundred resources, waits for the operator (I10).
//   - A zone is sent synced kinds only: no roles, no secrets, no other zones
//     (I11).
//   - What is acknowledged is on the zone's disk.
//   - A connected zone reaches the global's revision by itself (L2). A zone serves
//     its replica within a second of its start, without the global (L3). A zone
//     that stalls delays no other (L4).
//   - A replica follows only the global whose state it holds, and does not serve a
//     record that fails its checksum.
//
// # Non-goals
//
// Authorization: the server is given an authorizer. Writing to raft: what a zone
// reports is soft state of the server that received it.
//
// # Mechanism
//
// On the global one feed follows the store and encodes each batch once, into a
// ring bounded by bytes. Each stream is a publisher: a cursor into that ring.
// There is no queue per zone. Two goroutines wait for each stream: gRPC's handler for its
// end, and one for what the zone says. What there is to send is sent by a third that ends
// when nothing is left, woken by the feed, by the zone or by one timer for all streams.
//
// A publisher that is behind sends many batches coalesced into one, the last change of
// each key; one that is behind the ring sends the 256th parts of the key space ("buckets")
// whose digests differ, or a snapshot.
//
// In the zone a replica takes frames, checks the chain, keeps the digest and
// says what to persist. The resources of a state are decoded as its chunks arrive, on all
// processors. A disk persists operations, revision, epoch and digest
// in one transaction; then the in-memory store shows them; then the zone
// acknowledges, at once or with what follows soon. Batches that queue up while the disk is
// busy share the next transaction.
//
// Publisher and replica are functions of frames and of time given as an
// argument: no sockets, no clocks, no goroutines that outlive a call. Server and Client give them
// all three.
//
// A digest is the sum, modulo 2^128, of one hash per resource. It costs the same
// to keep up to date however much there is, and both ends keep it.
package zonesync
