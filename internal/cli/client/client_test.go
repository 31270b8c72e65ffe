package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/dial"
	"meridian/internal/rpcerr"
)

// membersAsked counts how often it is asked for the servers.
type membersAsked struct {
	meridianv1.ClusterServiceClient
	times int
}

func (m *membersAsked) Members(context.Context, *meridianv1.MembersRequest, ...grpc.CallOption) (*meridianv1.MembersResponse, error) {
	m.times++
	return nil, status.Error(codes.Unavailable, "no")
}

// TestRepeat is when a request is sent again, and until when, in virtual time.
func TestRepeat(t *testing.T) {
	noLeader := rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader").GRPCStatus().Err()
	noZones := rpcerr.New(rpcerr.Unavailable, "NO_ZONES", "no zone is connected").GRPCStatus().Err()
	for name, c := range map[string]struct {
		never    bool // the control plane was never reached
		answers  []error
		forever  error
		want     error
		attempts int
		notices  int
		takes    time.Duration
	}{
		"answered at once":            {attempts: 1},
		"answered in the end":         {answers: []error{noLeader, noLeader, noLeader}, attempts: 4},
		"told after a while":          {answers: []error{noLeader, noLeader, noLeader, noLeader, noLeader}, attempts: 6, notices: 1},
		"refused":                     {answers: []error{status.Error(codes.NotFound, "no")}, want: status.Error(codes.NotFound, "no"), attempts: 1},
		"never reached":               {never: true, answers: []error{noLeader}, want: noLeader, attempts: 1},
		"no zone to ask":              {answers: []error{noZones}, want: noZones, attempts: 1},
		"unavailable to the end":      {forever: noLeader, want: noLeader, attempts: 14, notices: 1},
		"told when attempts are slow": {answers: []error{noLeader}, takes: 4 * time.Second, attempts: 2, notices: 1},
		"too slow in the end":         {answers: []error{noLeader}, forever: status.Error(codes.DeadlineExceeded, "late"), want: noLeader, attempts: 2},
		"too slow from the start":     {forever: status.Error(codes.DeadlineExceeded, "late"), want: status.Error(codes.DeadlineExceeded, "late"), attempts: 1},
		"the client's own interrupt":  {forever: context.Canceled, want: context.Canceled, attempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				attempts, notices := 0, []string{}
				members := &membersAsked{}
				client := &Client{ClusterServiceClient: members, log: dial.NewLog(), servers: &dial.Servers{}, Timeout: 10 * time.Second}
				if !c.never {
					client.log.Record("a:1", nil)
				}
				client.notice = func(format string, args ...any) { notices = append(notices, fmt.Sprintf(format, args...)) }
				err := client.repeat(ctx, func(context.Context) error {
					attempts++
					Pause(ctx, c.takes)
					if attempts <= len(c.answers) {
						return c.answers[attempts-1]
					}
					return c.forever
				})
				require.Equal(t, c.want, err)
				require.Equal(t, c.attempts, attempts)
				require.Len(t, notices, c.notices)
				require.LessOrEqual(t, members.times, 1, "servers are asked once who is missing")
				for _, notice := range notices {
					require.Equal(t, "The control plane is unavailable (there is no leader); retrying for up to 10s.", notice)
				}
			})
		})
	}
}

// A server that was connected to is not called untried, whatever it answered.
func TestEachServerOfSeveral(t *testing.T) {
	c := &Client{log: dial.NewLog(), Target: Target{addresses: []string{"a:1", "b:1", "c:1"}}}
	c.log.Record("a:1", nil)
	c.log.Record("b:1", errors.New("no leader"))
	require.Equal(t, []string{"  a:1: was reached", "  b:1: no leader", "  c:1: not tried"}, c.eachServer())
}

func TestProblemsOfConnectionsAreSaidInWords(t *testing.T) {
	lost := status.Error(codes.Unavailable, `closing transport due to: connection error: desc = "error reading from server: EOF"`)
	c := &Client{log: dial.NewLog()}
	require.Equal(t, "the connection was lost", c.problem(lost))
	c.log.Record("a:1", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	require.Equal(t, "connection refused", c.problem(lost))
	own := rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader")
	require.Equal(t, "there is no leader", c.problem(own.GRPCStatus().Err()))
}

// A request that may have reached a server has an unknown outcome when no server
// answered it; one that never did, or that a server refused, has not.
func TestUnknownOutcomes(t *testing.T) {
	lost := status.Error(codes.Unavailable, "error reading from server: EOF")
	refused := rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader"), rpcerr.EffectNone)
	for name, c := range map[string]struct {
		err                 error
		sent, before, after bool
		reason              string
	}{
		"lost on the way":           {err: lost, sent: true, after: true},
		"never connected":           {err: lost},
		"refused":                   {err: refused, sent: true, reason: "NO_LEADER"},
		"refused after a lost one":  {err: refused, sent: true, before: true, after: true, reason: "OUTCOME_UNKNOWN"},
		"not sent after a lost one": {err: lost, before: true, after: true},
	} {
		t.Run(name, func(t *testing.T) {
			unknown, err := markUnknownOutcome(c.err, c.sent, c.before)
			require.Equal(t, c.after, unknown)
			require.True(t, rpcerr.HasReason(rpcerr.FromStatus(err), c.reason))
		})
	}
}
