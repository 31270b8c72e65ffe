package admin

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/plan"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// A plan writes nothing, takes the right to write, and shows only what the caller may
// read.
func TestPlansAreFiltered(t *testing.T) {
	s := newGranted(t)
	s.must("rights", message("AccessRole", "", "writes", `{"rules": [{"mesh": "demo", "types": ["Timeout"], "access": ["CREATE", "UPDATE", "DELETE"]}, {"mesh": "shop", "types": ["Timeout"], "access": ["CREATE"]}]}`),
		message("AccessRoleBinding", "", "writes", `{"subjects": [{"type": "User", "name": "ann"}], "roles": ["writes"]}`))
	var asked []*plan.Batch
	s.cfg.Plan = func(_ context.Context, batch *plan.Batch) (*plan.Plan, error) {
		asked = append(asked, batch)
		return plan.New(), nil
	}
	ask := func(who context.Context, resources ...*meridianv1.Resource) (*plan.Plan, error) {
		response, err := s.ApplyBatch(who, &meridianv1.ApplyRequest{Plan: true, Resources: resources})
		if err != nil {
			return nil, err
		}
		p := plan.New()
		return p, json.Unmarshal(response.GetPlan(), p)
	}
	revision := s.cfg.View().Revision()

	_, err := ask(user("eve"), timeoutIn("demo", "slow"))
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err), "%v", err)
	require.Empty(t, asked, "nothing is worked out for a caller who may not write")

	p, err := ask(user("ann"), timeoutIn("demo", "slow"), timeoutIn("shop", "slow"))
	require.NoError(t, err)
	require.Len(t, p.Changes, 2)
	require.Equal(t, plan.Created, p.Changes[0].Outcome)
	require.Len(t, asked, 1)
	require.Len(t, asked[0].Written, 1, "of the mesh shop, ann may read nothing else")
	require.Equal(t, "demo", string(asked[0].Written[0].Key().Mesh))
	require.True(t, p.Hidden)
	require.Equal(t, revision, s.cfg.View().Revision())

	_, err = s.DeleteBatch(user("ann"), &meridianv1.DeleteRequest{Plan: true, Keys: []*meridianv1.ResourceKey{{Kind: "Timeout", Mesh: "demo", Name: "none"}}})
	require.Error(t, err)
}

// A rollback is planned as any change is, and writes nothing then.
func TestRollbacksArePlanned(t *testing.T) {
	s := newSecured(t).keepHistory(store.DefaultRetention())
	s.must("mesh", message("Mesh", "", "demo", "{}"))
	to := s.cfg.View().Revision()
	s.must("later", timeoutIn("demo", "slow"))
	var asked []*plan.Batch
	s.cfg.Plan = func(_ context.Context, batch *plan.Batch) (*plan.Plan, error) {
		asked = append(asked, batch)
		return plan.New(), nil
	}
	for _, tt := range []struct {
		to   resource.Revision
		want []plan.Change
	}{
		{to, []plan.Change{{Kind: "Timeout", Mesh: "demo", Name: "slow", Outcome: plan.Deleted, Version: 1, Revision: uint64(to) + 1}}},
		{to + 1, []plan.Change{}},
	} {
		response, err := s.rollback(root, tt.to, func(r *meridianv1.RollbackRequest) { r.Plan, r.RequestId = true, "" })
		require.NoError(t, err)
		p := plan.New()
		require.NoError(t, json.Unmarshal(response.GetPlan(), p))
		require.Equal(t, tt.want, p.Changes)
	}
	require.Len(t, asked, 2)
	require.Len(t, asked[0].Deleted, 1)
	require.True(t, asked[1].Empty())
	require.Equal(t, to+1, s.cfg.View().Revision(), "nothing was written")
}
