package limits

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// clients connect to limits at a time that the test sets.
type clients struct {
	*Connections
	at      time.Time
	refused map[string]int
	closed  map[string]int
}

func newClients(cfg ConnectionConfig) *clients {
	c := &clients{at: time.Unix(0, 0), refused: map[string]int{}, closed: map[string]int{}}
	c.Connections = NewConnections(cfg, func() time.Time { return c.at }, func(limit string) { c.refused[limit]++ })
	return c
}

func tcp(host string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), 1))
}

func (c *clients) connect(host string) (*Connection, error) {
	return c.Begin(tcp(host), func() { c.closed[host]++ })
}

func (c *clients) must(t *testing.T, host string) *Connection {
	t.Helper()
	n, err := c.connect(host)
	require.NoError(t, err)
	return n
}

func requireLimit(t *testing.T, limit string, err error) {
	t.Helper()
	var e *Exceeded
	require.ErrorAs(t, err, &e)
	require.Equal(t, limit, e.Limit)
}

var large = ConnectionConfig{Total: 1000, PerAddress: 1000, Unauthenticated: 1000, UnauthenticatedTotal: 1000}

func TestConnectionsAreLimited(t *testing.T) {
	t.Run("in all", func(t *testing.T) {
		cfg := large
		cfg.Total = 2
		c := newClients(cfg)
		c.must(t, "10.0.0.1").Known()
		second := c.must(t, "10.0.0.2")
		_, err := c.connect("10.0.0.3")
		requireLimit(t, LimitConnections, err)
		second.End()
		second.End()
		c.must(t, "10.0.0.3")
	})
	t.Run("of one address, authenticated or not", func(t *testing.T) {
		cfg := large
		cfg.PerAddress = 2
		c := newClients(cfg)
		c.must(t, "10.0.0.1").Known()
		c.must(t, "10.0.0.1")
		_, err := c.connect("10.0.0.1")
		requireLimit(t, LimitAddress, err)
		c.must(t, "10.0.0.2")
		require.Equal(t, map[string]int{LimitAddress: 1}, c.refused)
	})
	t.Run("the addresses of one IPv6 network are one", func(t *testing.T) {
		cfg := large
		cfg.PerAddress = 1
		c := newClients(cfg)
		c.must(t, "2001:db8::1")
		_, err := c.connect("2001:db8::2")
		requireLimit(t, LimitAddress, err)
		c.must(t, "2001:db8:0:1::1")
		c.must(t, "::ffff:10.0.0.1")
		_, err = c.connect("10.0.0.1")
		requireLimit(t, LimitAddress, err)
	})
	t.Run("how often one address connects", func(t *testing.T) {
		c := newClients(large)
		for range connectBurst {
			c.must(t, "10.0.0.1").End()
		}
		_, err := c.connect("10.0.0.1")
		requireLimit(t, LimitConnects, err)
		c.must(t, "10.0.0.2")
		c.at = c.at.Add(time.Second)
		for range connectRate {
			c.must(t, "10.0.0.1").End()
		}
		_, err = c.connect("10.0.0.1")
		requireLimit(t, LimitConnects, err)
	})
	t.Run("authenticated callers connect as often as they need", func(t *testing.T) {
		c := newClients(large)
		for range 2 * connectBurst {
			n := c.must(t, "10.0.0.1")
			n.Known()
			n.End()
		}
	})
}

func TestUnauthenticatedConnectionsMakeWay(t *testing.T) {
	cfg := large
	cfg.Unauthenticated, cfg.UnauthenticatedTotal = 2, 3
	c := newClients(cfg)
	c.must(t, "10.0.0.1").Known()
	c.must(t, "10.0.0.1")
	c.at = c.at.Add(time.Second)
	c.must(t, "10.0.0.1")
	_, err := c.connect("10.0.0.1")
	requireLimit(t, LimitUnauthenticated, err)
	require.Empty(t, c.closed, "both have had no time yet")
	c.at = c.at.Add(trial - time.Second)
	c.must(t, "10.0.0.1")
	require.Equal(t, map[string]int{"10.0.0.1": 1}, c.closed, "the oldest had its time")

	// Another address always finds a place: the one with most makes way.
	c.must(t, "10.0.0.2")
	require.Equal(t, 1, c.closed["10.0.0.1"])
	c.must(t, "10.0.0.3")
	require.Equal(t, 2, c.closed["10.0.0.1"])
	_, err = c.connect("10.0.0.4")
	requireLimit(t, LimitUnauthenticated, err)
	total, unauthenticated := c.Counts()
	require.Equal(t, 3, unauthenticated)
	require.Equal(t, 6, total, "until those closed have ended")
}

