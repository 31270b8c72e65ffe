package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"meridian/internal/plan"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// plan says what a batch would do that the caller may make, as far as the caller may read
// what is around it. broken are the tests that it would break.
func (s *Service) plan(ctx context.Context, txn store.Txn, broken []plan.BrokenTests) ([]byte, error) {
	if s.cfg.Plan == nil {
		return nil, rpcerr.New(rpcerr.Invalid, "NO_PLANS_HERE", "this server does not plan")
	}
	view := s.cfg.View()
	result, after := s.cfg.Preview(txn)()
	if result.Err != nil {
		return nil, result.Err
	}
	batch := &plan.Batch{}
	var changes []plan.Change
	for _, r := range result.Results {
		change := plan.Change{Kind: r.Key.Kind, Mesh: r.Key.Mesh, Name: r.Key.Name, Outcome: outcomeName(r.Outcome)}
		if stored, ok := view.Get(r.Key); ok {
			m := stored.Meta()
			change.Version, change.Revision = m.Version, uint64(m.Revision)
		}
		changes = append(changes, change)
		switch r.Outcome {
		case store.Created, store.Updated:
			if now, ok := after.Get(r.Key); ok {
				batch.Written = append(batch.Written, now)
			}
		case store.Deleted:
			batch.Deleted = append(batch.Deleted, r.Key)
		}
	}
	shown := batch.Part(func(key resource.Key) bool { return s.plansAround(ctx, key) })
	p, err := s.cfg.Plan(ctx, shown)
	if err != nil {
		return nil, err
	}
	p.Changes, p.BrokenTests = append(p.Changes, changes...), broken
	p.EmptiedBy(view, shown)
	if err := p.Surveyed(ctx, view, shown); err != nil {
		return nil, err
	}
	if s.cfg.Access.ReadsAll(ctx) {
		p.RightsOf(view, batch)
	} else if len(shown.Keys()) < len(batch.Keys()) || s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone}) != nil {
		p.Hidden = true
	}
	p.Finish()
	if s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone}) != nil {
		p.HideZones(hiddenZone)
	}
	encoded, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode a plan: %w", err)
	}
	return encoded, nil
}

// plansAround reports whether the caller reads everything that a change of a resource can
// do something to: its mesh, with what is in it. Access rules are dealt with on their own.
func (s *Service) plansAround(ctx context.Context, key resource.Key) bool {
	mesh := key.Mesh
	if key.Kind == resource.KindMesh {
		mesh = resource.MeshName(key.Name)
	}
	if mesh == "" {
		return s.cfg.Access.ReadsAll(ctx)
	}
	return s.cfg.Access.ReadsAll(ctx) ||
		s.cfg.Access.ReadsMesh(ctx, mesh) && s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindMesh, Name: string(mesh)}) == nil
}

func outcomeName(o store.Outcome) string {
	switch o {
	case store.Created:
		return plan.Created
	case store.Updated:
		return plan.Updated
	case store.Deleted:
		return plan.Deleted
	}
	return plan.Unchanged
}
