package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

// threeServers are a leader, one that catches up and one that is gone.
func threeServers() *meridianv1.MembersResponse {
	return &meridianv1.MembersResponse{Leader: "g1", Self: "g2", ClusterId: "c", Members: []*meridianv1.ClusterMember{
		{Name: "g1", Grpc: "10.0.0.1:5685", Raft: "10.0.0.1:5690", State: "leader", Voter: true, AppliedRevision: 1840, Version: "v1"},
		{Name: "g2", Grpc: "10.0.0.2:5685", Raft: "10.0.0.2:5690", State: "follower", AppliedRevision: 12, Version: "v1"},
		{Name: "g3", Raft: "10.0.0.3:5690", State: "unreachable", Voter: true, Problem: "connection refused"},
	}}
}

func TestClusterMembers(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	require.Equal(t, `NAME  STATE        VOTER  REVISION  GRPC           PROBLEM
g1    leader       yes    1840      10.0.0.1:5685  -
g2    follower     no     12        10.0.0.2:5685  -
g3    unreachable  yes    -         -              connection refused
`, h.ok("cluster", "members"))
	require.Contains(t, h.ok("cluster", "members", "-o", "wide"), "10.0.0.1:5690  v1")
	require.Equal(t, "g1\ng2\ng3\n", h.ok("cluster", "members", "-o", "name"))
	require.JSONEq(t, `[
		{"name": "g1", "grpc": "10.0.0.1:5685", "raft": "10.0.0.1:5690", "state": "leader", "voter": true, "appliedRevision": 1840, "version": "v1"},
		{"name": "g2", "grpc": "10.0.0.2:5685", "raft": "10.0.0.2:5690", "state": "follower", "voter": false, "appliedRevision": 12, "version": "v1"},
		{"name": "g3", "grpc": "", "raft": "10.0.0.3:5690", "state": "unreachable", "voter": true, "appliedRevision": 0, "version": "", "problem": "connection refused"}
	]`, h.ok("cluster", "members", "-o", "json"))
}

func TestClusterMembersWithoutEncryption(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	const warning = "Warning: not encrypted at rest, while other servers encrypt: g2; start with --encryption-key-file\n"
	for i, encryption := range []string{"1f0c2a2b3c4d5e6f", "none", ""} {
		h.server.AllMembers.Members[i].Encryption = encryption
	}
	require.Equal(t, warning, h.run("cluster", "members").stderr)
	wide := h.run("cluster", "members", "-o", "wide")
	require.Contains(t, wide.stdout, "1f0c2a2b3c4d5e6f")
	require.Contains(t, wide.stdout, "v1       none")
	require.Contains(t, h.ok("cluster", "members", "-o", "json"), `"encryption": "none"`)
	h.server.AllMembers.Members[0].Encryption = "none"
	require.Empty(t, h.run("cluster", "members").stderr, "no server encrypts")
}

func TestClusterLeader(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	require.Equal(t, "NAME  STATE   VOTER  REVISION  GRPC           PROBLEM\ng1    leader  yes    1840      10.0.0.1:5685  -\n", h.ok("cluster", "leader"))
	require.Equal(t, "g1\n", h.ok("cluster", "leader", "-o", "name"))
	require.JSONEq(t, `{"name": "g1", "grpc": "10.0.0.1:5685", "raft": "10.0.0.1:5690", "state": "leader", "voter": true, "appliedRevision": 1840, "version": "v1"}`,
		h.ok("cluster", "leader", "-o", "json"))

	h.server.AllMembers.Leader, h.server.AllMembers.Members[0].State = "", "candidate"
	require.Equal(t, outcome{exit.Unavailable, "", `Error: there is no leader: of 2 servers with a vote 1 answer, and it takes 2
  g3 at 10.0.0.3:5690 does not answer
`}, h.run("cluster", "leader"))
	require.Contains(t, h.run("cluster", "members").stderr, "Warning: server g2 has no leader: writes are refused until one is elected\n")
	h.server.AllMembers.Members[2].State = "follower"
	require.Equal(t, outcome{exit.Unavailable, "", "Error: server g2 has no leader: writes are refused until one is elected\n"}, h.run("cluster", "leader"))
}