func TestCallsOfUnauthenticatedConnections(t *testing.T) {
	c := newClients(large)
	flood := c.must(t, "10.0.0.1")
	calls := func(n *Connection, credentials bool) (made int) {
		for made < 1_000_000 && n.Call(credentials) == nil {
			made++
		}
		return made
	}
	require.Equal(t, callBurst, calls(flood, false))
	requireLimit(t, LimitCalls, flood.Call(false))
	require.Zero(t, calls(c.must(t, "10.0.0.1"), false), "its address is what is limited")
	require.Equal(t, callBurst, calls(c.must(t, "10.0.0.2"), false))
	require.Zero(t, calls(c.must(t, "10.0.0.3"), false), "all of them together are limited")
	require.NotZero(t, calls(c.must(t, "10.0.0.4"), true), "calls with credentials do not wait for those without")
	known := c.must(t, "10.0.0.1")
	known.Known()
	for range 2 * callBurst {
		require.NoError(t, known.Call(true))
	}
	c.at = c.at.Add(time.Second)
	require.Equal(t, callRate+1, calls(c.must(t, "10.0.0.1"), false), "and what the caller who was authenticated gave back")
}

// What is read from a connection whose calls are refused waits, for each of them.
func TestRefusedCallsPutOffTheNextRead(t *testing.T) {
	c := newClients(large)
	flood, other := c.must(t, "10.0.0.1"), c.must(t, "10.0.0.1")
	for flood.Call(false) == nil {
		require.Zero(t, flood.Pause(), "calls that are served are read at once")
	}
	require.Equal(t, refusedPause, flood.Pause())
	require.Zero(t, other.Pause(), "other connections are read")
	require.Error(t, flood.Call(false))
	require.Equal(t, 2*refusedPause, flood.Pause())
	c.at = c.at.Add(refusedPause)
	require.Equal(t, refusedPause, flood.Pause())
	c.at = c.at.Add(time.Minute)
	require.Zero(t, flood.Pause())
	for range 2 * callBurst {
		_ = flood.Call(false)
	}
	require.Equal(t, maxPause, flood.Pause())
	require.False(t, flood.IsKnown())
	flood.Known()
	require.True(t, flood.IsKnown())
	require.Zero(t, flood.Pause(), "authenticated callers do not wait")
}

// Thousands of clients of one address that come together, more than the server can
// authenticate at once, are refused and come again: those that wait for the server
// keep their places, and what was refused takes nothing from those that come later.
func TestClientsThatComeTogetherAreAllServed(t *testing.T) {
	const places, clients = 16, 8 * connectBurst
	cfg := large
	cfg.Unauthenticated, cfg.PerAddress, cfg.Total = places, clients, 2*clients
	c := newClients(cfg)
	var waiting []*Connection
	for known := 0; known < clients; {
		for range 32 * places { // more than there are places try each time
			if n, err := c.connect("10.0.0.1"); err == nil {
				n.Serving()
				waiting = append(waiting, n)
			}
		}
		require.Len(t, waiting, places)
		require.Empty(t, c.closed)
		c.at = c.at.Add(2 * trial) // the server is slow
		for _, n := range waiting {
			n.Served()
			n.Known()
			known++
		}
		waiting = waiting[:0]
	}
	require.Zero(t, c.refused[LimitConnects])

	// Places of those that let the server wait are taken.
	silent := c.must(t, "10.0.0.2")
	silent.Serving()
	c.at = c.at.Add(2 * trial)
	silent.Served()
	for range places - 1 {
		c.must(t, "10.0.0.2").Serving()
	}
	_, err := c.connect("10.0.0.2")
	requireLimit(t, LimitUnauthenticated, err)
	c.at = c.at.Add(trial)
	c.must(t, "10.0.0.2")
	require.Equal(t, 1, c.closed["10.0.0.2"])
	_, err = c.connect("10.0.0.2")
	requireLimit(t, LimitUnauthenticated, err)
}

