package store

import (
	"errors"
	"iter"
	"time"

	"meridian/internal/resource"
)

// ErrCompacted means that the revision asked for is no longer retained. The
// reader takes a fresh view (or a snapshot) and continues from its revision.
var ErrCompacted = errors.New("store: revision is no longer retained")

// ErrFuture means that the revision asked for has not been applied yet. Wait
// for it first.
var ErrFuture = errors.New("store: revision has not been applied yet")

// Op is one change of a batch: a resource to put, or a key to delete.
type Op struct {
	Key resource.Key
	// Resource is the new content, nil to delete. Its times, version and
	// revision are assigned by Apply and ignored here, except in a replica
	// (see Replicate), which keeps what the source assigned.
	Resource *resource.Resource
}

// Precondition must hold for a batch to be applied: the stored version of a
// key, 0 meaning that it does not exist.
type Precondition struct {
	Key     resource.Key
	Version uint64
}

// Txn is one atomic batch, everything that Apply needs as data.
type Txn struct {
	// RequestID names the attempt; a batch whose id was applied before is not
	// applied again and returns the first result. Empty: never deduplicated.
	RequestID string
	// Time is the leader's clock when it proposed. Apply raises it to at least
	// the last batch's time + 1 ns (SEMANTICS §1.1).
	Time          time.Time
	Ops           []Op
	Preconditions []Precondition
	// AccessRevision is the revision of the access rules the writer was
	// authorized on (SEMANTICS §6.4); nil when access was not checked.
	AccessRevision *resource.Revision
}

// Outcome is what became of one operation.
type Outcome int

// What an operation did.
const (
	Unchanged Outcome = iota
	Created
	Updated
	Deleted
)

// OpResult is the outcome of one operation and the resource's version after it.
type OpResult struct {
	Key     resource.Key
	Outcome Outcome
	Version uint64
}

// Result is the outcome of a batch.
type Result struct {
	// Revision the batch was written at; when every operation left things
	// unchanged, the revision of the view it was compared with.
	Revision resource.Revision
	Results  []OpResult
	// Err is a *ConflictError when a precondition failed; nothing was applied.
	Err error
}

// Change is one resource before and after a batch; one of them is nil for a
// creation or deletion.
type Change struct {
	Before, After *resource.Resource
}

// Batch is one revision of the change feed.
type Batch struct {
	Revision resource.Revision
	// Prev is the revision of the batch before it, so that a reader can tell a
	// gap: revisions are not dense.
	Prev    resource.Revision
	Time    time.Time
	Changes []Change
}

// Reader is what everyone who reads resources needs: one consistent revision.
// *View and a union of views implement it.
type Reader interface {
	// Get returns a resource, or false.
	Get(key resource.Key) (*resource.Resource, bool)
	// List yields the resources of a kind in key order; an empty mesh means
	// every mesh.
	List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource]
	// Revision is the revision read from.
	Revision() resource.Revision
}
