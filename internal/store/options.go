package store

import (
	"errors"
	"time"

	"meridian/internal/resource"
)

// Options bound what a store remembers. DefaultOptions is a good start.
type Options struct {
	History  History
	Requests Requests
	// ExternalMeshes turns the rules about meshes off (§1.4: a write
	// needs its mesh, a mesh with resources stays): for a zone's local store,
	// whose meshes live in the replica.
	ExternalMeshes bool
	// Terms are the words under which View.ListBy finds a resource besides its key; nil
	// for none. They may depend on its kind and content only. A store without it cannot
	// list by them.
	Terms func(*resource.Resource) []string
}

// History bounds the past that is retained, for readers of the feed and for
// ViewAt. A bound of zero does not bound. The newest batch is always retained.
type History struct {
	MaxBatches int
	// MaxBytes bounds the estimated memory that the past keeps alive.
	MaxBytes int
	// MaxAge is measured from batch to batch by the times they carry, never by a
	// clock.
	MaxAge time.Duration
	// SnapshotBytes bounds the newest part of the history that goes into a
	// snapshot, so that readers resume after a restart.
	SnapshotBytes int
}

// Requests bounds the request ids that are remembered. The window is part of
// the replicated state: every server of a cluster must use the same bounds, or
// a retry would count as new on some.
type Requests struct {
	// MaxAge is for how long an id is remembered, by the times of the batches and
	// never by a clock. A batch whose time jumps ahead, as the clock of a leader may,
	// takes a third of it at most.
	MaxAge time.Duration
	// Min is how many ids are remembered whatever their age.
	Min int
	// MaxBytes bounds the memory that they take, with their results, in bytes.
	MaxBytes int
}

// DefaultOptions returns the bounds that servers use: an hour or 8,192 batches
// or 64 MiB of history, 16 MiB of it in snapshots; 15 minutes or 64 MiB of request ids.
func DefaultOptions() Options {
	return Options{
		History:  History{MaxBatches: 8192, MaxBytes: 64 << 20, MaxAge: time.Hour, SnapshotBytes: 16 << 20},
		Requests: Requests{MaxAge: 15 * time.Minute, Min: 8192, MaxBytes: 64 << 20},
	}
}

// Validate reports a bound that makes no sense.
func (o Options) Validate() error {
	if o.History.MaxBatches < 0 || o.History.MaxBytes < 0 || o.History.MaxAge < 0 || o.History.SnapshotBytes < 0 {
		return errors.New("the store's history bounds must not be negative")
	}
	if o.Requests.MaxAge < 0 || o.Requests.Min < 0 || o.Requests.MaxBytes < 0 {
		return errors.New("the store's request bounds must not be negative")
	}
	return nil
}
