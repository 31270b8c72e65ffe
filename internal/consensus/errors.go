package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/version"
)

// The errors below do not begin with the package's name: operators read them.

// ErrNotLeader means that another server leads; nothing was written. Send the
// request to the server that Leader names.
var ErrNotLeader = errors.New("this server is not the leader")

// ErrUnknownOutcome means that the write may or may not take effect, now or
// later. Retry it with the same request id: it is applied at most once.
var ErrUnknownOutcome = errors.New("outcome of the write is unknown")

// unknownOutcomeError is ErrUnknownOutcome with its cause.
type unknownOutcomeError struct{ cause error }

func unknownOutcome(cause error) error { return &unknownOutcomeError{cause} }

func (e *unknownOutcomeError) Error() string {
	return ErrUnknownOutcome.Error() + ": " + e.cause.Error()
}

func (e *unknownOutcomeError) Is(target error) bool { return target == ErrUnknownOutcome }

func (e *unknownOutcomeError) Unwrap() error { return e.cause }

// ErrUnavailable means that there is no leader, or that it cannot take requests
// now; nothing was written. Try again later.
var ErrUnavailable = errors.New("no leader is able to serve now")

// ErrClosed means that the node was closed before the request began; nothing
// was written.
var ErrClosed = raftnet.ErrClosed

// ErrRemoved means that this server was taken out of its cluster: it holds
// state that no longer follows the others'. To bring it back, let it join as a
// new server, with a new data directory.
var ErrRemoved = errors.New("this server was removed from the cluster")

// ErrNewerLog means that the log has an entry which only a newer release can apply.
// Nothing is damaged: that release starts on the same data directory.
var ErrNewerLog = errors.New("the log was written by a newer release")

// newerEntry is ErrNewerLog about an entry, of which formats up to known can be
// applied.
func newerEntry(index uint64, format, known uint32) error {
	return fmt.Errorf("%w: entry %d has format %d, and release %s applies formats up to %d; start a release that applies format %d on the same data directory, in which nothing is changed or lost: that of the other servers, which \"meridian cluster members -o wide\" shows, or the last one that ran here",
		ErrNewerLog, index, format, version.String(), known, format)
}

// newerSnapshot is ErrNewerLog about a snapshot.
func newerSnapshot(format, known uint32) error {
	return fmt.Errorf("%w: the snapshot has what entries of format %d do, and release %s applies formats up to %d; start a release that applies format %d on the same data directory, in which nothing is changed or lost",
		ErrNewerLog, format, version.String(), known, format)
}

// ErrDiskHangs means that writes to the disk do not end.
var ErrDiskHangs = errors.New("the disk hangs")

// proposeError translates what raft says about an entry. Whatever is not known
// to have had no effect counts as unknown: a failed disk write, for example, may
// have reached the disk all the same.
func (n *core) proposeError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return n.notLeader()
	case errors.Is(err, raftlog.ErrDiskFull):
		// The leader could not store it, so no server did; the next leader may.
		return fmt.Errorf("%w: %v", ErrUnavailable, err) //nolint:errorlint // it is not the last word
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		n.refusedByTransfer()
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrAbortedByRestore):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		return unknownOutcome(err)
	}
}

// notLeader says why this server cannot take a request: another one leads, or
// none does.
func (n *core) notLeader() error {
	if id, _ := n.Leader(); id == "" || id == n.cfg.NodeID {
		return ErrUnavailable
	}
	return ErrNotLeader
}
