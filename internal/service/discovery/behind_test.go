package discovery

import (
	"context"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/server/limits"
	"meridian/internal/xds"
	"meridian/internal/xds/enforce"
	"meridian/internal/xds/serve"
)

// clusters is a set with two clusters; those of more than 1 MiB take a response each.
func clusters(t *testing.T, revision resource.Revision, size int) *xds.Set {
	t.Helper()
	var all []*xds.Resource
	for _, name := range []string{"a", "b"} {
		r, err := xds.New(&clusterv3.Cluster{Name: name, AltStatName: strings.Repeat("x", size)})
		require.NoError(t, err)
		all = append(all, r)
	}
	set, err := xds.NewSet(revision, all...)
	require.NoError(t, err)
	return set
}

// A stream has accepted a revision when nothing of it is left to be accepted, and has
// rejected it when what it rejected is of that revision.
func TestWhatAStreamHasYetToAccept(t *testing.T) {
	s := &stream{service: &Service{cfg: Config{Now: time.Now}}}
	require.Equal(t, enforce.Pending, s.behind(2, false), "it has just come")
	s.machine = serve.New(serve.Config{Delta: true, Memory: &serve.Memory{}})
	require.NoError(t, s.machine.Handle(serve.Request{Type: xds.Cluster, Subscribe: []string{"a", "b"}}))
	require.Equal(t, enforce.Pending, s.behind(2, false), "its resources have yet to be made")
	next := func() serve.Response {
		t.Helper()
		r, ok := s.machine.Next(time.Now())
		require.True(t, ok)
		return r
	}

	s.machine.SetTarget(clusters(t, 2, 3<<19))
	first := next()
	require.Len(t, first.Resources, 1)
	require.NoError(t, s.machine.Handle(serve.Request{Type: xds.Cluster, Nonce: first.Nonce}))
	require.Equal(t, enforce.Pending, s.behind(2, false), "one of two responses is accepted")
	second := next()
	require.NoError(t, s.machine.Handle(serve.Request{Type: xds.Cluster, Nonce: second.Nonce}))
	require.Empty(t, s.behind(2, false))

	s.machine.SetTarget(clusters(t, 3, 1))
	refused := next()
	require.NoError(t, s.machine.Handle(serve.Request{Type: xds.Cluster, Nonce: refused.Nonce, Rejected: true, Detail: "bad"}))
	for { // a rejection may be followed by an attempt with one of them
		r, ok := s.machine.Next(time.Now())
		if !ok {
			break
		}
		require.NoError(t, s.machine.Handle(serve.Request{Type: xds.Cluster, Nonce: r.Nonce, Rejected: true, Detail: "bad"}))
	}
	require.Equal(t, enforce.Rejected, s.behind(3, false))
	require.Equal(t, enforce.Pending, s.behind(4, true), "what it rejected may not be what it is to have")
}

// A stream is in its proxy's place before its first request has been taken. What touches the
// proxy in between, such as its own registration, is looked at once that is done.
func TestAStreamIsNotWorkedOnBeforeItsFirstRequest(t *testing.T) {
	d := &Service{
		cfg: Config{Budget: limits.NewPatient(1<<30, 1<<30, limits.XDSPatience, time.Now), Now: time.Now}, wake: make(chan struct{}, 1),
		proxies: map[resource.Key]*proxy{}, queue: queue{streams: map[string][]*stream{}},
	}
	s := &stream{service: d, token: &token.Token{ID: "t"}}
	s.ctx, s.end = context.WithCancelCause(t.Context())
	key := resource.Key{Kind: resource.KindDataplane, Mesh: "m", Name: "a"}
	require.NoError(t, d.place(s, key, "", func() {}))
	d.touched([]resource.Key{key})
	require.True(t, d.queue.empty())
	s.begin()
	require.Same(t, s, d.queue.pop())
	require.True(t, s.stale)
}

// A stream that has ended is not refused anything, whatever has been given back already.
func TestAStreamThatHasEndedIsNotRefused(t *testing.T) {
	budget := limits.NewPatient(1<<30, 1<<30, limits.XDSPatience, time.Now)
	refused := 0
	d := &Service{cfg: Config{Budget: budget, Refused: func(string) { refused++ }}}
	s := &stream{service: d, machine: serve.New(serve.Config{Delta: true, Memory: &serve.Memory{}})}
	s.ctx, s.end = context.WithCancelCause(t.Context())
	var err error
	s.held, err = budget.Begin("m", streamBytes, func() {})
	require.NoError(t, err)
	s.memory, err = d.newMemory("m")
	require.NoError(t, err)
	require.NoError(t, s.charge())
	s.end(nil)
	s.memory.held.Done() // by leave
	require.NoError(t, s.charge())
	require.Zero(t, refused)
}
