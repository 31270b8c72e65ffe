package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/commit"
	"meridian/internal/resource"
	"meridian/internal/rollout"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// rolling is a service that has rollouts, with zones a and b, and a mesh demo.
func rolling(t *testing.T) (*secured, *Rollouts) {
	t.Helper()
	s := newSecured(t)
	_, rollouts := rollingOn(t, s)
	s.must("mesh", message("Mesh", "", "demo", "{}"))
	return s, rollouts
}

// rollingOn has a service have rollouts, with zones a and b.
func rollingOn(t *testing.T, s *secured) (*secured, *Rollouts) {
	t.Helper()
	conditions, err := rollout.NewConditions()
	require.NoError(t, err)
	s.cfg.Rollouts = &RolloutConfig{
		Enabled:    func() []resource.ZoneName { return []resource.ZoneName{"a", "b"} },
		Conditions: conditions,
		Observe: func(_ context.Context, all []*resource.Resource) []rollout.Observation {
			out := make([]rollout.Observation, len(all))
			for i := range out {
				out[i].Zones = []rollout.Zone{
					{Name: "a", Applied: true, Health: rollout.Health{Connected: true, State: "in-sync"}},
					{Name: "b", Health: rollout.Health{State: "offline"}},
				}
			}
			return out
		},
	}
	return s, &Rollouts{Service: s.Service}
}

func canary(name string) *meridianv1.RolloutOptions {
	return &meridianv1.RolloutOptions{Name: name, Stages: []*meridianv1.RolloutStage{{Zones: []string{"a"}}, {All: true}}}
}

func (s *secured) roll(who context.Context, id string, o *meridianv1.RolloutOptions, resources ...*meridianv1.Resource) (*meridianv1.ApplyResponse, error) {
	return s.ApplyBatch(who, &meridianv1.ApplyRequest{RequestId: id, Resources: resources, Rollout: o})
}

func (s *secured) storedRollout(name string) *resource.Rollout {
	s.t.Helper()
	r, ok := s.View().Get(rollout.Key(name))
	require.True(s.t, ok)
	spec, ok := rollout.SpecOf(r)
	require.True(s.t, ok)
	return spec
}

func requireReason(t *testing.T, err error, reason string) {
	t.Helper()
	require.Error(t, err)
	require.True(t, rpcerr.HasReason(err, reason), "%v", err)
}

