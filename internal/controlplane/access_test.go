package controlplane

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"meridian/internal/authn"
	"meridian/internal/clientconfig"
)

// headerStream keeps the header of a stream of a caller.
type headerStream struct {
	grpc.ServerStream
	caller authn.Principal
	header metadata.MD
}

func (s *headerStream) Context() context.Context {
	return authn.WithPrincipal(context.Background(), s.caller)
}

func (s *headerStream) SetHeader(md metadata.MD) error {
	s.header = md
	return nil
}

// Where the servers are is said to users who have authenticated, and to no others.
func TestServersAreAnnouncedToUsers(t *testing.T) {
	both := func() []string { return []string{"a:1", "b:1"} }
	for name, tc := range map[string]struct {
		caller  authn.Principal
		servers func() []string
		want    []string
	}{
		"a user":              {authn.LoopbackAdmin(), both, []string{"a:1,b:1"}},
		"without credentials": {authn.Anonymous(), both, nil},
		"a zone":              {authn.Principal{Name: "zone/east"}, both, nil},
		"not known yet":       {authn.LoopbackAdmin(), func() []string { return nil }, nil},
		"not a global":        {authn.LoopbackAdmin(), nil, nil},
	} {
		s := &headerStream{caller: tc.caller}
		require.NoError(t, announceServers(tc.servers)(s, ""))
		require.Equal(t, tc.want, s.header.Get(clientconfig.ServersHeader), name)
	}
}
