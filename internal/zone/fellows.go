package zone

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/consensus"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/resource"
	"meridian/internal/service/dataplane"
	"meridian/internal/service/identities"
)

const (
	// reviewInterval is how often a server looks which others there are, and what has
	// changed about its proxies of which it is not notified.
	reviewInterval = time.Second
	// absentAfter is how long a server has to be unreachable for the leader to look after
	// what was registered there: longer than it takes to restart its listener, and than it
	// keeps proxies when it is cut off (cluster.Hooks.Suspend).
	absentAfter = 6 * time.Second
	// adoptInterval is how often the leader looks for registrations without a server,
	// beside the moments at which there may be new ones.
	adoptInterval = 10 * time.Second
)

// fellows are the other servers of the zone: what they say of their proxies, and which of
// them are absent. It serves them, too. It is safe for concurrent use.
type fellows struct {
	peerv1.UnimplementedProxyServiceServer
	zone *zone
	// assembled is set once the zone has its services: others may ask earlier.
	assembled atomic.Bool

	mu sync.Mutex // guards what follows
	// tls is what is known of mutual TLS of the proxies of this server.
	tls map[resource.Key]proxyTLS
	// told are those who are notified of its changes, one for each stream.
	told map[chan resource.Key]struct{}
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

// proxyTLS is what others are told of mutual TLS of a proxy.
type proxyTLS struct{ identified, certified, envoy, listening bool }

func newFellows(z *zone) *fellows {
	return &fellows{
		zone: z, tls: map[resource.Key]proxyTLS{}, told: map[chan resource.Key]struct{}{},
		reports: map[string]map[resource.Key]*peerv1.ProxyReport{}, following: map[string]bool{}, lost: map[string]time.Time{}, silent: map[string]time.Time{},
	}
}

// certified notes whether a proxy of this server has a certificate.
func (f *fellows) certified(key resource.Key, has bool) {
	f.note(key, func(t *proxyTLS) { t.identified, t.certified = true, has })
}

// listening notes whether a proxy of this server is an Envoy, and listens with TLS.
func (f *fellows) listening(key resource.Key, envoy, secure bool) {
	f.note(key, func(t *proxyTLS) { t.envoy, t.listening = envoy, secure })
}

func (f *fellows) note(key resource.Key, change func(*proxyTLS)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.tls[key]
	now := before
	if change(&now); now == before {
		return
	}
	f.tls[key] = now
	for told := range f.told {
		select {
		case told <- key:
		default: // the next review says it
		}
	}
}

// maxNotified bounds the changes that wait to be told to one server at once.
const maxNotified = 1024

// Proxies tells another server of the proxies of this one.
func (f *fellows) Proxies(_ *peerv1.ProxiesRequest, stream grpc.ServerStreamingServer[peerv1.ProxiesResponse]) error {
	if !f.assembled.Load() {
		return errStarting
	}
	changed := make(chan resource.Key, maxNotified)
	f.mu.Lock()
	f.told[changed] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.told, changed)
	}()
	sent := map[resource.Key]*peerv1.ProxyReport{}
	tick := time.NewTicker(reviewInterval)
	defer tick.Stop()
	for response := f.difference(sent); ; {
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-tick.C:
			response = f.difference(sent)
		case key := <-changed:
			response = f.differenceOf(sent, key, changed)
		case <-stream.Context().Done():
			return nil
		}
	}
}

// difference is what leads from what was sent to what holds now, which it notes as sent.
func (f *fellows) difference(sent map[resource.Key]*peerv1.ProxyReport) *peerv1.ProxiesResponse {
	out := &peerv1.ProxiesResponse{}
	here := f.zone.dataplanes.Proxies()
	for key := range here {
		f.add(out, sent, key)
	}
	for key := range sent {
		if _, ok := here[key]; !ok {
			delete(sent, key)
			out.Proxies = append(out.Proxies, &peerv1.ProxyReport{Mesh: string(key.Mesh), Name: key.Name, Gone: true})
		}
	}
	f.forget(here)
	return out
}