// A rollout leaves the resources as they are until it is completed, which writes all of
// them at once.
func TestARolloutIsBegunAndPromoted(t *testing.T) {
	s, rollouts := rolling(t)
	s.must("before", timeoutIn("demo", "old"), timeoutIn("demo", "same"))
	old, _ := s.View().Get(resource.Key{Kind: resource.KindTimeout, Mesh: "demo", Name: "old"})
	changed := timeoutIn("demo", "old")
	changed.Labels = map[string]string{"team": "x"}

	response, err := s.roll(root, "1", canary("r"), changed, timeoutIn("demo", "same"), timeoutIn("demo", "new"))
	require.NoError(t, err)
	require.Len(t, response.GetResults(), 1)
	require.Equal(t, "Rollout", response.GetResults()[0].GetKind())
	again, err := s.roll(root, "1", canary("r"), changed, timeoutIn("demo", "same"), timeoutIn("demo", "new"))
	require.NoError(t, err)
	require.Equal(t, response.GetRevision(), again.GetRevision(), "the request is answered as it was")
	require.Equal(t, 2, s.View().Count(resource.KindTimeout))
	spec := s.storedRollout("r")
	require.Len(t, spec.Changes, 2, "what is unchanged is left out")
	require.Equal(t, old.Meta().Version, spec.Changes[0].Replaces)
	require.Equal(t, []resource.ZoneName{"a"}, spec.Status.Zones)

	listed, err := rollouts.ListRollouts(root, &meridianv1.ListRolloutsRequest{Name: "r"})
	require.NoError(t, err)
	r := listed.GetRollouts()[0]
	require.Equal(t, "changed", r.GetZones()[0].GetState())
	require.Equal(t, "unchanged", r.GetZones()[1].GetState())
	require.Len(t, r.GetChanges(), 2)

	// Nothing else writes these resources meanwhile, by whichever call.
	requireReason(t, s.as(root, "2", timeoutIn("demo", "new")), commit.ReasonHeld)
	_, err = s.ApplyBatch(root, &meridianv1.ApplyRequest{DryRun: true, Resources: []*meridianv1.Resource{timeoutIn("demo", "new")}})
	requireReason(t, err, commit.ReasonHeld)
	_, err = s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "3", Keys: []*meridianv1.ResourceKey{{Kind: "Timeout", Mesh: "demo", Name: "old"}}})
	requireReason(t, err, commit.ReasonHeld)
	_, err = s.roll(root, "4", canary("other"), timeoutIn("demo", "new"))
	requireReason(t, err, commit.ReasonHeld)
	_, err = s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "5", Keys: []*meridianv1.ResourceKey{
		{Kind: "Timeout", Mesh: "demo", Name: "same"}, {Kind: "Mesh", Name: "demo"},
	}})
	requireReason(t, err, commit.ReasonHeld)
	require.NoError(t, s.as(root, "6", timeoutIn("demo", "another")))

	_, err = rollouts.PromoteRollout(root, &meridianv1.PromoteRolloutRequest{Name: "r", RequestId: "7", Stage: 2})
	requireReason(t, err, "ROLLOUT_STAGE")
	for i, id := range []string{"8", "8", "9"} {
		_, err = rollouts.PromoteRollout(root, &meridianv1.PromoteRolloutRequest{Name: "r", RequestId: id})
		require.NoError(t, err)
		require.Equal(t, i == 2, s.storedRollout("r").Status.Phase == resource.RolloutCompleted, "a repeated call begins no further stage")
	}
	now, _ := s.View().Get(old.Key())
	created, ok := s.View().Get(resource.Key{Kind: resource.KindTimeout, Mesh: "demo", Name: "new"})
	require.True(t, ok)
	require.Equal(t, map[string]string{"team": "x"}, now.Meta().Labels)
	ended, _ := s.View().Get(rollout.Key("r"))
	require.Equal(t, []resource.Revision{ended.Meta().Revision, ended.Meta().Revision}, []resource.Revision{now.Meta().Revision, created.Meta().Revision})
	_, err = rollouts.AbortRollout(root, &meridianv1.AbortRolloutRequest{Name: "r", RequestId: "10"})
	requireReason(t, err, "ROLLOUT_FINISHED")

	response, err = s.roll(root, "11", canary("q"), changed)
	require.NoError(t, err)
	require.Equal(t, meridianv1.Outcome_OUTCOME_UNCHANGED, response.GetResults()[0].GetOutcome())
	_, ok = s.View().Get(rollout.Key("q"))
	require.False(t, ok, "a batch that changes nothing begins no rollout")
}

func TestARolloutOfDeletionsIsAborted(t *testing.T) {
	s, rollouts := rolling(t)
	s.must("before", timeoutIn("demo", "old"))
	before := s.View().DigestOf(func(k resource.Kind) bool { return k != resource.KindRollout })
	_, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "1", Rollout: canary("r"), Keys: []*meridianv1.ResourceKey{{Kind: "Timeout", Mesh: "demo", Name: "old"}}})
	require.NoError(t, err)
	require.NotNil(t, s.storedRollout("r").Changes[0].Delete)
	_, err = rollouts.AbortRollout(root, &meridianv1.AbortRolloutRequest{Name: "r", RequestId: "2"})
	require.NoError(t, err)
	require.Equal(t, resource.RolloutAborted, s.storedRollout("r").Status.Phase)
	require.Equal(t, before, s.View().DigestOf(func(k resource.Kind) bool { return k != resource.KindRollout }))
	require.NoError(t, s.as(root, "3", timeoutIn("demo", "old")))
	_, err = s.roll(root, "4", canary("r"), timeoutIn("demo", "new"))
	requireReason(t, err, reasonRolloutExists)
}

