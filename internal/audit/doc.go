// Package audit keeps the audit log: a file of JSON lines that records writes and
// denials, in which every record holds the hash of the one before.
//
// Guarantees. Verify finds a record that was altered, removed, inserted or moved,
// and reports its position; with the head, a checkpoint next to the log, it also
// finds truncation at the end. Every record is written to the file before Write
// returns, and flushed to the disk within SyncEvery. A write that a crash kept from
// being recorded is recorded after the restart (Writer). Whatever unauthenticated
// clients do, the log grows by a bounded number of records per second and a bounded
// number of files.
//
// Non-goals: secrets. A record names resources without their content, and tokens by
// their id.
//
// The chain proves order and completeness only against a known later hash. An
// attacker who can replace every file and the head can write another history: keep
// copies of head.json on another host to detect that.
package audit