// A flood of aborted or refused calls ends its connection.
func TestAbortedCallsCloseTheConnection(t *testing.T) {
	for name, abort := range map[string]func(n *Connection){
		"aborted":          func(n *Connection) { n.Aborted() },
		"refused":          func(n *Connection) { _ = n.Call(false) },
		"of known callers": func(n *Connection) { n.Known(); n.Aborted() },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClients(large)
			n := c.must(t, "10.0.0.1")
			made := 0
			for ; len(c.closed) == 0; made++ {
				require.Less(t, made, 2*(abortBurst+callBurst))
				abort(n)
			}
			require.GreaterOrEqual(t, made, abortBurst)
			for range 100 {
				abort(n)
			}
			require.Equal(t, 1, c.closed["10.0.0.1"], "it is closed once")
			require.Equal(t, 1, c.refused[LimitAborts])
			total, _ := c.Counts()
			require.Zero(t, total)
		})
	}
	t.Run("sooner for calls that are refused", func(t *testing.T) {
		c := newClients(large)
		n := c.must(t, "10.0.0.1")
		for range callBurst {
			require.NoError(t, n.Call(true))
		}
		refused := 0
		for ; len(c.closed) == 0; refused++ {
			require.Error(t, n.Call(true))
		}
		require.Equal(t, abortBurst/refusedWeight+1, refused)
	})
	t.Run("not for those that give up a call now and then", func(t *testing.T) {
		c := newClients(large)
		n := c.must(t, "10.0.0.1")
		for range 10 * abortBurst {
			n.Aborted()
			c.at = c.at.Add(time.Second / abortRate)
		}
		require.Empty(t, c.closed)
	})
}

// Addresses of which nothing is known any more take no memory.
func TestAddressesAreForgotten(t *testing.T) {
	c := newClients(large)
	for i := range 20 * forgetAbove {
		c.must(t, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)).End()
		c.at = c.at.Add(time.Second)
		require.LessOrEqual(t, len(c.sources), 2*forgetAbove)
	}
}

// Whatever is done, no limit is exceeded, and nothing remains of what has ended.
func TestConnectionsNeverExceedTheirLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := ConnectionConfig{
			Total: rapid.IntRange(1, 12).Draw(t, "total"), PerAddress: rapid.IntRange(1, 8).Draw(t, "address"),
			Unauthenticated: rapid.IntRange(1, 5).Draw(t, "unauthenticated"), UnauthenticatedTotal: rapid.IntRange(1, 8).Draw(t, "all"),
		}
		c := newClients(cfg)
		live := map[*Connection]bool{}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			host := fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 4).Draw(t, "host"))
			var n *Connection
			for n = range live {
				break
			}
			switch action := rapid.IntRange(0, 4).Draw(t, "action"); {
			case action == 0 && n != nil:
				n.End()
				delete(live, n)
			case action == 1 && n != nil:
				n.Known()
			case action == 2 && n != nil:
				_ = n.Call(rapid.Bool().Draw(t, "credentials"))
			case action == 3:
				c.at = c.at.Add(time.Duration(rapid.IntRange(0, 15).Draw(t, "seconds")) * time.Second)
			default:
				if made, err := c.connect(host); err == nil {
					live[made] = true
				}
			}
			total, unauthenticated := c.Counts()
			require.Equal(t, len(live), total)
			require.LessOrEqual(t, total, cfg.Total)
			require.LessOrEqual(t, unauthenticated, cfg.UnauthenticatedTotal)
			for _, s := range c.sources {
				require.LessOrEqual(t, s.total, cfg.PerAddress)
				require.LessOrEqual(t, s.unauthenticated.Len(), cfg.Unauthenticated)
			}
		}
		for n := range live {
			n.End()
		}
		total, unauthenticated := c.Counts()
		require.Zero(t, total)
		require.Zero(t, unauthenticated)
	})
}

