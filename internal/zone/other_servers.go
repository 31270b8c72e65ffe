package zone

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/consensus"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/service/identities"
)

const (
	// reviewInterval is how often a server looks which others there are, and tells them what
	// has changed about its proxies.
	reviewInterval = time.Second
	// repeatInterval is how often it looks at all proxies, and takes all that the others say
	// of theirs again, in place of those that have changed.
	repeatInterval = 2 * time.Minute
	// absentAfter is how long a server has to be unreachable for the leader to look after
	// what was registered there: longer than it takes to restart its listener, and than it
	// keeps proxies when it is cut off (cluster.Hooks.Suspend).
	absentAfter = 6 * time.Second
	// adoptInterval is how often the leader looks for registrations without a server,
	// beside the moments at which there may be new ones.
	adoptInterval = 10 * time.Second
)

// otherServers is what the other servers of the zone are to this one: what they say of their proxies, and which of
// them are absent. It serves them, too. It is safe for concurrent use.
type otherServers struct {
	peerv1.UnimplementedProxyServiceServer
	zone *zone
	// assembled is set once the zone has its services: others may ask earlier.
	assembled atomic.Bool

	mu sync.Mutex // guards what follows
	// tls is what is known of mutual TLS of the proxies of this server.
	tls map[resource.Key]proxyTLS
	// told are those who are told of its proxies, one for each stream.
	told map[*follower]struct{}
	// untold are dataplanes of which another server has said something that may not have
	// been taken: they were unknown here, or have come since.
	untold map[resource.Key]struct{}
	// reports are those of the others, by server, and following those that say so now.
	reports   map[string]map[resource.Key]*peerv1.ProxyReport
	following map[string]bool
	// lost are those that do not, and since when.
	lost map[string]time.Time
	// silent are the servers that do not answer the leader, and since when; leads is
	// whether this server leads, members are the servers that there are.
	silent  map[string]time.Time
	leads   bool
	members []string
	// membersSince is when they changed last.
	membersSince time.Time
}

func newOtherServers(z *zone) *otherServers {
	return &otherServers{
		zone: z, tls: map[resource.Key]proxyTLS{}, told: map[*follower]struct{}{}, untold: map[resource.Key]struct{}{},
		reports: map[string]map[resource.Key]*peerv1.ProxyReport{}, following: map[string]bool{}, lost: map[string]time.Time{}, silent: map[string]time.Time{},
	}
}

// Identities counts the dataplanes of this server that have yet to acknowledge the state of
// an authority.
func (o *otherServers) Identities(_ context.Context, req *peerv1.IdentitiesRequest) (*peerv1.IdentitiesResponse, error) {
	if !o.assembled.Load() {
		return nil, errStarting
	}
	z := o.zone
	waiting := z.dataplanes.Unacknowledged(resource.MeshName(req.GetMesh()), req.GetStamp())
	return &peerv1.IdentitiesResponse{
		Connected: uint64(waiting.Connected), Away: uint64(waiting.Away), //nolint:gosec // counts
		RemembersMs: uint64(max(0, z.Now().Sub(z.identities.Started()).Milliseconds())),
	}, nil
}

// ServerAuthorities says by which authorities this server verifies others.
func (o *otherServers) ServerAuthorities(context.Context, *peerv1.ServerAuthoritiesRequest) (*peerv1.ServerAuthoritiesResponse, error) {
	own := o.zone.cluster.Authorities()
	return &peerv1.ServerAuthoritiesResponse{Trusted: own.GetTrusted(), Signer: own.GetSigner()}, nil
}

