package zonesync

import "time"

const (
	// ackEvery is how long a zone puts an acknowledgement off at most, counted from the
	// one before: a zone that is sent many changes acknowledges four times a second.
	ackEvery = 250 * time.Millisecond
	// ackBytes is how much a zone leaves unacknowledged at most. It is half of what a
	// server sends a zone that has acknowledged nothing of it.
	ackBytes = firstWindow / 2
)

// AckPace is when a zone acknowledges: at once when it has not lately, and otherwise when
// ackEvery have passed since. What is not to wait is told to Owe. It has no clock. The zero
// value is that of a zone which has acknowledged nothing.
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

// Due reports whether the zone is to acknowledge now, or else in how long; zero is never,
// unless something else is owed until then.
func (p *AckPace) Due(now time.Time) (due bool, wait time.Duration) {
	if !p.owed {
		return false, 0
	}
	if wait = p.last.Add(ackEvery).Sub(now); p.atOnce || wait <= 0 {
		return true, 0
	}
	return false, wait
}

// Acknowledged notes that the zone acknowledges everything owed.
func (p *AckPace) Acknowledged(now time.Time) {
	*p = AckPace{last: now, acked: p.consumed, consumed: p.consumed}
}