// It takes the rights to make the change at once, and those for the rollout.
func TestWhoMayRollOut(t *testing.T) {
	s, rollouts := rolling(t)
	role := func(name, rules string) []*meridianv1.Resource {
		return []*meridianv1.Resource{
			message("AccessRole", "", name, `{"rules": [`+rules+`]}`),
			message("AccessRoleBinding", "", name, `{"subjects": [{"type": "User", "name": "`+name+`"}], "roles": ["`+name+`"]}`),
		}
	}
	timeouts, begins, ends := `{"mesh": "demo", "types": ["Timeout"], "access": ["CREATE"]}`, `{"types": ["Rollout"], "access": ["CREATE"]}`, `{"types": ["Rollout"], "access": ["UPDATE"]}`
	s.must("a", role("changes", timeouts)...)
	s.must("b", role("begins", begins)...)
	s.must("c", role("both", timeouts+","+begins)...)
	s.must("d", role("ends", ends)...)
	as := func(name string) context.Context {
		return authn.WithPrincipal(context.Background(), authn.UserPrincipal(name, nil))
	}
	for _, who := range []string{"changes", "begins", "ends", "none"} {
		_, err := s.roll(as(who), "1", canary("r"), timeoutIn("demo", "new"))
		require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err), "%s: %v", who, err)
	}
	_, err := s.roll(as("both"), "1", canary("r"), timeoutIn("demo", "new"))
	require.NoError(t, err)
	require.Equal(t, "both", s.storedRollout("r").Status.Author)
	for _, who := range []string{"changes", "begins", "both", "none"} {
		_, err := rollouts.PromoteRollout(as(who), &meridianv1.PromoteRolloutRequest{Name: "r", RequestId: "2"})
		require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err), "%s: %v", who, err)
		_, err = rollouts.AbortRollout(as(who), &meridianv1.AbortRolloutRequest{Name: "r", RequestId: "2"})
		require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err), "%s: %v", who, err)
	}
	_, err = rollouts.PromoteRollout(as("ends"), &meridianv1.PromoteRolloutRequest{Name: "r", RequestId: "2"})
	require.NoError(t, err)
	require.Equal(t, "promoted by ends", s.storedRollout("r").Status.Reason)
	require.Equal(t, "both", s.storedRollout("r").Status.Author)
}

func TestWhatIsNoRollout(t *testing.T) {
	s, _ := rolling(t)
	with := func(to func(*meridianv1.RolloutOptions)) *meridianv1.RolloutOptions {
		o := canary("r")
		to(o)
		return o
	}
	for name, tt := range map[string]struct {
		options *meridianv1.RolloutOptions
		of      *meridianv1.Resource
		reason  string
	}{
		"no stages":       {with(func(o *meridianv1.RolloutOptions) { o.Stages = nil }), timeoutIn("demo", "x"), "INVALID_ROLLOUT"},
		"unknown zone":    {with(func(o *meridianv1.RolloutOptions) { o.Stages[0].Zones = []string{"c"} }), timeoutIn("demo", "x"), "INVALID_ROLLOUT"},
		"two ways":        {with(func(o *meridianv1.RolloutOptions) { o.Stages[0].Percent = 3 }), timeoutIn("demo", "x"), "INVALID_ROLLOUT"},
		"no name":         {with(func(o *meridianv1.RolloutOptions) { o.Name = "" }), timeoutIn("demo", "x"), "INVALID_ROLLOUT"},
		"bad condition":   {with(func(o *meridianv1.RolloutOptions) { o.HaltOn = "zone.nothing" }), timeoutIn("demo", "x"), "INVALID_ROLLOUT"},
		"negative":        {with(func(o *meridianv1.RolloutOptions) { o.Interval = durationpb.New(-1) }), timeoutIn("demo", "x"), "INVALID_ROLLOUT"},
		"kind not synced": {canary("r"), message("Zone", "", "z", "{}"), "NOT_IN_ROLLOUTS"},
		"missing mesh":    {canary("r"), timeoutIn("none", "x"), "MESH_MISSING"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.roll(root, name, tt.options, tt.of)
			requireReason(t, err, tt.reason)
		})
	}
	_, err := s.ApplyBatch(root, &meridianv1.ApplyRequest{RequestId: "x", KeepTimes: true, Rollout: canary("r"), Resources: []*meridianv1.Resource{timeoutIn("demo", "x")}})
	requireReason(t, err, "INVALID_ROLLOUT")
	_, err = s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "y", Keys: []*meridianv1.ResourceKey{{Kind: "Rollout", Name: "r"}}})
	requireReason(t, err, "ROLLOUT_BY_COMMAND")
	err = s.as(root, "z", message("Rollout", "", "r", "{}"))
	require.ErrorContains(t, err, "apply --rollout")
	s.cfg.Rollouts = nil
	_, err = s.roll(root, "w", canary("r"), timeoutIn("demo", "x"))
	requireReason(t, err, "NO_ROLLOUTS_HERE")
	require.Zero(t, s.View().Count(resource.KindRollout))
}

