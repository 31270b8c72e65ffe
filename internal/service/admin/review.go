package admin

import (
	"context"

	"meridian/internal/commit"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Review validates a resource that another system is about to store, such as an
// object of Kubernetes, as Apply would. A resource that is not valid in itself is
// an error, a *resource.DocumentError. What only prevents storing it in this
// control plane is a warning, beside the advice that every author gets.
func (s *Service) Review(ctx context.Context, r *resource.Resource) ([]string, error) {
	if s.cfg.Check != nil {
		if wrong := s.cfg.Check(r.Spec()); len(wrong) > 0 {
			return nil, &resource.DocumentError{Key: r.Key(), Problems: wrong}
		}
	}
	d, _ := resource.Describe(r.Key().Kind)
	if err := s.cfg.Owns(d); err != nil {
		return []string{err.Error()}, nil
	}
	if s.cfg.Prepare != nil {
		prepared, err := s.cfg.Prepare(s.cfg.View(), r)
		if err != nil {
			return []string{err.Error()}, nil
		}
		r = prepared
	}
	txn := store.Txn{Time: s.cfg.Now(), Ops: []store.Op{store.Put(r)}}
	if result, _ := s.cfg.Preview(txn)(); result.Err != nil {
		return []string{s.hideExample(ctx, result.Err).Error()}, nil
	}
	var said remarks
	now := s.written().View()
	broken, err := s.brokenBy(ctx, now, txn, guardTests(now, &commit.Batch{Txn: txn}))
	if err != nil {
		return nil, err
	}
	for i := range broken {
		said.warn(broken[i].headline() + ": applied here, it is refused")
	}
	err = s.advise(ctx, txn, &said)
	warnings, _ := said.lines()
	return warnings, err
}
