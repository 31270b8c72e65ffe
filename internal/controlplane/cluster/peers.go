package cluster

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "meridian/api/peer/v1"
)

// AnswerTimeout bounds how long another server may take to answer a question.
const AnswerTimeout = time.Second

// Peer is another server.
type Peer struct {
	Name string
	Conn grpc.ClientConnInterface
}

// Others returns how to reach the other servers.
func (c *Server) Others() []Peer {
	var out []Peer
	for _, s := range c.Node.Servers() {
		if s.Name != c.cfg.Name {
			out = append(out, Peer{s.Name, c.Node.PeerConn(s.Addr)})
		}
	}
	return out
}

// DescribeError is why a server could not be asked, in few words.
func DescribeError(err error) string {
	switch s, ok := status.FromError(err); {
	case status.Code(err) == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		return "no answer within " + AnswerTimeout.String()
	case ok:
		return s.Message()
	}
	return err.Error()
}

// Authorities says by which authorities this server verifies others and is verified. It
// answers also before the server is open.
func (c *Server) Authorities() *peerv1.AuthoritiesResponse {
	if !c.opened.Load() {
		return &peerv1.AuthoritiesResponse{}
	}
	return c.authorities()
}
