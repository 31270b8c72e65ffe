// Package audit keeps the audit log: files of JSON lines that record writes and
// refusals, in chains in which every record holds the hash of the one before.
//
// Guarantees. Verify finds a record that was altered, removed, inserted or moved,
// and reports its position; with the head, a signed checkpoint next to the log, it
// also finds what is missing at either end. Every record of a write is written to the
// file before Write returns, and flushed to the disk within SyncEvery. A write that a
// crash kept from being recorded is recorded after the restart (Writer). Refusals
// take a bounded part of the disk that nothing else uses, and every caller is counted
// by itself.
//
// Non-goals: secrets. A record names resources without their content, and tokens by
// their id.
//
// The chain proves order and completeness only against a known later hash. An
// attacker who has the server's key, or puts back the files of an earlier time, can
// present another history: keep copies of head.json on another host to detect that.
package audit
