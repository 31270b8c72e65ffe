// Package audit keeps the record of who changed what, and of who was refused: a
// file of JSON lines in which every record holds the hash of the one before.
//
// It guarantees that a record which was altered, removed, inserted or moved is
// found by Verify, which says where; that a log cut off at its end is found by
// its head, a checkpoint beside it; that every record is given to the operating
// system before Write returns, and to the disk within SyncEvery; that a write
// which a crash kept from being recorded is recorded after it (Writer); and that
// whatever strangers do, the log grows by a bounded number of records per second
// and a bounded number of files.
//
// It refuses to hold secrets: a record names resources and says nothing of what
// is in them, and it names tokens by their id.
//
// The chain proves order and completeness to whoever has seen a later hash.
// Somebody who can replace every file and the head can write another history:
// copy head.json elsewhere to notice that.
package audit