func TestWritesAreLimited(t *testing.T) {
	at := time.Unix(0, 0)
	w := NewWrites(WriteConfig{Requests: 10, Bytes: 1000, All: 2, LargestRequest: 1500}, func() time.Time { return at })
	fill := func(caller string, admin bool) (made int) {
		for made < 1000 && w.Request(caller, admin) == nil {
			made++
		}
		return made
	}
	require.Equal(t, 20, fill("a", false))
	requireLimit(t, LimitWriteRequests, w.Request("a", false))
	require.Equal(t, 20, fill("b", false))
	requireLimit(t, LimitAllWriteRequests, w.Request("c", false))
	require.Equal(t, 20, fill("admin", true), "administrators are not held up")
	requireLimit(t, LimitWriteRequests, w.Request("admin", true))

	require.NoError(t, w.Bytes("d", false, 1500))
	require.NoError(t, w.Bytes("d", false, 1500))
	var e *Exceeded
	require.ErrorAs(t, w.Bytes("d", false, 1500), &e)
	require.Equal(t, LimitWriteBytes, e.Limit)
	require.Equal(t, 1500*time.Millisecond, e.Retry)
	at = at.Add(e.Retry)
	require.NoError(t, w.Bytes("d", false, 1500), "after the time that was said")
	for i := range 1000 {
		if err := w.Bytes(fmt.Sprint(i), false, 1500); err != nil {
			requireLimit(t, LimitAllWriteBytes, err)
			require.NoError(t, w.Bytes("admin", true, 1500))
			return
		}
	}
	t.Fatal("all callers together are not limited")
}

func TestSlots(t *testing.T) {
	s := NewSlots(LimitWatches, "watches", 2, 3)
	first, err := s.Take("a")
	require.NoError(t, err)
	_, err = s.Take("a")
	require.NoError(t, err)
	_, err = s.Take("a")
	requireLimit(t, LimitWatches, err)
	_, err = s.Take("b")
	require.NoError(t, err)
	_, err = s.Take("c")
	requireLimit(t, LimitWatches, err)
	first()
	_, err = s.Take("c")
	require.NoError(t, err)
}

// A few owners take all that there are, and one who has none still finds one.
func TestSpareSlots(t *testing.T) {
	s := NewSlots(LimitZoneWaits, "waits", 2, 3).WithSpare(1)
	for _, owner := range []string{"a", "a", "b"} {
		_, err := s.Take(owner)
		require.NoError(t, err)
	}
	_, err := s.Take("b")
	requireLimit(t, LimitZoneWaits, err)
	done, err := s.Take("c")
	require.NoError(t, err)
	_, err = s.Take("c")
	requireLimit(t, LimitZoneWaits, err)
	_, err = s.Take("d")
	requireLimit(t, LimitZoneWaits, err)
	done()
	_, err = s.Take("d")
	require.NoError(t, err)
}

// FuzzBucket checks that a rate is never exceeded, whatever is asked for and when.
func FuzzBucket(f *testing.F) {
	f.Add(10.0, []byte{1, 5, 200, 3, 0, 9})
	f.Fuzz(func(t *testing.T, rate float64, steps []byte) {
		if !(rate > 1e-3 && rate < 1e9) {
			return
		}
		const burst = 100
		b, at, taken := NewBucket(rate, burst), time.Unix(0, 0), 0.0
		begun := at
		for i, s := range steps {
			if i%2 == 0 {
				at = at.Add(time.Duration(s) * time.Millisecond)
				continue
			}
			wait := b.Wait(at, float64(s))
			if b.Take(at, float64(s)) {
				require.Zero(t, wait)
				taken += float64(s)
			} else {
				require.Positive(t, wait)
			}
			require.LessOrEqual(t, taken, burst+256+rate*at.Sub(begun).Seconds()+1e-3)
		}
	})
}
