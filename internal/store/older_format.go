//go:build olderformat

package store

// NewestFormat is the newest format of commands that this build applies: it stands
// for an earlier release, in tests of servers of two releases. No release is built
// with this tag.
const NewestFormat = formatFirst
