package zonesync

import "time"

const (
	// ackEvery is how long a zone puts an acknowledgement off at most, counted from the
	// one before: a zone that is sent many changes acknowledges four times a second.
	ackEvery = 250 * time.Millisecond
	// ackBytes is how much a zone leaves unacknowledged at most. It is half of what a
	// server sends a zone that has acknowledged nothing of it.
	ackBytes = firstWindow / 2
	// heartbeatEvery is how long a zone says nothing at most: to a server that hears nothing
	// for staleAfter it is stale. A server of an earlier release sends a bookmark before.
	heartbeatEvery = 3250 * time.Millisecond
	// FeatureHeartbeat is the feature of zones that say something every heartbeatEvery,
	// whether they are sent anything or not: they are sent half as many bookmarks.
	FeatureHeartbeat = "heartbeat"
)

// AckPace is when a zone acknowledges: at once when it has not lately, and otherwise when
// ackEvery have passed since. What is not to wait is told to Owe. Without anything to
// acknowledge it says after heartbeatEvery what it said before, as a sign of life. It has no
// clock. The zero value is that of a zone which has acknowledged nothing since its Hello.
type AckPace struct {
	last     time.Time // of the last acknowledgement
	acked    uint64    // the bytes that it was of
	consumed uint64
	owed     bool
	atOnce   bool
}

// Owe notes that the zone is to acknowledge so many bytes since its Welcome (see
// Ack.consumed), at once or when it is due.
func (p *AckPace) Owe(consumed uint64, atOnce bool) {
	p.owed, p.consumed = true, consumed
	p.atOnce = p.atOnce || atOnce || consumed-p.acked >= ackBytes
}

// Due reports whether the zone is to acknowledge now, or else in how long, unless more is
// owed until then; zero is never.
func (p *AckPace) Due(now time.Time) (due bool, wait time.Duration) {
	switch {
	case p.atOnce:
		return true, 0
	case p.owed:
		wait = p.last.Add(ackEvery).Sub(now)
	case p.last.IsZero():
		return false, 0 // the server has yet to answer the Hello
	default:
		wait = p.last.Add(heartbeatEvery).Sub(now)
	}
	return wait <= 0, max(wait, 0)
}

// Acknowledged notes that the zone acknowledges everything owed.
func (p *AckPace) Acknowledged(now time.Time) {
	*p = AckPace{last: now, acked: p.consumed, consumed: p.consumed}
}
