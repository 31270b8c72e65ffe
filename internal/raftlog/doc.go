// Package raftlog keeps what raft must not lose on disk: the log, the term and the
// vote, the snapshots, and the identity of the server that the data directory
// belongs to.
//
// Guarantees. A write returns once it is on disk, and is there complete or not at
// all. Only entries that a leader sends to followers may come to the disk after that: Synced
// and OnDisk say when. Entries go to a journal first, with one sync, and into the bbolt file
// together. Every entry, value and snapshot has a checksum that is checked at each read, so
// that what is read is what was written, or an error wraps ErrCorrupt. The log has no gaps,
// and goes back at least to the oldest snapshot that may be needed. A start reads the log
// from the disk and verifies all of it. When a write fails while raft runs, or damage is read,
// the call does not return: the host ends the process. Only a full disk is an error that raft
// receives. A call of a leader whose sync follows may have returned: the server leads until
// its process ends, and tells no server that these entries are committed.
//
// Non-goals. It does not repair damage (the server joins again with an empty
// directory), does not know what an entry means, and does not decide who is a
// member.
package raftlog
