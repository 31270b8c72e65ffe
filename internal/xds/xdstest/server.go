// Package xdstest serves a set of resources to real gRPC clients in tests, and tells
// what they refuse.
//
// It guarantees that Settle returns once a client has answered everything that it can
// know of. Non-goals: the order of changes that keeps every call alive, and more than
// one stream at a time of each node, which package serve has.
package xdstest

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/xds"
)

// T is what a test or a run of a property is.
type T interface {
	require.TestingT
	Helper()
	Cleanup(func())
}

// Server sends the resources of its set to every client that asks for them.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	// Address is where it listens.
	Address string
	stop    func()

	mu      sync.Mutex
	changed *sync.Cond
	set     *xds.Set
	streams map[*stream]bool
	nacks   []string
}

// stream is what one stream has been sent and has answered.
type stream struct {
	types map[xds.Type]*subscription
	wake  chan struct{}
}

type subscription struct {
	names []string
	sent  string // what was sent last: names and versions
	nonce int
	acked int
}

// Start starts a server, which ends with the test.
func Start(t T) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &Server{Address: listener.Addr().String(), streams: map[*stream]bool{}}
	s.changed = sync.NewCond(&s.mu)
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // it ends by Stop
	}()
	s.stop = func() {
		server.Stop()
		<-done
	}
	t.Cleanup(s.stop)
	return s
}

// Stop ends the server before the test does.
func (s *Server) Stop() { s.stop() }

// Set replaces the resources.
func (s *Server) Set(set *xds.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set = set
	for st := range s.streams {
		select {
		case st.wake <- struct{}{}:
		default:
		}
	}
	s.changed.Broadcast()
}

// Settle waits until at least one client is connected and all have answered
// everything they are to be sent, and returns what they have refused since the last
// call.
func (s *Server) Settle() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.settled() {
		s.changed.Wait()
	}
	refused := s.nacks
	s.nacks = nil
	return refused
}

func (s *Server) settled() bool {
	for st := range s.streams {
		for _, kind := range xds.Types {
			sub := st.types[kind]
			if sub == nil {
				continue
			}
			if sub.acked != sub.nonce || sub.sent != s.spell(kind, sub.names) {
				return false
			}
			for _, name := range sub.names {
				r := s.set.Get(xds.Ref{Type: kind, Name: name})
				if r != nil && len(s.nacks) == 0 && !st.asks(r.Uses) {
					return false
				}
			}
		}
		if len(st.types) == 0 {
			return false
		}
	}
	return len(s.streams) > 0
}

// asks reports whether the client has asked for resources.
func (st *stream) asks(refs []xds.Ref) bool {
	for _, ref := range refs {
		found := false
		if sub := st.types[ref.Type]; sub != nil {
			for _, name := range sub.names {
				found = found || name == ref.Name
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// spell says which versions of resources there are.
func (s *Server) spell(kind xds.Type, names []string) string {
	text := ""
	for _, name := range names {
		version := "none"
		if r := s.set.Get(xds.Ref{Type: kind, Name: name}); r != nil {
			version = r.Version
		}
		text += strconv.Quote(name) + version
	}
	return text
}

// StreamAggregatedResources implements the aggregated discovery service.
func (s *Server) StreamAggregatedResources(conn discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	st := &stream{types: map[xds.Type]*subscription{}, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	s.streams[st] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.changed.Broadcast()
		s.mu.Unlock()
	}()
	requests := make(chan *discoveryv3.DiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := conn.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-conn.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if err := s.take(st, r); err != nil {
				return err
			}
		case <-st.wake:
		}
		for _, response := range s.due(st) {
			if err := conn.Send(response); err != nil {
				return err
			}
		}
	}
}

func (s *Server) take(st *stream, r *discoveryv3.DiscoveryRequest) error {
	kind, ok := xds.TypeOf(r.GetTypeUrl())
	if !ok {
		return fmt.Errorf("a client asks for %s", r.GetTypeUrl())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Broadcast()
	sub := st.types[kind]
	if sub == nil {
		sub = &subscription{}
		st.types[kind] = sub
	}
	if sub.names = slices.Sorted(slices.Values(r.GetResourceNames())); len(sub.names) == 0 {
		sub.sent = "" // it has nothing, and is sent everything when it asks again
	}
	if n, err := strconv.Atoi(r.GetResponseNonce()); err == nil {
		sub.acked = n
	}
	if r.GetErrorDetail() != nil {
		s.nacks = append(s.nacks, kind.String()+": "+r.GetErrorDetail().GetMessage())
	}
	return nil
}

// due returns the responses that a stream has to be sent.
func (s *Server) due(st *stream) (responses []*discoveryv3.DiscoveryResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range xds.Types {
		sub := st.types[kind]
		if sub == nil || s.set == nil || len(sub.names) == 0 || sub.sent == s.spell(kind, sub.names) {
			continue
		}
		sub.sent = s.spell(kind, sub.names)
		sub.nonce++
		response := &discoveryv3.DiscoveryResponse{
			TypeUrl: kind.URL(), VersionInfo: strconv.Itoa(sub.nonce), Nonce: strconv.Itoa(sub.nonce),
			ControlPlane: &corev3.ControlPlane{Identifier: "test"},
		}
		for _, name := range sub.names {
			if r := s.set.Get(xds.Ref{Type: kind, Name: name}); r != nil {
				wrapped := &anypb.Any{}
				if err := proto.Unmarshal(r.Body, wrapped); err != nil {
					s.nacks = append(s.nacks, err.Error())
				}
				response.Resources = append(response.Resources, wrapped)
			}
		}
		responses = append(responses, response)
	}
	return responses
}

// Bootstrap is the configuration of a client or server that is to be served by
// address.
func Bootstrap(address, node string) []byte {
	return fmt.Appendf(nil, `{
  "xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["ignore_resource_deletion"]}],
  "node": {"id": %q},
  "server_listener_resource_name_template": "in/%%s"
}`, address, node)
}
