package zonesync

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// probe has every server that runs look at the others, and returns how many zones each
// sent away.
func (f *fleet) probe() map[string]int {
	moved := map[string]int{}
	for address, s := range f.servers {
		if s.listen == nil {
			continue
		}
		var reports []Report
		for other, o := range f.servers {
			if other != address && o.listen != nil {
				reports = append(reports, o.server.Report())
			}
		}
		if n := s.server.Balance(reports, len(reports) == len(f.servers)-1, time.Now()); n > 0 {
			moved[address] = n
		}
	}
	return moved
}

// watch probes every five seconds for a while, and returns the most zones that a server
// sent away at once.
func (f *fleet) watch(d time.Duration) (most int) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		<-time.After(5 * time.Second)
		synctest.Wait()
		for _, n := range f.probe() {
			most = max(most, n)
		}
	}
	synctest.Wait()
	return most
}

// loads returns how many zones each server has.
func (f *fleet) loads() map[string]int {
	loads := map[string]int{}
	for address, s := range f.servers {
		loads[address] = s.server.registry.connected()
	}
	return loads
}

func (f *fleet) moves() (n uint64) {
	for _, s := range f.servers {
		n += s.server.Moved()
	}
	return n
}

// TestZonesSpread: zones that are all on one server, since the others were down, are
// spread one at a time, each is moved once, and nothing moves any more after that.
func TestZonesSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, serverA, serverB, serverC)
		f.servers[serverB].stop()
		f.servers[serverC].stop()
		var zones []*zone
		for i := range 12 {
			zones = append(zones, f.zone(fmt.Sprintf("z-%d", i), []string{serverA, serverB, serverC}))
		}
		rev := f.write("one")
		for _, z := range zones {
			f.reaches(z, rev)
		}
		f.watch(2 * time.Minute)
		f.start(serverB)
		require.Zero(t, f.watch(2*time.Minute), "one server does not answer")
		f.start(serverC)
		require.Zero(t, f.watch(settledAfter-5*time.Second), "it may be gone again")
		require.Equal(t, map[string]int{serverA: 12, serverB: 0, serverC: 0}, f.loads())

		require.Equal(t, 1, f.watch(3*time.Minute))
		loads := f.loads()
		require.Equal(t, 5, loads[serverA], "one more than its share, and no more is moved for that")
		require.ElementsMatch(t, []int{5, 4, 3}, slices.Collect(maps.Values(loads)))
		require.EqualValues(t, 7, f.moves())
		require.Zero(t, f.watch(time.Hour))
		require.Equal(t, loads, f.loads())
		rev = f.write("two")
		for _, z := range zones {
			require.Zero(t, f.reaches(z, rev))
			z.stop()
		}
	})
}

// TestZonesThatCannotMove: a zone that knows no other server comes back, and is left in
// peace for an hour.
func TestZonesThatCannotMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, serverA, serverB)
		var zones []*zone
		for i := range 4 {
			zones = append(zones, f.zone(fmt.Sprintf("z-%d", i), []string{serverA}))
		}
		rev := f.write("one")
		for _, z := range zones {
			f.reaches(z, rev)
		}
		f.watch(59 * time.Minute)
		require.EqualValues(t, len(zones), f.moves())
		require.Equal(t, map[string]int{serverA: 4, serverB: 0}, f.loads())
		f.watch(5 * time.Minute)
		require.EqualValues(t, 2*len(zones), f.moves())
		for _, z := range zones {
			z.stop()
		}
	})
}

// TestWhoIsMoved: zones that are up to date, have been connected for a while and owe no
// answer, to servers that serve zones of the same history and have fewer.
func TestWhoIsMoved(t *testing.T) {
	now := time.Now()
	ours := store.Epoch{ClusterID: "c1", Incarnation: 1}
	other := func(change func(*Report)) []Report {
		r := Report{Server: "b", Address: serverB, Epoch: ours}
		change(&r)
		return []Report{r}
	}
	for name, test := range map[string]struct {
		zones   int
		arrange func(*Server, *conn)
		reports []Report
		silent  bool
		moved   int
	}{
		"one at a time":               {zones: 10, moved: 1},
		"more at a time, of many":     {zones: 200, moved: 4},
		"no more than its share":      {zones: 2, moved: 0},
		"little more than its share":  {zones: 3, reports: other(func(r *Report) { r.Instances = connectedInstances(1) })},
		"as many there":               {zones: 10, reports: other(func(r *Report) { r.Instances = connectedInstances(10) })},
		"gone there":                  {zones: 4, moved: 1, reports: other(func(r *Report) { r.Instances = make([]Instance, 4) })},
		"a server is silent":          {zones: 10, silent: true},
		"it serves no zones":          {zones: 10, reports: other(func(r *Report) { r.Address = "" })},
		"it has another history":      {zones: 10, reports: other(func(r *Report) { r.Epoch.Random++ })},
		"this server serves no zones": {zones: 10, arrange: func(s *Server, _ *conn) { s.suspended = "it has had no leader" }},
		"connected just now":          {zones: 10, arrange: func(_ *Server, c *conn) { c.began = now }},
		"not welcomed":                {zones: 10, arrange: func(_ *Server, c *conn) { c.pub.phase = phaseChunks }},
		"not up to date":              {zones: 10, arrange: func(_ *Server, c *conn) { c.pub.sent = 1 }},
		"asked":                       {zones: 10, arrange: func(_ *Server, c *conn) { c.asks.pending = map[uint64]*pendingAsk{1: {}} }},
		"already ended":               {zones: 10, arrange: func(_ *Server, c *conn) { c.err = errClosed }},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewServer(ServerConfig{Store: store.New(memory()), Synced: syncedInTests, Name: "a", Address: serverA, Logger: slog.New(slog.DiscardHandler)})
			s.feed.state.epoch = ours
			var streams []*conn
			for i := range test.zones {
				zone := fmt.Sprintf("z-%d", i)
				c := &conn{server: s, pub: newPublisher(s.pacing, s.feed, s.cfg.Store.View), cancel: func() {}, joined: true, zone: resource.ZoneName(zone), began: now.Add(-movableAfter)}
				c.pub.phase = phaseFeed
				c.writer.over = true
				_, err := s.registry.join(c.zone, c, &syncv1.Hello{Zone: zone, Instance: "i"}, now)
				require.NoError(t, err)
				s.dispatcher.add(c)
				if streams = append(streams, c); test.arrange != nil {
					test.arrange(s, c)
				}
			}
			reports := test.reports
			if reports == nil {
				reports = other(func(*Report) {})
			}
			require.Zero(t, s.Balance(reports, true, now.Add(-settledAfter)), "not settled")
			require.Equal(t, test.moved, s.Balance(reports, !test.silent, now))
			ended := 0
			for _, c := range streams {
				if fence := (*fenceError)(nil); errors.As(c.err, &fence) {
					require.Equal(t, syncv1.FenceReason_FENCE_REASON_MOVED, fence.reason)
					require.Equal(t, serverB, fence.address)
					ended++
				}
			}
			require.Equal(t, test.moved, ended)
		})
	}
}

func connectedInstances(n int) []Instance {
	return slices.Repeat([]Instance{{Connected: true}}, n)
}

// TestServerThatAZoneIsSentTo comes first, if the zone knows it.
func TestServerThatAZoneIsSentTo(t *testing.T) {
	all := []string{serverA, serverB, serverC}
	require.Equal(t, []string{serverB, serverA, serverC}, first(serverB, all))
	require.Equal(t, all, first("10.0.0.9:5685", all))
	require.Equal(t, all, first("", all))
}
