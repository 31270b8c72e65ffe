package store

import (
	"errors"
	"fmt"

	"meridian/internal/resource"
)

// ErrCorrupt means that stored bytes are not what was written: a checksum, a
// length or a digest disagrees. The state they came from cannot be trusted.
var ErrCorrupt = errors.New("corrupt data")

// ErrUnknownFormat means that stored bytes are intact but were written by a
// newer release, in a form this one does not know.
var ErrUnknownFormat = errors.New("unknown format")

// ConflictError means that a precondition did not hold. The caller reads the
// resource again, decides again and retries.
type ConflictError struct {
	Key resource.Key
	// Want is the version that the writer expected, Have the one stored; zero
	// means that the resource does not exist.
	Want, Have uint64
	// WantRevision and HaveRevision are the same for the revision that last
	// wrote the key; WantRevision is zero when any would do.
	WantRevision, HaveRevision resource.Revision
}

func (e *ConflictError) Error() string {
	switch {
	case e.Want == 0:
		return fmt.Sprintf("%s exists already, at version %d", e.Key, e.Have)
	case e.Have == 0:
		return fmt.Sprintf("%s does not exist, expected version %d", e.Key, e.Want)
	case e.Want == e.Have:
		return fmt.Sprintf("%s was deleted and created anew at revision %d, expected revision %d", e.Key, e.HaveRevision, e.WantRevision)
	}
	return fmt.Sprintf("%s is at version %d, expected %d", e.Key, e.Have, e.Want)
}

// AccessChangedError means that roles or bindings changed between the decision
// and the write (§6.4). The caller decides again on a current view.
type AccessChangedError struct {
	// Decided is the access revision the writer was authorized on, Current the
	// store's.
	Decided, Current resource.Revision
}

func (e *AccessChangedError) Error() string {
	return fmt.Sprintf("access rules changed: decided at revision %d, now at %d", e.Decided, e.Current)
}

// ChangedError means that the state changed between the decision and a write that was
// decided on all of it. The caller decides again on a current view.
type ChangedError struct {
	// Decided is the revision that the write was decided on, Current that of the last
	// change.
	Decided, Current resource.Revision
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("the state changed: decided at revision %d, changed at %d", e.Decided, e.Current)
}

// PartChangedError means that what a mesh has of some kinds changed between the decision
// and a write that was decided on it (Txn.Parts). The caller decides again on a current
// view.
type PartChangedError struct {
	Mesh resource.MeshName
}

func (e *PartChangedError) Error() string {
	return fmt.Sprintf("mesh %q changed since the write was decided", e.Mesh)
}

// MeshMissingError means that a batch wrote a resource of a mesh that is not
// there (§1.4). The caller creates the mesh first or with it.
type MeshMissingError struct {
	Key resource.Key
}

func (e *MeshMissingError) Error() string {
	return fmt.Sprintf("mesh %q of %s does not exist", e.Key.Mesh, e.Key)
}

// MeshNotEmptyError means that a batch deleted a mesh that still has resources
// (§1.4). The caller deletes those first or with it.
type MeshNotEmptyError struct {
	Mesh resource.MeshName
	// Count is how many resources the mesh has, Example the first of them.
	Count   int
	Example resource.Key
}

func (e *MeshNotEmptyError) Error() string {
	if e.Count == 1 {
		return fmt.Sprintf("mesh %q still has a resource: %s", e.Mesh, e.Example)
	}
	return fmt.Sprintf("mesh %q still has %d resources, such as %s", e.Mesh, e.Count, e.Example)
}

// InvalidOpError means that a batch contradicts itself: an operation without a
// key, with a key that is not its resource's, or a second one on a key. Nothing
// the caller could retry; documents like that are refused before they get here.
type InvalidOpError struct {
	Key    resource.Key
	Reason string
}

func (e *InvalidOpError) Error() string {
	return fmt.Sprintf("operation on %s: %s", e.Key, e.Reason)
}

// GapError means that a batch does not continue where a replica stands
// (§7.3). Nothing was applied; the replica resumes from At, or takes
// a snapshot.
type GapError struct {
	// At is the revision up to which the replica has everything.
	At resource.Revision
	// Prev and Revision are those of the batch refused.
	Prev, Revision resource.Revision
}

func (e *GapError) Error() string {
	return fmt.Sprintf("batch %d follows revision %d, the replica is at %d", e.Revision, e.Prev, e.At)
}
