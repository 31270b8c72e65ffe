package zonesync

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
)

const (
	// settledAfter is how long another server has to serve zones, each time it was asked,
	// before it is sent any: one that comes and goes is sent none.
	settledAfter = 30 * time.Second
	// movableAfter is how long a zone has been connected at least when it is moved, and
	// movedFor how long this server does not move it again: one that comes back could not
	// reach the other server.
	movableAfter = time.Minute
	movedFor     = time.Hour
	// tolerance is the part of its share, and moveAtOnce the part of its zones, by which a
	// server may exceed its share, and which it moves at a time; both inverse.
	tolerance  = 10
	moveAtOnce = 50
)

// balance is what a server knows for spreading zones over servers. The zero value knows
// nothing.
type balance struct {
	moves atomic.Uint64

	mu sync.Mutex // guards what follows
	// serving are the other servers that can take zones, and since when.
	serving map[string]time.Time
	// moved are the zones that were moved, and when, for movedFor.
	moved map[resource.ZoneName]time.Time
}

// Moved counts the zones that were sent to other servers.
func (s *Server) Moved() uint64 { return s.balance.moves.Load() }

// Balance sends a few zones to servers that have fewer, if this one has clearly more than
// its share, and returns how many. reports are those of all other servers of the global;
// complete says that none is missing. Call it every few seconds.
//
// A zone continues to serve its replica meanwhile, and resumes where it was.
func (s *Server) Balance(reports []Report, complete bool, now time.Time) int {
	peers := s.balance.settled(s, reports, complete, now)
	if len(peers) == 0 {
		return 0
	}
	streams := s.movable(now)
	mine := s.registry.connected()
	total := mine
	for _, p := range peers {
		total += p.zones
	}
	share := (total + len(peers)) / (len(peers) + 1) // rounded up
	if mine <= share+share/tolerance+1 {
		return 0
	}
	moved := 0
	for most := min(mine-share, max(mine/moveAtOnce, 1)); moved < most && moved < len(streams); moved++ {
		to := &peers[0]
		for i := range peers {
			if peers[i].zones < to.zones {
				to = &peers[i]
			}
		}
		if to.zones >= share {
			break
		}
		to.zones++
		s.move(streams[moved], *to, now)
	}
	if moved > 0 {
		s.cfg.Logger.Info("zones are sent to servers with fewer of them", "zones", moved, "connected", mine, "share", share)
	}
	return moved
}

// loaded is another server that can take zones, and how many it has.
type loaded struct {
	name, address string
	zones         int
}

// settled returns the other servers that can take zones; none while there is one that
// could not do so for a while.
func (b *balance) settled(s *Server, reports []Report, complete bool, now time.Time) []loaded {
	b.mu.Lock()
	defer b.mu.Unlock()
	epoch := s.feed.position().epoch
	_, suspended := s.rechecked()
	serving := map[string]time.Time{}
	var out []loaded
	for _, r := range reports {
		if suspended != nil || r.Address == "" || r.Epoch != epoch {
			continue
		}
		since, known := b.serving[r.Server]
		if !known {
			since = now
		}
		serving[r.Server] = since
		complete = complete && now.Sub(since) >= settledAfter
		p := loaded{name: r.Server, address: r.Address}
		for _, in := range r.Instances {
			if in.Connected {
				p.zones++
			}
		}
		out = append(out, p)
	}
	b.serving = serving
	if !complete {
		return nil // one that does not answer may have zones, and a new one is to get its share
	}
	return out
}

// movable returns the streams that can be moved now, in no order.
func (s *Server) movable(now time.Time) []*conn {
	b := &s.balance
	b.mu.Lock()
	defer b.mu.Unlock()
	for zone, at := range b.moved {
		if now.Sub(at) >= movedFor {
			delete(b.moved, zone)
		}
	}
	var out []*conn
	for _, c := range s.dispatcher.streams() {
		c.mu.Lock()
		_, moved := b.moved[c.zone]
		idle := c.joined && c.err == nil && c.pub.following() && len(c.asks.pending) == 0
		if idle && !moved && now.Sub(c.began) >= movableAfter {
			out = append(out, c)
		}
		c.mu.Unlock()
	}
	return out
}

// move sends a zone to another server.
func (s *Server) move(c *conn, to loaded, now time.Time) {
	s.balance.mu.Lock()
	if s.balance.moved == nil {
		s.balance.moved = map[resource.ZoneName]time.Time{}
	}
	s.balance.moved[c.zone] = now // a member's zone does not change
	s.balance.mu.Unlock()
	s.balance.moves.Add(1)
	c.end(&fenceError{
		reason: syncv1.FenceReason_FENCE_REASON_MOVED, address: to.address,
		message: fmt.Sprintf("this server has more zones than its share: connect to %s (%s)", to.name, to.address),
	})
}

// connected counts the connections of zones.
func (r *registry) connected() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, instances := range r.zones {
		for _, in := range instances {
			if in.conn != nil {
				n++
			}
		}
	}
	return n
}