// A resource that is written between the decision and the begin of a rollout is not held
// at another version than the rollout replaces.
func TestARolloutIsDecidedOnWhatItReplaces(t *testing.T) {
	s, _ := rolling(t)
	s.must("before", timeoutIn("demo", "old"))
	meanwhile := timeoutIn("demo", "old")
	meanwhile.Labels = map[string]string{"a": "b"}
	changed := timeoutIn("demo", "old")
	changed.Labels = map[string]string{"team": "x"}
	s.Once(func() { s.change(s.op(meanwhile)) })
	_, err := s.roll(root, "1", canary("r"), changed)
	require.NoError(t, err)
	require.Equal(t, uint64(2), s.storedRollout("r").Changes[0].Replaces)
}

// The tests that a mesh carries are run again before a stage begins and before the
// completion, on the whole change and what else was written meanwhile. Who may delete them
// can skip them, for this rollout.
func TestTestsBeforeEachStage(t *testing.T) {
	s, rollouts := rolling(t)
	s.must("tests", message("Mesh", "", "demo", securedMesh), allow("web", "web", "backend"), lasting("soon", "5s"), carriedTests(carriedSpec))
	_, err := s.write(root, "roles",
		message("AccessRole", "", "rolls", `{"rules": [{"types": ["Rollout"], "access": ["UPDATE"]}]}`),
		message("AccessRoleBinding", "", "rolls", `{"subjects": [{"type": "User", "name": "sam"}], "roles": ["rolls"]}`))
	require.NoError(t, err)
	promote := func(who context.Context, id string, skip bool) (*meridianv1.PromoteRolloutResponse, error) {
		return rollouts.PromoteRollout(who, &meridianv1.PromoteRolloutRequest{Name: "r", RequestId: id, SkipTests: skip})
	}
	begin := func(id string) {
		_, err = s.roll(root, id, canary("r"), lasting("late", "20s"))
		require.NoError(t, err)
	}
	stricter := strings.Replace(carriedSpec, "<= 30s", "<= 10s", 1)
	begin("1")
	s.must("stricter", carriedTests(stricter)) // it passes with what there is
	before := s.storedRollout("r").Status
	_, err = promote(root, "2", false)
	requireReason(t, err, ReasonTestsFail)
	require.ErrorContains(t, err, `"answers come soon": outbound backend:9000: expected connectTimeout of Timeout to be "<= 10s", but it is "20s", by late`)
	_, err = promote(authn.WithPrincipal(t.Context(), authn.UserPrincipal("sam", nil)), "3", true)
	requireReason(t, err, "TESTS_NOT_SKIPPED")
	require.Equal(t, before, s.storedRollout("r").Status, "it is in its stage")

	audited := authn.CollectReasons(root)
	response, err := promote(audited, "4", true)
	require.NoError(t, err)
	require.Contains(t, response.GetWarnings()[0], "tests skipped")
	require.Contains(t, strings.Join(authn.Reasons(audited), "\n"), `"answers come soon"`)
	require.Equal(t, []string{"demo"}, response.GetRollout().GetSkippedTests())
	_, err = promote(root, "5", false)
	require.NoError(t, err, "they are skipped for all of it")
	require.Equal(t, resource.RolloutCompleted, s.storedRollout("r").Status.Phase)

	// The completion, too; that of a rollout whose tests were skipped in the beginning is not.
	s.must("again", lasting("late", "5s"), carriedTests(carriedSpec))
	o := canary("q")
	_, err = s.ApplyBatch(root, &meridianv1.ApplyRequest{RequestId: "6", Resources: []*meridianv1.Resource{lasting("late", "20s")}, Rollout: o})
	require.NoError(t, err)
	next := func(name, id string) error {
		_, err := rollouts.PromoteRollout(root, &meridianv1.PromoteRolloutRequest{Name: name, RequestId: id})
		return err
	}
	require.NoError(t, next("q", "7"))
	s.must("stricter again", carriedTests(stricter))
	requireReason(t, next("q", "8"), ReasonTestsFail)
	require.Equal(t, uint32(2), s.storedRollout("q").Status.Stage)
	s.must("as before", carriedTests(carriedSpec))
	require.NoError(t, next("q", "9"))
	_, err = s.ApplyBatch(root, &meridianv1.ApplyRequest{RequestId: "10", SkipTests: true, Resources: []*meridianv1.Resource{lasting("late", "45s")}, Rollout: canary("p")})
	require.NoError(t, err)
	require.Equal(t, []resource.MeshName{"demo"}, s.storedRollout("p").Status.SkippedTests)
	require.NoError(t, next("p", "11"))
	require.NoError(t, next("p", "12"))
}

