//go:build !olderformat

package store

// NewestFormat is the newest format of commands that this release applies.
const NewestFormat = latestFormat
