package consensus

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
)

// membersOf is a membership led by a; who is in silent has not answered for long.
func membersOf(silent string, servers ...raft.Server) membership {
	called := map[raft.ServerID]bool{}
	for _, s := range servers {
		called[s.ID] = !strings.Contains(silent, string(s.ID))
	}
	return membership{
		cluster: "here", self: "a", servers: servers, gone: time.Second, called: called,
		silence: func(id raft.ServerID) time.Duration {
			if strings.Contains(silent, string(id)) {
				return time.Minute
			}
			return 0
		},
	}
}

// called is a membership of which only some have answered a call.
func called(m membership, answered string) membership {
	for id := range m.called {
		m.called[id] = strings.Contains(answered, string(id))
	}
	return m
}

func voter(name string) raft.Server {
	return raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name + ":1"), Suffrage: raft.Voter}
}

func nonvoter(name string) raft.Server {
	s := voter(name)
	s.Suffrage = raft.Nonvoter
	return s
}

func TestWhoIsAdded(t *testing.T) {
	fresh := addition{name: "d", addr: "d:1", fresh: true, format: 1}
	known := addition{name: "b", addr: "b:1", cluster: "here", format: 1}
	as := func(a addition, change func(*addition)) addition { change(&a); return a }
	three := func(silent string) membership { return membersOf(silent, voter("a"), voter("b"), voter("c")) }
	added, again := []step{{add, "d", "d:1"}}, []step{{remove, "d", ""}, {add, "d", "d:1"}}
	for name, tc := range map[string]struct {
		in     membership
		ask    addition
		steps  []step
		reason string
	}{
		"a new server":                               {in: three(""), ask: fresh, steps: added},
		"a member that restarted":                    {in: three(""), ask: known},
		"a member that restarted, not yet reached":   {in: three("b"), ask: known},
		"a member that moved":                        {in: three("b"), ask: as(known, func(a *addition) { a.addr = "b:2" }), steps: []step{{move, "b", "b:2"}}},
		"the leader itself moved":                    {in: three(""), ask: as(known, func(a *addition) { a.name, a.addr, a.own = "a", "a:2", true }), steps: []step{{move, "a", "a:2"}}},
		"another server with the leader's name":      {in: three(""), ask: as(known, func(a *addition) { a.name, a.addr = "a", "a:2" }), reason: ReasonAlreadyRunning},
		"a member that moved, and answers elsewhere": {in: three(""), ask: as(known, func(a *addition) { a.addr = "b:2" }), reason: ReasonAlreadyRunning},
		"a voter that lost its disk":                 {in: three("b"), ask: as(known, func(a *addition) { a.fresh, a.disk = true, "2" }), steps: []step{{remove, "b", ""}, {add, "b#2", "b:1"}}},
		"one that lost it and moved":                 {in: three("b"), ask: as(known, func(a *addition) { a.fresh, a.disk, a.addr = true, "2", "b:2" }), steps: []step{{remove, "b", ""}, {add, "b#2", "b:2"}}},
		"a disk that was replaced":                   {in: three("b"), ask: as(known, func(a *addition) { a.disk = "0" }), reason: ReasonRemoved},
		"a disk that was replaced, elsewhere":        {in: three(""), ask: as(known, func(a *addition) { a.disk, a.addr = "0", "b:2" }), reason: ReasonRemoved},
		"a name that is taken":                       {in: three(""), ask: as(fresh, func(a *addition) { a.name = "b" }), reason: ReasonAlreadyRunning},
		"the name of the leader":                     {in: three(""), ask: as(fresh, func(a *addition) { a.name = "a" }), reason: ReasonAlreadyRunning},
		"a voter that still answers":                 {in: three(""), ask: as(known, func(a *addition) { a.fresh = true }), reason: ReasonAlreadyRunning},
		"a joiner that asks again":                   {in: membersOf("", voter("a"), nonvoter("d")), ask: fresh, steps: again},
		"a joiner's name elsewhere":                  {in: membersOf("", voter("a"), nonvoter("d")), ask: as(fresh, func(a *addition) { a.addr = "d:2" }), reason: ReasonAlreadyRunning},
		"a joiner that moved":                        {in: membersOf("d", voter("a"), nonvoter("d")), ask: as(fresh, func(a *addition) { a.addr = "d:2" }), steps: []step{{remove, "d", ""}, {add, "d", "d:2"}}},
		"a member that was removed":                  {in: three(""), ask: as(fresh, func(a *addition) { a.fresh = false }), reason: ReasonRemoved},
		"of another cluster":                         {in: three(""), ask: as(fresh, func(a *addition) { a.cluster = "there" }), reason: raftnet.ReasonForeignCluster},
		"too old":                                    {in: three(""), ask: as(fresh, func(a *addition) { a.format = 0 }), reason: ReasonTooOld},
		"at the address of another":                  {in: three("b"), ask: as(fresh, func(a *addition) { a.addr = "b:1" }), reason: ReasonAddressInUse},
	} {
		steps, err := tc.in.add(tc.ask)
		require.Equal(t, tc.steps, steps, name)
		if tc.reason == "" {
			require.NoError(t, err, name)
			continue
		}
		require.True(t, rpcerr.HasReason(err, tc.reason), "%s: %v", name, err)
	}
}

