package commit

import (
	"errors"

	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// reasonNoLeader is the reason of what fails for want of a leader that serves.
const reasonNoLeader = "NO_LEADER"

// ReasonHeld is the reason of a write of what an unfinished rollout is to change.
const ReasonHeld = "HELD_BY_ROLLOUT"

// Explain turns why a proposal failed into what its caller is told: the one
// mapping of the log's errors and the state machine's.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	var (
		conflict *store.ConflictError
		noMesh   *store.MeshMissingError
		notEmpty *store.MeshNotEmptyError
		changed  *store.ChangedError
		held     *store.HeldError
		rollouts *store.RolloutsError
	)
	none := func(code rpcerr.Code, reason string) error {
		return rpcerr.WithEffect(rpcerr.New(code, reason, "%w", err), rpcerr.EffectNone)
	}
	switch {
	case errors.As(err, &changed):
		return none(rpcerr.Unavailable, ReasonStateChanged)
	case errors.As(err, &held):
		return none(rpcerr.Conflict, ReasonHeld)
	case errors.As(err, &rollouts):
		return none(rpcerr.Conflict, "TOO_MANY_ROLLOUTS")
	case errors.As(err, &conflict):
		return none(rpcerr.Conflict, ReasonVersion)
	case errors.As(err, &noMesh):
		return none(rpcerr.Invalid, "MESH_MISSING")
	case errors.As(err, &notEmpty):
		return none(rpcerr.Conflict, "MESH_NOT_EMPTY")
	case errors.Is(err, consensus.ErrUnknownOutcome):
		return rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "OUTCOME_UNKNOWN",
			"the write may or may not take effect: retry it with the same request id (%w)", err), rpcerr.EffectUnknown)
	case errors.Is(err, raftlog.ErrDiskFull), errors.Is(err, consensus.ErrClosed):
		return none(rpcerr.Unavailable, reasonNoLeader)
	case errors.Is(err, consensus.ErrNotLeader), errors.Is(err, consensus.ErrUnavailable):
		return rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, reasonNoLeader, "%w; `meridian cluster members` shows why", err), rpcerr.EffectNone)
	}
	return err
}
