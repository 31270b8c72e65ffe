package zone

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/resource"
	"meridian/internal/xds/enforce"
)

// awaiting is what the other servers say, while something waits for it, about their proxies
// that have something to take on. Nil says that there are no other servers. It is safe for
// concurrent use.
type awaiting struct {
	cancel context.CancelFunc
	parts  sync.WaitGroup
	// lost reports whether the proxies of a server have gone to others.
	lost func(server string) bool

	mu sync.Mutex // guards what follows
	// states are by server its proxies that are behind; nil where it does not say.
	states map[string]map[resource.Key]enforce.State
}

// awaiting asks the other servers which of their proxies have yet to take on what they have to
// of a revision of what the zone owns.
func (o *otherServers) awaiting(ctx context.Context, revision resource.Revision) *awaiting {
	if o == nil {
		return nil
	}
	return awaitServers(ctx, o.zone.cluster.Others(), o.isLost, revision)
}

func awaitServers(ctx context.Context, servers []cluster.Peer, lost func(string) bool, revision resource.Revision) *awaiting {
	a := &awaiting{lost: lost, states: map[string]map[resource.Key]enforce.State{}}
	ctx, a.cancel = context.WithCancel(ctx)
	for _, p := range servers {
		a.states[p.Name] = nil
		a.parts.Go(func() { a.follow(ctx, p, revision) })
	}
	return a
}

// follow asks a server until it has said that none is left.
func (a *awaiting) follow(ctx context.Context, p cluster.Peer, revision resource.Revision) {
	for {
		stream, err := peerv1.NewProxyServiceClient(p.Conn).AwaitProxies(ctx, &peerv1.AwaitProxiesRequest{Revision: uint64(revision)})
		for err == nil {
			var said *peerv1.AwaitProxiesResponse
			if said, err = stream.Recv(); err == nil && a.take(p.Name, said) {
				return
			}
		}
		a.mu.Lock()
		a.states[p.Name] = nil
		a.mu.Unlock()
		select {
		case <-time.After(lastLook):
		case <-ctx.Done():
			return
		}
	}
}

// take takes what a server says, and reports whether none of its proxies is left.
func (a *awaiting) take(server string, said *peerv1.AwaitProxiesResponse) (done bool) {
	states := map[resource.Key]enforce.State{}
	for _, b := range said.GetBehind() {
		states[decodeKey(b.GetDataplane())] = enforce.State(b.GetState())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.states[server] = states
	return len(states) == 0
}

// behind adds the proxies of the others to states, and returns the servers of which it is not
// known.
func (a *awaiting) behind(states map[resource.Key]enforce.State) (unknown []string) {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for server, those := range a.states {
		if those == nil && !a.lost(server) {
			unknown = append(unknown, server)
		}
		for key, state := range those {
			states[key] = enforce.Worse(states[key], state)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// stop ends it.
func (a *awaiting) stop() {
	if a == nil {
		return
	}
	a.cancel()
	a.parts.Wait()
}

// maxAwaited bounds how many proxies another server is told of at once.
const maxAwaited = 1000

// AwaitProxies says which proxies of this server have yet to take on what they have to of a
// revision, until none is left.
func (o *otherServers) AwaitProxies(req *peerv1.AwaitProxiesRequest, stream grpc.ServerStreamingServer[peerv1.AwaitProxiesResponse]) error {
	if !o.assembled.Load() {
		return errStarting
	}
	ctx := stream.Context()
	if err := o.zone.Store.Wait(ctx, resource.Revision(req.GetRevision())); err != nil {
		return err
	}
	waits, err := o.zone.outstanding()
	if err != nil {
		return err
	}
	var said map[resource.Key]enforce.State
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		if states := waits.behind(); said == nil || !maps.Equal(said, states) {
			if err := stream.Send(encodeBehind(states)); err != nil || len(states) == 0 {
				return err
			}
			said = states
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// encodeBehind names those first that are pending: as long as there is one, a wait is not
// over.
func encodeBehind(states map[resource.Key]enforce.State) *peerv1.AwaitProxiesResponse {
	keys := slices.SortedFunc(maps.Keys(states), func(a, b resource.Key) int {
		return cmp.Or(cmp.Compare(states[a], states[b]), a.Compare(b))
	})
	out := &peerv1.AwaitProxiesResponse{}
	for _, key := range keys[:min(len(keys), maxAwaited)] {
		out.Behind = append(out.Behind, &peerv1.ProxyBehind{Dataplane: encodeKey(key), State: string(states[key])})
	}
	return out
}
