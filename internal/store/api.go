package store

import (
	"errors"
	"iter"
	"time"

	"meridian/internal/resource"
)

// ErrCompacted means that the revision asked for is no longer retained. The
// reader takes a fresh view (or a snapshot) and continues from its revision.
var ErrCompacted = errors.New("revision is no longer retained")

// ErrFuture means that the revision asked for has not been applied yet. Wait
// for it first.
var ErrFuture = errors.New("revision has not been applied yet")

// Op is one change of a batch: a resource to put, or a key to delete. See Put
// and Delete.
type Op struct {
	// Key names what is changed. It may be left zero when Resource is set; when
	// both are set they must agree.
	Key resource.Key
	// Resource is the new content, nil to delete. Its times, version and
	// revision are assigned by Apply and ignored here, except in a replica
	// (see Replicate), which keeps what the source assigned, and the times with
	// KeepTimes.
	Resource *resource.Resource
	// KeepTimes stores the times of Resource that are not zero.
	KeepTimes bool
}

// Put returns the operation that writes a resource.
func Put(r *resource.Resource) Op { return Op{Key: r.Key(), Resource: r} }

// Delete returns the operation that deletes a key.
func Delete(key resource.Key) Op { return Op{Key: key} }

// Precondition must hold for a batch to be applied: the stored version of a
// key, 0 meaning that it does not exist.
type Precondition struct {
	Key     resource.Key
	Version uint64
	// Revision, unless zero, must be the revision that last wrote the key.
	// Versions start again at 1 when a resource is deleted and created anew, so
	// a decision that depended on the stored content (§6.4) names
	// both.
	Revision resource.Revision
}

// Epoch names one history of the global's state. Revisions of different epochs
// cannot be compared: restoring a backup rewinds the state, so it is followed
// by a new epoch.
type Epoch struct {
	// ClusterID is chosen when the cluster is created and never changes.
	ClusterID string
	// Incarnation counts the histories of one cluster, from 1.
	Incarnation uint64
	// Random tells two incarnations with one number apart.
	Random uint64
}

// Part is what a mesh had of some kinds when a batch was decided. To look whether it
// still has costs a walk over those resources.
type Part struct {
	Mesh  resource.MeshName
	Kinds []resource.Kind
	// Digest is that of View.PartDigest.
	Digest Digest
}

// Txn is one atomic batch, everything that Apply needs as data.
type Txn struct {
	// RequestID names the attempt; a batch whose id was applied before is not
	// applied again and returns the first result. Empty: never deduplicated.
	RequestID string
	// Time is the leader's clock when it proposed. Apply raises it to at least
	// the last batch's time + 1 ns (§1.1).
	Time          time.Time
	Ops           []Op
	Preconditions []Precondition
	// AccessRevision is the revision of the access rules the writer was
	// authorized on (§6.4); nil when access was not checked.
	AccessRevision *resource.Revision
	// UnchangedSince, unless nil, is the last revision that may have changed anything:
	// the batch was decided on all of the state.
	UnchangedSince *resource.Revision
	// Parts are those parts of the state that the batch was decided on.
	Parts []Part
	// SetEpoch, unless nil, becomes the store's epoch.
	SetEpoch *Epoch
	// Note travels with the batch through the log, outside of its command, for
	// observers of applied entries. Apply keeps it where it keeps contents, and nothing
	// depends on it.
	Note []byte
	// Retention says which contents of old revisions are kept from now on. It has
	// nothing else but a time.
	Retention *Retention
	// Restore makes the batch a part of a state that replaces the store's. It has
	// nothing else but a time.
	Restore *RestorePart
	// Batches are of several writers and share a log entry, and with it the
	// revision and the time: each is applied, or refused, on the state that those before
	// it have left. With them it has nothing else but a time. Such a batch has operations,
	// preconditions, an access revision, a request id and a note at most.
	Batches []Txn
}

// Outcome is what became of one operation.
type Outcome int

// What an operation did.
const (
	Unchanged Outcome = iota
	Created
	Updated
	Deleted
	// Missing: the key to delete was not there. The batch is applied all the
	// same.
	Missing
)

// OpResult is the outcome of one operation and the resource's version after it.
type OpResult struct {
	Key     resource.Key
	Outcome Outcome
	Version uint64
}

// Result is the outcome of a batch.
type Result struct {
	// Revision the batch was written at; when nothing changed, the revision of
	// the last batch before it, which made the state it was compared with.
	Revision resource.Revision
	// Results has one element per operation, in the order of Txn.Ops. It is
	// shared and must not be modified.
	Results []OpResult
	// Duplicate says that the request id had been applied before and that this
	// is the result of that time.
	Duplicate bool
	// Err says why nothing was applied: *ConflictError, *AccessChangedError, *ChangedError,
	// *PartChangedError, *MeshMissingError, *MeshNotEmptyError, *InvalidOpError or *RestoreError.
	Err error
	// Batches are the results of Txn.Batches, in their order.
	Batches []Result
}

// Change is one resource before and after a batch; one of them is nil for a
// creation or deletion.
type Change struct {
	Before, After *resource.Resource
}

// Key returns the identity of what changed.
func (c Change) Key() resource.Key {
	if c.After != nil {
		return c.After.Key()
	}
	return c.Before.Key()
}

// Batch is one revision of the change feed: what one log entry has changed.
type Batch struct {
	Revision resource.Revision
	// Prev is the revision of the batch before it, so that a reader can tell a
	// gap: revisions are not dense.
	Prev resource.Revision
	// Time is the batch's one time (§1.1).
	Time time.Time
	// Changes are in key order, one per key. Shared, not to be modified.
	Changes []Change
	// Epoch is the epoch that the batch set, nil when it kept the one before.
	Epoch *Epoch
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