// differenceOf is that of one proxy, and of those that are notified of already.
func (f *fellows) differenceOf(sent map[resource.Key]*peerv1.ProxyReport, key resource.Key, changed <-chan resource.Key) *peerv1.ProxiesResponse {
	out := &peerv1.ProxiesResponse{}
	for {
		if f.zone.dataplanes.State(key).Connected {
			f.add(out, sent, key)
		}
		select {
		case key = <-changed:
		default:
			return out
		}
	}
}

// add adds what is to be said of a proxy, unless it was said.
func (f *fellows) add(out *peerv1.ProxiesResponse, sent map[resource.Key]*peerv1.ProxyReport, key resource.Key) {
	state := f.zone.inspect.proxyState(key)
	f.mu.Lock()
	t := f.tls[key]
	f.mu.Unlock()
	report := &peerv1.ProxyReport{
		Mesh: string(key.Mesh), Name: key.Name, Acked: uint64(state.Acked), Lag: state.Lag, LastError: state.LastError,
		Refused:    f.zone.dataplanes.State(key).Refused,
		Identified: t.identified, Certified: t.certified, Envoy: t.envoy, Listening: t.listening,
	}
	if before := sent[key]; before != nil && proto.Equal(before, report) {
		return
	}
	sent[key] = report
	out.Proxies = append(out.Proxies, report)
}

// forget forgets the proxies that are not here.
func (f *fellows) forget(here map[resource.Key]dataplane.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.tls, func(key resource.Key, _ proxyTLS) bool {
		_, ok := here[key]
		return !ok
	})
}

// Identities counts the dataplanes of this server that have yet to acknowledge the state of
// an authority.
func (f *fellows) Identities(_ context.Context, req *peerv1.IdentitiesRequest) (*peerv1.IdentitiesResponse, error) {
	if !f.assembled.Load() {
		return nil, errStarting
	}
	z := f.zone
	waiting := z.dataplanes.Unacknowledged(resource.MeshName(req.GetMesh()), req.GetStamp())
	return &peerv1.IdentitiesResponse{
		Connected: uint64(waiting.Connected), Away: uint64(waiting.Away), //nolint:gosec // counts
		RemembersMs: uint64(max(0, z.Now().Sub(z.identities.Started()).Milliseconds())),
	}, nil
}

// Authorities says by which authorities this server verifies others.
func (f *fellows) Authorities(context.Context, *peerv1.AuthoritiesRequest) (*peerv1.AuthoritiesResponse, error) {
	return f.zone.cluster.Authorities(), nil
}

// elsewhere is identities.Config.Elsewhere.
func (f *fellows) elsewhere(ctx context.Context, mesh resource.MeshName, stamp string) (waiting identities.Waiting, since time.Time, complete bool) {
	f.mu.Lock()
	since, complete = f.membersSince, f.leads
	f.mu.Unlock()
	if !complete {
		return waiting, since, false
	}
	peers := f.zone.cluster.Others()
	answers, errs := make([]*peerv1.IdentitiesResponse, len(peers)), make([]error, len(peers))
	var asking sync.WaitGroup
	for i, p := range peers {
		asking.Go(func() {
			asked, cancel := context.WithTimeout(ctx, cluster.AnswerTimeout)
			defer cancel()
			answers[i], errs[i] = peerv1.NewProxyServiceClient(p.Conn).Identities(asked, &peerv1.IdentitiesRequest{Mesh: string(mesh), Stamp: stamp})
		})
	}
	asking.Wait()
	now := f.zone.Now()
	for i, answer := range answers {
		if errs[i] != nil {
			complete = false
			continue
		}
		waiting.Connected += int(answer.GetConnected()) //nolint:gosec // counts
		waiting.Away += int(answer.GetAway())           //nolint:gosec // counts
		if from := now.Add(-time.Duration(answer.GetRemembersMs()) * time.Millisecond); from.After(since) {
			since = from
		}
	}
	return waiting, since, complete
}

