package server

import (
	"time"

	"github.com/spf13/pflag"

	"meridian/internal/store"
)

// HistoryOptions bound the contents of old revisions that a server keeps, in memory, in
// its log and in its snapshots.
type HistoryOptions struct {
	// Revisions is how many are kept; 0 does not bound.
	Revisions int
	// Bytes is what they take; 0 keeps none.
	Bytes int64
	// Age is for how long they are kept; 0 does not bound.
	Age time.Duration
}

func (o *HistoryOptions) bind(flags *pflag.FlagSet) {
	d := store.DefaultRetention()
	flags.IntVar(&o.Revisions, "history-revisions", d.Batches, "revisions whose contents are kept for history, diff, rollback and --at; 0 for no bound")
	flags.Int64Var(&o.Bytes, "history-bytes", d.Bytes, "bytes of memory, and of each snapshot, that the contents of old revisions take; 0 keeps none")
	flags.DurationVar(&o.Age, "history-age", d.Age, "age up to which the contents of old revisions are kept, by the times of the writes; 0 for no bound")
}

func (o *HistoryOptions) validate() error {
	switch {
	case o.Revisions < 0:
		return usagef("--history-revisions %d: write 0 or more", o.Revisions)
	case o.Bytes < 0:
		return usagef("--history-bytes %d: write 0 or more", o.Bytes)
	case o.Age < 0:
		return usagef("--history-age %s: write 0 or more", o.Age)
	}
	return nil
}

// Retention returns the bounds of the store.
func (o *HistoryOptions) Retention() store.Retention {
	if o.Bytes == 0 {
		return store.Retention{}
	}
	return store.Retention{Batches: o.Revisions, Bytes: o.Bytes, Age: o.Age}
}