func TestClusterTransferLeadership(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	require.Equal(t, "g1 leads\n", h.ok("cluster", "transfer-leadership"))
	require.Equal(t, "g3 leads\n", h.ok("cluster", "transfer-leadership", "g3"))
	require.Equal(t, exit.Usage, h.run("cluster", "transfer-leadership", "g1", "g3").code)
}

func TestClusterRemove(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	require.Equal(t, outcome{exit.Conflict, "", "Error: g2 is running: stop it first, or remove it all the same with --force\n"}, h.run("cluster", "remove", "g2"))
	require.Equal(t, "g2 removed\n", h.ok("cluster", "remove", "g2", "--force"))
	require.Equal(t, outcome{exit.No, "", "Error: no server of this global is called \"g2\"\n"}, h.run("cluster", "remove", "g2"))
	require.Equal(t, exit.Usage, h.run("cluster", "remove").code)

	// The answer is lost: the next attempt finds nothing to remove.
	lost := false
	h.server.After = func(string) error {
		if lost {
			return nil
		}
		lost = true
		return rpcerr.New(rpcerr.Unavailable, "STOPPING", "the server is stopping")
	}
	require.Equal(t, "g3 removed\n", h.ok("cluster", "remove", "g3"))
	require.True(t, lost)
}

// A removed server that has the key of the generated authority is reported by the
// removal, in text and JSON, and by what shows the state after it.
func TestARemovedServerKnowsTheAuthority(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers, h.server.GeneratesCA = threeServers(), true
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"items":[]}`)}, nil
	}
	r := h.run("cluster", "remove", "g3")
	require.Equal(t, "g3 removed\n", r.stdout)
	require.Contains(t, r.stderr, "Warning: g3 has the key of the certificate authority")
	require.Contains(t, r.stderr, "meridian cluster rotate-ca start")
	r = h.run("cluster", "remove", "g2", "--force", "-o", "json")
	require.JSONEq(t, `{"removed": "g2", "knowsAuthority": true, "next": "meridian cluster rotate-ca start"}`, r.stdout)
	require.Empty(t, r.stderr)
	require.Contains(t, h.run("cluster", "members").stderr, "removed servers that have the key of the certificate authority: g3, g2; replace")
	r = h.run("status")
	require.Equal(t, exit.No, r.code)
	require.Contains(t, r.stdout, "removed servers that have the key of the certificate authority: g3, g2")
	for phase, want := range map[string]string{"": "rotate-ca start", "trust": "rotate-ca finish", "switch": "rotate-ca finish", "finish": "rotate-ca start"} {
		v := rotationView{Phase: phase, KnownTo: []string{"g2"}}
		require.Contains(t, v.knownText(), want, phase)
	}

	h.server.AllMembers, h.server.GeneratesCA = threeServers(), false
	require.JSONEq(t, `{"removed": "g3", "knowsAuthority": false}`, h.ok("cluster", "remove", "g3", "-o", "json"))
	require.Empty(t, h.run("cluster", "members").stderr)

	// Only the answer of the removal is lost.
	h.server.AllMembers, h.server.GeneratesCA = threeServers(), true
	lost := false
	h.server.After = func(string) error {
		if lost {
			return nil
		}
		lost = true
		return rpcerr.New(rpcerr.Unavailable, "STOPPING", "the server is stopping")
	}
	require.Contains(t, h.ok("cluster", "remove", "g3", "-o", "json"), `"knowsAuthority": true`)
}

func TestServersAreCompleted(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	for _, command := range []string{"remove", "transfer-leadership"} {
		require.Equal(t, "g1\tleader\ng2\tfollower\ng3\tunreachable\n:4\n", h.ok("__complete", "cluster", command, ""))
	}
	h.stop()
	require.Equal(t, ":4\n", h.ok("__complete", "cluster", "remove", ""))
}
