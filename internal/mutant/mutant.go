// Package mutant names deliberate bugs, so that tests can be shown to detect them.
//
// Guarantee: a bug is in the program only when it is built with the tag "mutants", and
// active only when it is the one that MERIDIAN_MUTANT names. In every other
// build On is the constant false and what it guards is not compiled in.
//
// Non-goals: the bugs themselves. The line that switches on a bug is next to the
// correct line, so that both are read together.
package mutant

// Name identifies a mutant.
type Name string

// The mutants, and the invariant that each breaks.
const (
	// AckBeforeSync acknowledges log entries before they are on the disk (I1).
	AckBeforeSync Name = "ack-before-sync"
	// VoteNotStored loses a server's vote when it restarts (I1).
	VoteNotStored Name = "vote-not-stored"
	// SkipChecksum accepts a log entry with a wrong checksum (I2).
	SkipChecksum Name = "skip-checksum"
	// TimeFromClock has the state machine stamp changes by its own clock (I2).
	TimeFromClock Name = "time-from-clock"
	// ForgetRequestID applies a retried batch again (I9).
	ForgetRequestID Name = "forget-request-id"
	// ReadUnverified lets a leader read without asking whether it still leads.
	ReadUnverified Name = "read-unverified"
	// ReadUnapplied lets a follower read before it has applied what the leader
	// had committed.
	ReadUnapplied Name = "read-unapplied"
	// ServeBeforeCaughtUp lets a new leader serve before it has applied what
	// earlier leaders committed.
	ServeBeforeCaughtUp Name = "serve-before-caught-up"
	// AsyncHeartbeat handles heartbeats outside raft's main loop
	// (hashicorp/raft#695).
	AsyncHeartbeat Name = "async-heartbeat"
	// RestoreKeepsEpoch restores a snapshot under the history it replaces (I4).
	RestoreKeepsEpoch Name = "restore-keeps-epoch"
	// LostDiskVotes lets a server that lost its disk vote in the name of the one
	// that had it (I1).
	LostDiskVotes Name = "lost-disk-votes"
	// DropOnResume leaves out one batch after a zone has resumed (I6).
	DropOnResume Name = "drop-on-resume"
	// ResumeAcrossEpochs lets a zone resume from a revision of another history
	// (I3).
	ResumeAcrossEpochs Name = "resume-across-epochs"
	// PublishBeforePersist shows a zone's readers what is not on its disk (I4).
	PublishBeforePersist Name = "publish-before-persist"
	// NoWipeGuard lets a zone delete most of what it holds without asking (I10).
	NoWipeGuard Name = "no-wipe-guard"
	// SyncSecrets sends zones what is not theirs (I11).
	SyncSecrets Name = "sync-secrets"
)