// What was decided by the tests takes effect only on what they were run on: two writes
// cannot break them together.
func TestAStageIsDecidedAgainWhenItsTestsChange(t *testing.T) {
	s, rollouts := rolling(t)
	s.must("tests", message("Mesh", "", "demo", securedMesh), allow("web", "web", "backend"), lasting("soon", "5s"), carriedTests(carriedSpec))
	for i, stage := range []string{"a stage", "the completion"} {
		name := fmt.Sprint("r", i)
		value := fmt.Sprintf("%ds", 20+i)
		_, err := s.roll(root, "begin "+name, canary(name), lasting("late", value))
		require.NoError(t, err)
		for range i {
			_, err = rollouts.PromoteRollout(root, &meridianv1.PromoteRolloutRequest{Name: name, RequestId: "first " + name})
			require.NoError(t, err)
		}
		s.Log.Once(func() {
			r, _, err := Decode(carriedTests(strings.Replace(carriedSpec, "<= 30s", "<= 10s", 1)))
			require.NoError(t, err)
			s.Log.Write(store.Txn{Ops: []store.Op{store.Put(r)}})
		})
		_, err = rollouts.PromoteRollout(root, &meridianv1.PromoteRolloutRequest{Name: name, RequestId: "last " + name})
		requireReason(t, err, ReasonTestsFail)
		_, err = rollouts.AbortRollout(root, &meridianv1.AbortRolloutRequest{Name: name, RequestId: "abort " + name})
		require.NoError(t, err, stage)
		s.must("as before "+name, carriedTests(carriedSpec))
	}
}

// Who may not read a rollout is told that there is one, and not which; who may not read
// zones sees no names of them.
func TestWhatRolloutsHide(t *testing.T) {
	s := newGranted(t)
	_, rollouts := rollingOn(t, s)
	s.must("mesh demo", message("Mesh", "", "demo", "{}"))
	s.must("roles",
		message("AccessRole", "", "writes", `{"rules": [{"mesh": "demo", "types": ["Timeout"], "access": ["READ", "CREATE", "UPDATE", "DELETE"]}]}`),
		message("AccessRole", "", "looks", `{"rules": [{"types": ["Rollout"], "access": ["READ"]}]}`),
		message("AccessRoleBinding", "", "writes", `{"subjects": [{"type": "User", "name": "ann"}, {"type": "User", "name": "lea"}], "roles": ["writes"]}`),
		message("AccessRoleBinding", "", "looks", `{"subjects": [{"type": "User", "name": "lea"}], "roles": ["looks"]}`))
	o := canary("secret-name")
	o.HaltOn = "zone.name == 'a' && zone.lag > 7"
	_, err := s.roll(root, "1", o, timeoutIn("demo", "new"))
	require.NoError(t, err)
	for who, named := range map[string]bool{"ann": false, "lea": true} {
		err := s.as(user(who), "write "+who, timeoutIn("demo", "new"))
		requireReason(t, err, commit.ReasonHeld)
		require.Equal(t, named, strings.Contains(err.Error(), "secret-name"), "%v", err)
	}
	listed, err := rollouts.ListRollouts(user("lea"), &meridianv1.ListRolloutsRequest{})
	require.NoError(t, err)
	shown := listed.GetRollouts()[0]
	require.Empty(t, shown.GetZones())
	require.Equal(t, []string{hiddenZone}, shown.GetOptions().GetStages()[0].GetZones())
	require.Equal(t, hiddenCondition, shown.GetOptions().GetHaltOn())
	listed, err = rollouts.ListRollouts(root, &meridianv1.ListRolloutsRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, listed.GetRollouts()[0].GetOptions().GetStages()[0].GetZones())
	require.Equal(t, o.HaltOn, listed.GetRollouts()[0].GetOptions().GetHaltOn())
}

