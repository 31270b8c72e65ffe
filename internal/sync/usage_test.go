package zonesync

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	syncv1 "meridian/api/sync/v1"
)

// TestUsage: what a zone that does not acknowledge was sent is counted until its stream has
// ended, and what the feed keeps is.
func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		synctest.Wait()
		before := c.server.Usage()
		require.Zero(t, before.Streams)
		require.Zero(t, before.UnacknowledgedBytes)
		require.Equal(t, feedBytes, before.FeedLimit)
		stream, closed := c.openStream()
		require.NoError(t, stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{
			Hello: &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: "silent", Instance: "i"},
		}}))
		synctest.Wait()
		c.write(put(policyKey("a"), `"`+strings.Repeat("x", 10<<10)+`"`))
		synctest.Wait()
		u := c.server.Usage()
		require.Equal(t, 1, u.Streams)
		require.Greater(t, u.UnacknowledgedBytes, uint64(10<<10))
		require.Greater(t, u.FeedBytes, before.FeedBytes+10<<10)
		closed()
		synctest.Wait()
		u = c.server.Usage()
		require.Zero(t, u.Streams)
		require.Zero(t, u.UnacknowledgedBytes)
		c.stop()
	})
}
