package consensus

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A server that restarts is two lines in the log: that it does not answer, and
// that it answers again. One that is back before an election is none.
func TestASilenceIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newContacts()
		fail := func(since time.Time, times int) (told int) {
			for range times {
				<-time.After(250 * time.Millisecond) // virtual time
				if h := c.observe(raft.FailedHeartbeatObservation{PeerID: "b#1", LastContact: since}); h != (contactChange{}) {
					require.Equal(t, "b", h.server)
					require.False(t, h.answers)
					require.Greater(t, h.silent, noContactReportDelay)
					told++
				}
			}
			return told
		}

		require.Zero(t, fail(time.Now(), 3), "too short to tell")
		require.Zero(t, c.observe(raft.ResumedHeartbeatObservation{PeerID: "b#1"}))

		require.Equal(t, 1, fail(time.Now(), 400))
		require.Equal(t, contactChange{server: "b", answers: true, silent: 100 * time.Second}, c.observe(raft.ResumedHeartbeatObservation{PeerID: "b#1"}))
		require.Zero(t, c.observe(raft.ResumedHeartbeatObservation{PeerID: "b#1"}))

		require.Equal(t, 1, fail(time.Now(), 20), "the next silence is told again")
		<-time.After(time.Hour) // virtual time, in which this server does not lead
		require.Equal(t, 1, fail(time.Now(), 20), "and so is one of a later lead")
	})
}
