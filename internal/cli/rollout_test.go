package cli

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
)

// rolloutServer has one rollout.
type rolloutServer struct {
	meridianv1.UnimplementedRolloutServiceServer
	rollout  *meridianv1.Rollout
	promoted []*meridianv1.PromoteRolloutRequest
}

func (s *rolloutServer) ListRollouts(_ context.Context, req *meridianv1.ListRolloutsRequest) (*meridianv1.ListRolloutsResponse, error) {
	if name := req.GetName(); name != "" && name != s.rollout.GetOptions().GetName() {
		return nil, status.Errorf(codes.NotFound, "Rollout %q does not exist", name)
	}
	return &meridianv1.ListRolloutsResponse{Rollouts: []*meridianv1.Rollout{s.rollout}, Revision: 1850}, nil
}

func (s *rolloutServer) PromoteRollout(_ context.Context, req *meridianv1.PromoteRolloutRequest) (*meridianv1.PromoteRolloutResponse, error) {
	s.promoted = append(s.promoted, req)
	s.rollout.Stage++
	return &meridianv1.PromoteRolloutResponse{Rollout: s.rollout, Revision: 1851}, nil
}

func (s *rolloutServer) AbortRollout(context.Context, *meridianv1.AbortRolloutRequest) (*meridianv1.AbortRolloutResponse, error) {
	s.rollout.Phase = "Aborted"
	return &meridianv1.AbortRolloutResponse{Rollout: s.rollout, Revision: 1852}, nil
}

func newRolloutServer() *rolloutServer {
	return &rolloutServer{rollout: &meridianv1.Rollout{
		Options: &meridianv1.RolloutOptions{
			Name: "slow", Stages: []*meridianv1.RolloutStage{{Zones: []string{"canary"}}, {Percent: 25}, {All: true}}, Interval: durationpb.New(600e9), HaltOn: "zone.lag > 9",
		},
		Phase: "Progressing", Stage: 1, Since: timestamppb.New(clitest.Epoch), Author: "ann", Waiting: "zone canary",
		Changes:       []*meridianv1.RolloutChange{{Kind: "Timeout", Mesh: "default", Name: "web", Replaces: 3}, {Kind: "Timeout", Mesh: "default", Name: "old", Deleted: true, Replaces: 1}},
		HiddenChanges: 1,
		Zones:         []*meridianv1.RolloutZone{{Name: "canary", State: "pending", Connection: "lagging"}, {Name: "west", State: "unchanged", Connection: "in-sync"}},
	}}
}

func TestRolloutCommands(t *testing.T) {
	fake := newRolloutServer()
	h := newHarnessOf(t, func(s *clitest.Server) { s.Rollouts = fake })
	require.Equal(t, `NAME  PHASE        STAGE       ZONES  CHANGES  AUTHOR  SINCE
slow  Progressing  1/3 canary  0/2    3        ann     10m
`, h.ok("rollout", "list"))
	require.Equal(t, "Rollout/slow\n", h.ok("rollout", "list", "-o", "name"))
	require.Equal(t, `Rollout:   slow
Phase:     Progressing, stage 1 of 3 (canary)
Stages:    canary, then 25%, then all
Interval:  10m0s
Halts on:  zone.lag > 9
Author:    ann
Since:     `+clitest.Epoch.UTC().Format("2006-01-02T15:04:05Z")+`
Waits for: zone canary
Changes:
  update Timeout/web in mesh default
  delete Timeout/old in mesh default
  1 change that you may not read
ZONE    STATE      CONNECTION  DETAIL
canary  pending    lagging     -
west    unchanged  in-sync     -
`, h.ok("rollout", "status", "slow"))
	require.Equal(t, "pending\n", h.ok("rollout", "status", "slow", "-o", "jsonpath={.zones[0].state}"))
	require.Equal(t, 1, h.run("rollout", "status", "none").code)
	require.Contains(t, h.ok("__complete", "rollout", "abort", ""), "slow\tProgressing, stage 1 of 3 (canary)")

	require.Equal(t, "rollout slow: Progressing, stage 2 of 3 (25%)\nrevision 1851\n", h.ok("rollout", "promote", "slow"))
	require.Equal(t, uint32(1), fake.promoted[0].GetStage(), "the stage that was seen")
	fake.rollout.Phase, fake.rollout.Reason = "Halted", "zone.lag > 9 is true of zone canary"
	out := h.run("rollout", "status", "slow")
	require.Equal(t, exit.Conflict, out.code)
	require.Contains(t, out.stderr, "rollout slow has halted: zone.lag > 9 is true of zone canary")
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"items":[]}`)}, nil
	}
	out = h.run("status")
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "\n  rollout slow has halted: zone.lag > 9 is true of zone canary\n")
	fake.rollout.Options.HaltOn = "zone.name != '''\nPhase:     Completed\n'''"
	fake.rollout.Reason = fake.rollout.Options.HaltOn + " is true of zone canary"
	for _, command := range [][]string{{"rollout", "status", "slow"}, {"status"}} {
		out = h.run(command...)
		require.NotContains(t, out.stdout+out.stderr, "\nPhase:     Completed", "a condition forges no line")
		require.Contains(t, out.stdout+out.stderr, "rollout slow has halted: zone.name != ''' Phase: Completed ''' is true of zone canary\n")
	}
	require.Equal(t, "rollout slow: Aborted\nrevision 1852\n", h.ok("rollout", "abort", "slow"))
	require.NotContains(t, h.ok("__complete", "rollout", "abort", ""), "slow")
}

func TestApplyByRollout(t *testing.T) {
	h := newHarness(t)
	file := h.write("p.yaml", meshYAML)
	for _, flags := range [][]string{
		{"--halt-on", "zone.lag > 3"},
		{"--rollout", ""},
		{"--rollout", "zones=all", "--halt-on", ""},
		{"--rollout", "zones=all", "--halt-on", " "},
		{"--manual=false"},
		{"--rollout", "canary"},
		{"--rollout", "zones=canary"},
		{"--rollout", "zones=all", "--halt-on", "zone.lagg > 3"},
		{"--rollout", "zones=all", "--interval", "-3s"},
		{"--rollout", "zones=all", "--rollout-name", "Web"},
		{"--rollout", "zones=all", "--wait", "zones"},
		{"--rollout", "zones=all", "--keep-times"},
	} {
		require.Equal(t, exit.Usage, h.run(append([]string{"apply", "-f", file}, flags...)...).code, "%v", flags)
	}
	require.Equal(t, exit.Usage, h.run("delete", "Mesh", "demo", "--rollout", "").code)
	require.Empty(t, h.server.Applies)
	require.Empty(t, h.server.Deletes)
	out := h.run("apply", "-f", file, "--yes", "--rollout", "zones=canary,then=25%,then=all", "--interval", "10m", "--manual", "--halt-on", "zone.lag > 3", "--rollout-name", "slow")
	require.Equal(t, exit.OK, out.code, out.stderr)
	o := h.server.Applies[len(h.server.Applies)-1].GetRollout()
	require.Equal(t, "slow", o.GetName())
	require.Len(t, o.GetStages(), 3)
	require.Equal(t, "10m0s", o.GetInterval().AsDuration().String())
	require.True(t, o.GetManual())
	require.Equal(t, "zone.lag > 3", o.GetHaltOn())
}