// elsewhere is identities.Config.Elsewhere.
func (o *otherServers) elsewhere(ctx context.Context, mesh resource.MeshName, stamp string) (waiting identities.Waiting, since time.Time, complete bool) {
	o.mu.Lock()
	since, complete = o.membersSince, o.leads
	o.mu.Unlock()
	if !complete {
		return waiting, since, false
	}
	answers, asked := askOthers(ctx, o, func(ctx context.Context, c peerv1.ProxyServiceClient) (*peerv1.IdentitiesResponse, error) {
		return c.Identities(ctx, &peerv1.IdentitiesRequest{Mesh: string(mesh), Stamp: stamp})
	})
	now := o.zone.Now()
	for _, answer := range answers {
		waiting.Connected += int(answer.GetConnected()) //nolint:gosec // counts
		waiting.Away += int(answer.GetAway())           //nolint:gosec // counts
		if from := now.Add(-time.Duration(answer.GetRemembersMs()) * time.Millisecond); from.After(since) {
			since = from
		}
	}
	// Also one whose proxies have gone elsewhere may have a certificate to remember.
	return waiting, since, len(asked.silent) == 0
}

// run follows the others until ctx ends.
func (o *otherServers) run(ctx context.Context) error {
	o.assembled.Store(true)
	var following sync.WaitGroup
	defer following.Wait()
	stops := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	tick := time.NewTicker(reviewInterval)
	defer tick.Stop()
	adopted, repeated := time.Time{}, time.Time{}
	for {
		peers := o.zone.cluster.Others()
		for _, p := range peers {
			if stops[p.Name] == nil {
				followed, stop := context.WithCancel(ctx)
				stops[p.Name] = stop
				following.Go(func() { o.follow(followed, p.Name) })
			}
		}
		for name, stop := range stops {
			if !slices.ContainsFunc(peers, func(p cluster.Peer) bool { return p.Name == name }) {
				stop()
				delete(stops, name)
			}
		}
		changed := o.review(ctx)
		if now := o.zone.Now(); now.Sub(repeated) >= repeatInterval {
			o.tellAll()
			repeated = now
		} else {
			o.tellUntold()
		}
		if now := o.zone.Now(); changed || now.Sub(adopted) >= adoptInterval {
			o.zone.dataplanes.Adopt()
			adopted = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// review looks which servers are absent, and reports whether that has changed.
func (o *otherServers) review(ctx context.Context) (changed bool) {
	z, now := o.zone, o.zone.Now()
	leads := z.Node.IsLeader()
	var members []string
	for _, s := range z.Node.Servers() {
		members = append(members, s.Name)
	}
	slices.Sort(members)
	var unreachable []string
	if leads {
		for _, m := range z.Node.Members(ctx) {
			if m.State == consensus.StateUnreachable {
				unreachable = append(unreachable, m.Name)
			}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	changed = o.leads != leads || !slices.Equal(o.members, members)
	if !slices.Equal(o.members, members) || leads && !o.leads {
		o.membersSince = now
	}
	o.leads, o.members = leads, members
	for _, name := range unreachable {
		if since, known := o.silent[name]; !known {
			o.silent[name] = now
		} else if wait := now.Sub(since); wait >= absentAfter && wait < absentAfter+2*reviewInterval {
			changed = true
		}
	}
	maps.DeleteFunc(o.silent, func(name string, _ time.Time) bool { return !slices.Contains(unreachable, name) })
	return changed
}

// absent is dataplane.Config.Absent.
func (o *otherServers) absent(server string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.leads {
		return false
	}
	since, silent := o.silent[server]
	return !slices.Contains(o.members, server) || silent && o.zone.Now().Sub(since) >= absentAfter
}

// unreachable counts the other servers that do not tell of their proxies.
func (o *otherServers) unreachable() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range o.members {
		if name != o.zone.Name && !o.following[name] {
			n++
		}
	}
	return n
}

// follow keeps what another server says of its proxies until ctx ends.
func (o *otherServers) follow(ctx context.Context, server string) {
	defer o.drop(server)
	for ctx.Err() == nil {
		o.lose(server)
		err := o.receive(ctx, server)
		o.mu.Lock()
		delete(o.following, server)
		delete(o.reports, server)
		o.mu.Unlock()
		if ctx.Err() == nil {
			o.zone.Log.Debug("another server of the zone does not tell of its proxies", "server", server, "error", err)
		}
		select {
		case <-time.After(reviewInterval):
		case <-ctx.Done():
		}
	}
}

// lose notes since when a server tells nothing.
func (o *otherServers) lose(server string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.lost[server]; !known {
		o.lost[server] = o.zone.Now()
	}
}

// drop forgets a server that is no member any more.
func (o *otherServers) drop(server string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lost, server)
}

// receive takes what a server says until it says nothing more.
func (o *otherServers) receive(ctx context.Context, server string) error {
	peers := o.zone.cluster.Others()
	at := slices.IndexFunc(peers, func(p cluster.Peer) bool { return p.Name == server })
	if at < 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := peerv1.NewProxyServiceClient(peers[at].Conn).Proxies(ctx, &peerv1.ProxiesRequest{})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		o.take(server, response.GetProxies())
	}
}

// take takes what a server says.
func (o *otherServers) take(server string, reports []*peerv1.ProxyReport) {
	o.mu.Lock()
	o.following[server] = true
	delete(o.lost, server)
	have := o.reports[server]
	if have == nil {
		have = map[resource.Key]*peerv1.ProxyReport{}
		o.reports[server] = have
	}
	for _, r := range reports {
		if key := dataplaneOf(r); r.GetGone() {
			delete(have, key)
		} else {
			have[key] = r
		}
	}
	o.mu.Unlock()
	for _, r := range reports {
		o.tell(r)
	}
}

func dataplaneOf(r *peerv1.ProxyReport) resource.Key {
	return resource.Key{Kind: resource.KindDataplane, Mesh: resource.MeshName(r.GetMesh()), Name: r.GetName()}
}

// tell has what is made for the proxies of this server follow what another one says of
// mutual TLS of one of its own.
func (o *otherServers) tell(r *peerv1.ProxyReport) {
	z, key := o.zone, dataplaneOf(r)
	if r.GetGone() || z.dataplanes.State(key).Connected {
		return // it is known here what holds
	}
	if r.GetIdentified() {
		z.dataplanes.Attended(key)
		z.resources.Certified(key, r.GetCertified())
	}
	if r.GetEnvoy() {
		z.resources.Listening(key, true, r.GetListening())
	}
	if _, known := z.world.Dataplane(key); !known { // it has yet to be registered here
		o.mu.Lock()
		defer o.mu.Unlock()
		o.untold[key] = struct{}{}
	}
}

// tellAll tells everything again.
func (o *otherServers) tellAll() {
	o.mu.Lock()
	var all []*peerv1.ProxyReport
	for _, reports := range o.reports {
		for _, r := range reports {
			if r.GetIdentified() || r.GetEnvoy() {
				all = append(all, r)
			}
		}
	}
	clear(o.untold)
	o.mu.Unlock()
	for _, r := range all {
		o.tell(r)
	}
}

// tellUntold tells again what may not have been taken.
func (o *otherServers) tellUntold() {
	o.mu.Lock()
	var some []*peerv1.ProxyReport
	for key := range o.untold {
		for _, reports := range o.reports {
			if r := reports[key]; r != nil {
				some = append(some, r)
			}
		}
	}
	clear(o.untold)
	o.mu.Unlock()
	for _, r := range some {
		o.tell(r)
	}
}

// retellLocked has what another server has said of a proxy be taken again.
func (o *otherServers) retellLocked(key resource.Key) {
	for _, reports := range o.reports {
		if reports[key] != nil {
			o.untold[key] = struct{}{}
		}
	}
}

// touched notes which dataplanes have changed here, or come: what another server has said of
// their proxies is taken again.
func (o *otherServers) touched(touched []policy.Touch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range touched {
		o.retellLocked(t.Dataplane)
	}
}

// report returns what another server says of a proxy that is connected there; nil if none
// does.
func (o *otherServers) report(key resource.Key) *peerv1.ProxyReport {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, reports := range o.reports {
		if r := reports[key]; r != nil {
			return r
		}
	}
	return nil
}