// Who may not read all of a mesh is not told which of its tests keep a rollout from going
// on, nor of which mesh they are skipped.
func TestReasonsOfMeshesThatMayNotBeRead(t *testing.T) {
	s := newGranted(t)
	_, rollouts := rollingOn(t, s)
	s.must("mesh demo", message("Mesh", "", "demo", securedMesh), allow("web", "web", "backend"), lasting("soon", "5s"), carriedTests(carriedSpec))
	s.must("roles",
		message("AccessRole", "", "looks", `{"rules": [{"types": ["Rollout", "Zone"], "access": ["READ"]}]}`),
		message("AccessRole", "", "reads", `{"rules": [{"mesh": "demo", "access": ["READ"]}, {"types": ["Mesh"], "access": ["READ"]}]}`),
		message("AccessRoleBinding", "", "looks", `{"subjects": [{"type": "User", "name": "lea"}, {"type": "User", "name": "max"}], "roles": ["looks"]}`),
		message("AccessRoleBinding", "", "reads", `{"subjects": [{"type": "User", "name": "max"}], "roles": ["reads"]}`))
	_, err := s.ApplyBatch(root, &meridianv1.ApplyRequest{RequestId: "1", SkipTests: true, Resources: []*meridianv1.Resource{lasting("late", "45s")}, Rollout: canary("r")})
	require.NoError(t, err)
	r, _ := s.View().Get(rollout.Key("r"))
	halted, err := rollout.Halt(r, s.cfg.Now(), `"answers come soon": by late`)
	require.NoError(t, err)
	s.change(store.Put(halted))
	for who, reads := range map[string]bool{"lea": false, "max": true} {
		listed, err := rollouts.ListRollouts(user(who), &meridianv1.ListRolloutsRequest{})
		require.NoError(t, err)
		shown := listed.GetRollouts()[0]
		require.Equal(t, reads, shown.GetReason() != "", who)
		require.Equal(t, reads, len(shown.GetSkippedTests()) == 1, who)
	}
}

// The request id of a completion names the rollout: the histories of what it writes have it.
func TestACompletionIsNamed(t *testing.T) {
	s, rollouts := rolling(t)
	_, err := s.roll(root, "1", canary("named"), timeoutIn("demo", "new"))
	require.NoError(t, err)
	var ids []string
	s.Log.Before(func(txn store.Txn) error {
		ids = append(ids, authn.CallerRequestID(txn.RequestID))
		return nil
	})
	for _, id := range []string{"2", "3"} {
		_, err = rollouts.PromoteRollout(root, &meridianv1.PromoteRolloutRequest{Name: "named", RequestId: id})
		require.NoError(t, err)
	}
	require.Equal(t, []string{"rollout named@2", "rollout named@3"}, ids)
}

func TestARolloutThatIsTooLarge(t *testing.T) {
	s, _ := rolling(t)
	var batch []*meridianv1.Resource
	for i := range 20 {
		m := timeoutIn("demo", fmt.Sprint("t", i))
		m.Labels = map[string]string{}
		m.Spec = []byte(strings.Replace(string(m.Spec), `"sources": [`, `"sources": [`+strings.Repeat(`{"match": {"kuma.io/service": "`+strings.Repeat("x", 60)+`"}}, `, 600), 1))
		batch = append(batch, m)
	}
	_, err := s.roll(root, "1", canary("r"), batch...)
	requireReason(t, err, "ROLLOUT_TOO_LARGE")
	require.ErrorContains(t, err, "split the batch into several rollouts")
}

// A deletion that skips tests says so, as other writes do.
func TestADeletionThatSkipsTestsWarns(t *testing.T) {
	s := newCarried(t)
	response, err := s.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "1", SkipTests: true, Keys: []*meridianv1.ResourceKey{keyed(allow("web", "web", "backend"))}})
	require.NoError(t, err)
	require.Contains(t, strings.Join(response.GetWarnings(), "; "), "tests skipped: the change breaks 1 of the 3 tests")
}
