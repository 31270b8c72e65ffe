package past

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// ReasonCompacted is the reason of a state that is no longer retained.
const ReasonCompacted = "COMPACTED"

// reachGrace is how long a read waits for this server to reach a revision: another one
// may have been a little further.
const reachGrace = 2 * time.Second

// Source is a store that keeps contents. *store.Store is one.
type Source interface {
	Revision() resource.Revision
	Wait(ctx context.Context, rev resource.Revision) error
	StateAt(rev resource.Revision) (*store.Past, error)
	RevisionAt(at time.Time) (resource.Revision, error)
}

// Read returns the state at a point in time. now is the clock that durations count back
// from. Errors: *rpcerr.Error of code OutOfRange where there is no such state any more,
// or not yet; of code Invalid where the point is none.
func Read(ctx context.Context, from Source, point *meridianv1.PointInTime, now time.Time) (*store.Past, error) {
	if err := Await(ctx, from, point); err != nil {
		return nil, err
	}
	return At(from, point, now)
}

// Await waits a moment for the revision that a point names, if it does. It fails only with
// the cause of ctx.
func Await(ctx context.Context, from Source, point *meridianv1.PointInTime) error {
	p, ok := point.GetPoint().(*meridianv1.PointInTime_Revision)
	if !ok {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, reachGrace)
	defer cancel()
	if err := from.Wait(limited, resource.Revision(p.Revision)); err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// At is Read without a wait, for who has a turn or holds memory, and was in Await before.
func At(from Source, point *meridianv1.PointInTime, now time.Time) (*store.Past, error) {
	var rev resource.Revision
	switch p := point.GetPoint().(type) {
	case *meridianv1.PointInTime_Revision:
		rev = resource.Revision(p.Revision)
	case *meridianv1.PointInTime_Ago:
		ago := p.Ago.AsDuration()
		if err := p.Ago.CheckValid(); err != nil || ago < 0 {
			return nil, rpcerr.New(rpcerr.Invalid, "INVALID_AT", "the time to read at is not one that has passed")
		}
		var err error
		if rev, err = from.RevisionAt(now.Add(-ago)); err != nil {
			return nil, explain(err, from, rev)
		}
	default:
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_AT", "the point in time has neither a revision nor a duration")
	}
	state, err := from.StateAt(rev)
	if err != nil {
		return nil, explain(err, from, rev)
	}
	return state, nil
}

func explain(err error, from Source, rev resource.Revision) error {
	var compacted *store.CompactedError
	switch {
	case errors.As(err, &compacted):
		return rpcerr.New(rpcerr.OutOfRange, ReasonCompacted, "%w; --history-bytes, --history-age and --history-revisions of the servers decide how much is kept", err)
	case errors.Is(err, store.ErrFuture):
		return rpcerr.New(rpcerr.OutOfRange, "FUTURE_REVISION", "revision %d has not been written yet; the newest is %d", rev, from.Revision())
	}
	return err
}

// Parse reads a point in time as it is written on the command line: a revision, or for
// how long ago a duration.
func Parse(text string) (*meridianv1.PointInTime, error) {
	if rev, err := strconv.ParseUint(text, 10, 64); err == nil {
		if rev == 0 {
			return nil, errors.New("revisions count from 1")
		}
		return PointOf(resource.Revision(rev)), nil
	}
	ago, err := time.ParseDuration(text)
	if err != nil || ago < 0 {
		return nil, errors.New("write a revision, such as 1841, or how long ago, such as 2h or 30m")
	}
	return &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Ago{Ago: durationpb.New(ago)}}, nil
}

// PointOf is the point in time of a revision.
func PointOf(rev resource.Revision) *meridianv1.PointInTime {
	return &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(rev)}}
}