// run follows the others until ctx ends.
func (f *fellows) run(ctx context.Context) error {
	f.assembled.Store(true)
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
	adopted := time.Time{}
	for {
		peers := f.zone.cluster.Others()
		for _, p := range peers {
			if stops[p.Name] == nil {
				followed, stop := context.WithCancel(ctx)
				stops[p.Name] = stop
				following.Go(func() { f.follow(followed, p.Name) })
			}
		}
		for name, stop := range stops {
			if !slices.ContainsFunc(peers, func(p cluster.Peer) bool { return p.Name == name }) {
				stop()
				delete(stops, name)
			}
		}
		changed := f.review(ctx)
		f.tellAll()
		if now := f.zone.Now(); changed || now.Sub(adopted) >= adoptInterval {
			f.zone.dataplanes.Adopt()
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
func (f *fellows) review(ctx context.Context) (changed bool) {
	z, now := f.zone, f.zone.Now()
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
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = f.leads != leads || !slices.Equal(f.members, members)
	if !slices.Equal(f.members, members) || leads && !f.leads {
		f.membersSince = now
	}
	f.leads, f.members = leads, members
	for _, name := range unreachable {
		if since, known := f.silent[name]; !known {
			f.silent[name] = now
		} else if wait := now.Sub(since); wait >= absentAfter && wait < absentAfter+2*reviewInterval {
			changed = true
		}
	}
	maps.DeleteFunc(f.silent, func(name string, _ time.Time) bool { return !slices.Contains(unreachable, name) })
	return changed
}

// absent is dataplane.Config.Absent.
func (f *fellows) absent(server string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.leads {
		return false
	}
	since, silent := f.silent[server]
	return !slices.Contains(f.members, server) || silent && f.zone.Now().Sub(since) >= absentAfter
}

// unreachable counts the other servers that do not tell of their proxies.
func (f *fellows) unreachable() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.members {
		if name != f.zone.Name && !f.following[name] {
			n++
		}
	}
	return n
}

// follow keeps what another server says of its proxies until ctx ends.
func (f *fellows) follow(ctx context.Context, server string) {
	defer f.drop(server)
	for ctx.Err() == nil {
		f.lose(server)
		err := f.receive(ctx, server)
		f.mu.Lock()
		delete(f.following, server)
		delete(f.reports, server)
		f.mu.Unlock()
		if ctx.Err() == nil {
			f.zone.Log.Debug("another server of the zone does not tell of its proxies", "server", server, "error", err)
		}
		select {
		case <-time.After(reviewInterval):
		case <-ctx.Done():
		}
	}
}

// lose notes since when a server tells nothing.
func (f *fellows) lose(server string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.lost[server]; !known {
		f.lost[server] = f.zone.Now()
	}
}

// drop forgets a server that is no member any more.
func (f *fellows) drop(server string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.lost, server)
}

// receive takes what a server says until it says nothing more.
func (f *fellows) receive(ctx context.Context, server string) error {
	peers := f.zone.cluster.Others()
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
		f.take(server, response.GetProxies())
	}
}

// take takes what a server says.
func (f *fellows) take(server string, reports []*peerv1.ProxyReport) {
	f.mu.Lock()
	f.following[server] = true
	delete(f.lost, server)
	have := f.reports[server]
	if have == nil {
		have = map[resource.Key]*peerv1.ProxyReport{}
		f.reports[server] = have
	}
	for _, r := range reports {
		if key := dataplaneOf(r); r.GetGone() {
			delete(have, key)
		} else {
			have[key] = r
		}
	}
	f.mu.Unlock()
	for _, r := range reports {
		f.tell(r)
	}
}

func dataplaneOf(r *peerv1.ProxyReport) resource.Key {
	return resource.Key{Kind: resource.KindDataplane, Mesh: resource.MeshName(r.GetMesh()), Name: r.GetName()}
}

// tell has what is made for the proxies of this server follow what another one says of
// mutual TLS of one of its own.
func (f *fellows) tell(r *peerv1.ProxyReport) {
	z, key := f.zone, dataplaneOf(r)
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
}

// tellAll tells everything again: a dataplane may have been unknown here when it was told.
func (f *fellows) tellAll() {
	f.mu.Lock()
	var all []*peerv1.ProxyReport
	for _, reports := range f.reports {
		for _, r := range reports {
			if r.GetIdentified() || r.GetEnvoy() {
				all = append(all, r)
			}
		}
	}
	f.mu.Unlock()
	for _, r := range all {
		f.tell(r)
	}
}

// report returns what another server says of a proxy that is connected there; nil if none
// does.
func (f *fellows) report(key resource.Key) *peerv1.ProxyReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, reports := range f.reports {
		if r := reports[key]; r != nil {
			return r
		}
	}
	return nil
}
