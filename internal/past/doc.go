// Package past reads states and contents of the past: what a request or a flag means by
// a point in time, and who set each field of a resource.
//
// Guarantees. A point in time is read as one state or not at all: an error names the
// oldest revision that can be. Blame depends on the kept writes alone.
//
// Non-goals: keeping contents (package store), and deciding who may read them.
package past
