package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/rpcerr"
)

func TestWhichServersCanLead(t *testing.T) {
	one := []consensus.Server{{Name: "a", Voter: true}}
	three := []consensus.Server{{Name: "a", Voter: true}, {Name: "b", Voter: true}, {Name: "c"}}
	for to, want := range map[string]string{"": "", "b": "", "a": "", "c": reasonNoVote, "d": consensus.ReasonUnknownServer} {
		err := checkTransferTarget(Global, three, to)
		if want == "" {
			require.NoError(t, err, to)
		} else {
			require.True(t, rpcerr.HasReason(err, want), "%q: %v", to, err)
		}
	}
	require.True(t, rpcerr.HasReason(checkTransferTarget(Global, one, ""), reasonOnlyServer))
	require.EqualError(t, unknownServer(Global, []consensus.Server{{Name: "global-2"}, {Name: "global-1"}}, "globa-1"),
		`no server of this global is called "globa-1"; did you mean "global-1"?`)
	require.EqualError(t, unknownServer(Global, []consensus.Server{{Name: "global-2"}, {Name: "global-1"}}, "x"),
		`no server of this global is called "x"; there are: global-1, global-2`)
}

// TestHandOverErrors: what a leader refuses is passed on in its own words, and
// what went wrong on the way says who leads now.
func TestHandOverErrors(t *testing.T) {
	refusal := rpcerr.New(rpcerr.Conflict, "WHY", "because")
	require.Equal(t, refusal.Message, transferError("a", refusal).Error())
	err := transferError("a", consensus.ErrUnavailable)
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, "a did not transfer leadership, and is still the leader unless it failed")
	require.ErrorContains(t, transferError("", consensus.ErrUnavailable), "no server leads now")
}

// Leadership cannot be transferred to a server that is down, and a client that tried again
// for half a minute would learn no more.
func TestNoHandingOverToWhoDoesNotAnswer(t *testing.T) {
	members := []consensus.Member{
		{Name: "a", State: "leader"},
		{Name: "b", State: consensus.StateUnreachable, Problem: "it does not answer: connection refused"},
	}
	err := unreachable(members, "b")
	require.True(t, rpcerr.HasReason(err, reasonUnreachable))
	require.ErrorContains(t, err, "b cannot lead, it does not answer: connection refused; start it")
	require.Equal(t, rpcerr.Conflict, rpcerr.CodeOf(err))
	for _, to := range []string{"", "a", "c"} {
		require.NoError(t, unreachable(members, to), to)
	}
}