func TestWhoMayBeReplaced(t *testing.T) {
	three := []raft.Server{voter("a"), voter("b"), voter("c")}
	for name, tc := range map[string]struct {
		in     membership
		disk   string
		reason string
	}{
		"a voter that is not there":                  {in: membersOf("c", three...), disk: "2"},
		"one that only the heartbeats miss":          {in: called(membersOf("c", three...), "bc"), disk: "2", reason: ReasonAlreadyRunning},
		"one that asks itself, on the disk it had":   {in: called(membersOf("c", three...), "bc")},
		"one beside one that just died":              {in: called(membersOf("c", three...), ""), disk: "2", reason: ReasonWouldLoseQuorum},
		"one of four beside one that just died":      {in: called(membersOf("c", append(three[:3:3], voter("d"))...), "b"), disk: "2"},
		"one of five beside one that just died":      {in: called(membersOf("c", append(three[:3:3], voter("d"), voter("e"))...), "bd"), disk: "2"},
		"one that lost its disk, beside one vote":    {in: membersOf("c", voter("a"), voter("c")), disk: "2"},
		"one beside the leader that has no vote yet": {in: membersOf("c", nonvoter("a"), voter("c")), disk: "2", reason: ReasonLastVoter},
	} {
		err := tc.in.replace(voter("c"), addition{name: "c", disk: tc.disk, fresh: true})
		if tc.reason == "" {
			require.NoError(t, err, name)
			continue
		}
		require.True(t, rpcerr.HasReason(err, tc.reason), "%s: %v", name, err)
	}
}

func TestWhoMayBeRemoved(t *testing.T) {
	for name, tc := range map[string]struct {
		in     membership
		remove string
		force  bool
		reason string
	}{
		"a dead one of three":                  {in: membersOf("c", voter("a"), voter("b"), voter("c")), remove: "c"},
		"a dead one of two":                    {in: membersOf("b", voter("a"), voter("b")), remove: "b"},
		"a dead joiner":                        {in: membersOf("d", voter("a"), nonvoter("d")), remove: "d"},
		"a live one":                           {in: membersOf("", voter("a"), voter("b"), voter("c")), remove: "c", reason: ReasonIsAlive},
		"a live one, by force":                 {in: membersOf("", voter("a"), voter("b"), voter("c")), remove: "c", force: true},
		"the leader":                           {in: membersOf("", voter("a"), voter("b"), voter("c")), remove: "a", reason: ReasonIsAlive},
		"the leader, by force":                 {in: membersOf("", voter("a"), voter("b"), voter("c")), remove: "a", force: true},
		"a live joiner":                        {in: membersOf("", voter("a"), nonvoter("d")), remove: "d", reason: ReasonIsAlive},
		"a live joiner, by force":              {in: membersOf("", voter("a"), nonvoter("d")), remove: "d", force: true},
		"the only one":                         {in: membersOf("", voter("a")), remove: "a", force: true, reason: ReasonLastVoter},
		"the only voter":                       {in: membersOf("", voter("a"), nonvoter("d")), remove: "a", force: true, reason: ReasonLastVoter},
		"a live one beside a dead one":         {in: membersOf("c", voter("a"), voter("b"), voter("c")), remove: "b", force: true, reason: ReasonWouldLoseQuorum},
		"a live one of five beside a dead":     {in: membersOf("e", voter("a"), voter("b"), voter("c"), voter("d"), voter("e")), remove: "b", force: true},
		"a live one of five beside two":        {in: membersOf("de", voter("a"), voter("b"), voter("c"), voter("d"), voter("e")), remove: "b", force: true, reason: ReasonWouldLoseQuorum},
		"an unknown server":                    {in: membersOf("", voter("a")), remove: "x", reason: ReasonUnknownServer},
		"a joiner does not make up for death":  {in: membersOf("c", voter("a"), voter("b"), voter("c"), nonvoter("d")), remove: "b", force: true, reason: ReasonWouldLoseQuorum},
		"a live one beside one that just died": {in: called(membersOf("", voter("a"), voter("b"), voter("c")), "b"), remove: "b", force: true, reason: ReasonWouldLoseQuorum},
		"one that just died":                   {in: called(membersOf("", voter("a"), voter("b"), voter("c")), "b"), remove: "c", reason: ReasonIsAlive},
		"one that only the heartbeats miss":    {in: called(membersOf("c", voter("a"), voter("b"), voter("c")), "bc"), remove: "c", reason: ReasonIsAlive},
	} {
		gone, err := tc.in.release(tc.remove, tc.force)
		if tc.reason == "" {
			require.NoError(t, err, name)
			require.EqualValues(t, tc.remove, gone.ID, name)
			continue
		}
		require.True(t, rpcerr.HasReason(err, tc.reason), "%s: %v", name, err)
	}
}
