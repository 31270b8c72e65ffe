package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
	"meridian/internal/consensus"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// twoServers makes the data directories of two servers of one cluster, both
// stopped, and returns them and the cluster's id.
func twoServers(t *testing.T) (one, two, cluster string) {
	t.Helper()
	network := simnet.NewNetwork()
	open := func(name string, join ...string) (string, *consensus.Node, *store.Store) {
		cfg := consensus.DefaultConfig(filepath.Join(t.TempDir(), name))
		cfg.NodeID, cfg.Role, cfg.Network = name, consensus.RoleGlobal, network.Node(name)
		if len(join) > 0 {
			cfg.Join = consensus.JoinConfig{Fresh: true, Addrs: func() []string { return join }}
		}
		st := store.New(store.DefaultOptions())
		n, err := consensus.Open(context.Background(), cfg, st)
		require.NoError(t, err)
		<-n.Ready()
		return cfg.DataDir, n, st
	}
	one, a, st := open("one")
	two, b, follower := open("two", "one")
	r := resourcetest.Build(t, "Mesh", "", "default", "{}")
	result, err := a.Propose(t.Context(), store.Txn{Time: clitest.Epoch, Ops: []store.Op{store.Put(r)}})
	require.NoError(t, err)
	require.NoError(t, follower.Wait(t.Context(), result.Revision))
	cluster = st.View().Epoch().ClusterID
	require.NoError(t, b.Close())
	require.NoError(t, a.Close())
	return one, two, cluster
}

func TestClusterRecover(t *testing.T) {
	h := newHarness(t)
	dir, other, cluster := twoServers(t)
	view := func(args ...string) (v recoveryView) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(h.ok(append([]string{"cluster", "recover", "-o", "json", "--data-dir", dir}, args...)...)), &v))
		return v
	}
	found := view("--dry-run")
	require.Equal(t, recoveryView{
		DataDir: dir, Server: "one", Member: true, Voter: true, ClusterID: cluster, Incarnation: 1,
		Others:   []recoveryMemberView{{Name: "two", Raft: "two", Voter: found.Others[0].Voter}},
		Revision: found.Revision, Time: found.Time, Resources: 1,
		FirstEntry: 1, LastEntry: found.LastEntry, LastTerm: found.LastTerm, NextIncarnation: 2,
	}, found)
	require.Positive(t, found.Revision)

	out := h.run("cluster", "recover", "--data-dir", dir, "--dry-run")
	require.Equal(t, exit.OK, out.code)
	for _, line := range []string{
		"one, a member with a vote\n", "Others:         two (two)\n", ", 1 resource, last written ",
		"one becomes the only server of the cluster, as incarnation 2 of its history.\n",
		"- Acknowledged writes that are not in its log are lost", "- Do not start these again as they are: two.",
	} {
		require.Contains(t, out.stdout, line)
	}
	require.Contains(t, out.stderr, "Dry run: nothing was changed. --confirm "+cluster)
	for args, message := range map[string]string{
		"":                           "nothing was changed: --confirm " + cluster,
		"--confirm wrong":            "--confirm wrong: the directory is of cluster " + cluster,
		"--confirm x --dry-run":      "choose one",
		"--data-dir=":                "--data-dir is required",
		"--data-dir=" + h.home:       "is no data directory of a server that has run",
		"--data-dir=" + h.home + "x": "is no data directory of a server that has run",
	} {
		out := h.run(append([]string{"cluster", "recover", "--data-dir", dir}, strings.Fields(args)...)...)
		require.Equal(t, exit.Usage, out.code, args)
		require.Contains(t, out.stderr, message, args)
	}
	require.NoDirExists(t, h.home+"x")
	require.Equal(t, found, view("--dry-run"), "nothing was changed")

	recovered := view("--confirm", cluster)
	require.True(t, recovered.Recovered)
	require.EqualValues(t, 2, recovered.NextIncarnation)
	again := view("--confirm", cluster)
	require.True(t, again.Alone)
	require.False(t, again.Recovered, "it was already")
	require.EqualValues(t, 2, again.Incarnation)
	require.Equal(t, cluster, again.ClusterID, "zones follow the cluster that they know")
	out = h.run("cluster", "recover", "--data-dir", dir)
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stdout, "This server is the only one of its cluster: start it.")

	// The other one has not changed, and cannot be used while it is damaged.
	log := filepath.Join(other, "raft", "log.db")
	data, err := os.ReadFile(log)
	require.NoError(t, err)
	at := bytes.Index(data, []byte("default"))
	require.Positive(t, at)
	data[at] ^= 1
	require.NoError(t, os.WriteFile(log, data, 0o600))
	out = h.run("cluster", "recover", "--data-dir", other, "--dry-run")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "Recover from the directory of another server")
}

// What a server is to its cluster is said in words, and a disk is told from
// another one of its name.
func TestDescribeRecovery(t *testing.T) {
	one := consensus.Member{Name: "one", Raft: "10.0.0.1:5690", Voter: true}
	two := consensus.Member{Name: "two", Raft: "10.0.0.2:5690", Voter: true}
	for _, c := range []struct {
		r     consensus.Recovery
		lines []string
	}{
		{consensus.Recovery{Server: "three", Member: true, Others: []consensus.Member{one, two}}, []string{
			"three, a member without a vote\n", "- It had no vote",
		}},
		{consensus.Recovery{Server: "three", Others: []consensus.Member{one, two}}, []string{
			"three, which was removed from the cluster, or replaced: what it holds ends there\n",
			"Others:         one (10.0.0.1:5690), two (10.0.0.2:5690)\n", "Prefer another server.",
		}},
		{consensus.Recovery{Server: "two", Others: []consensus.Member{one, two}}, []string{
			"two, whose disk was replaced: another disk has its name and its place, and what this one holds ends there\n",
			"Others:         one (10.0.0.1:5690), two with another disk (10.0.0.2:5690)\n",
			"Do not start these again as they are: one, two with another disk.",
		}},
	} {
		out := describeRecovery("dir", &c.r, false)
		for _, line := range c.lines {
			require.Contains(t, out, line)
		}
	}
}

func TestClusterRecoverOfARunningServer(t *testing.T) {
	h := newHarness(t)
	cfg := consensus.DefaultConfig(t.TempDir())
	cfg.NodeID, cfg.Role = "zone", consensus.RoleZone
	n, err := consensus.Open(t.Context(), cfg, store.New(store.DefaultOptions()))
	require.NoError(t, err)
	<-n.Ready()
	out := h.run("cluster", "recover", "--data-dir", cfg.DataDir, "--dry-run")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "A server runs on it.")
	require.NoError(t, n.Close())
	out = h.run("cluster", "recover", "--data-dir", cfg.DataDir, "--dry-run")
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stderr, "there is nothing to recover", "it is the only server of its zone")
}
