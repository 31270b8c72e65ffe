package store

import (
	"fmt"
	"maps"
	"slices"

	"meridian/internal/resource"
)

// MaxRollouts bounds the rollouts that are not finished.
const MaxRollouts = 16

// HeldError means that a batch changes what an unfinished rollout is to change: it would
// be lost, or the rollout could not be completed. The caller waits until the rollout is
// finished, or finishes it.
type HeldError struct {
	Key resource.Key
	// Rollout is its name; empty for a caller who may not read it.
	Rollout string
}

func (e *HeldError) Error() string {
	if e.Rollout == "" {
		return fmt.Sprintf("%s is being changed by a rollout that you may not read: it can be written when that has ended", e.Key)
	}
	return fmt.Sprintf("%s is being changed by rollout %s: complete it before with `meridian rollout promote %s`, or end it with `meridian rollout abort %s`", e.Key, e.Rollout, e.Rollout, e.Rollout)
}

// RolloutsError means that there are MaxRollouts unfinished rollouts already.
type RolloutsError struct{}

func (e *RolloutsError) Error() string {
	return fmt.Sprintf("there are %d unfinished rollouts, the most that there can be: `meridian rollout list` shows them; complete or abort one", MaxRollouts)
}

// holds are the resources that unfinished rollouts are to change. No other batch changes
// them, and none deletes a mesh that they are in.
//
// It is part of what applying a command does, so that a decision cannot miss a rollout
// that is begun at the same time. The format of the commands that write rollouts has
// every server know it.
type holds struct {
	of     Digest // of the rollouts in the view that this was made from
	by     map[resource.Key]string
	meshes map[resource.MeshName][]string // of these resources, with the rollouts that change them
	// deletes are the meshes that rollouts delete.
	deletes map[resource.Key]bool
	open    int // rollouts that are not finished
}

// holdsLocked returns the holds of a view; nil where there are none.
func (s *Store) holdsLocked(v *View) *holds {
	if v.Count(resource.KindRollout) == 0 {
		return nil
	}
	if digest := v.Digest(resource.KindRollout); s.held == nil || s.held.of != digest {
		h := &holds{of: digest, by: map[resource.Key]string{}, meshes: map[resource.MeshName][]string{}, deletes: map[resource.Key]bool{}}
		for r := range v.List(resource.KindRollout, "") {
			spec := unfinished(r)
			if spec == nil {
				continue
			}
			h.open++
			for i := range spec.Changes {
				key := spec.Changes[i].Key()
				h.by[key] = r.Key().Name
				if key.Kind == resource.KindMesh && spec.Changes[i].Delete != nil {
					h.deletes[key] = true
				}
				if name := r.Key().Name; key.Mesh != "" && !slices.Contains(h.meshes[key.Mesh], name) {
					h.meshes[key.Mesh] = append(h.meshes[key.Mesh], name)
				}
			}
		}
		s.held = h
	}
	return s.held
}

// unfinished returns the spec of a rollout that is not finished, else nil.
func unfinished(r *resource.Resource) *resource.Rollout {
	if r == nil {
		return nil
	}
	spec, ok := r.Spec().(*resource.Rollout)
	if !ok || spec.Status.Phase.Finished() {
		return nil
	}
	return spec
}

// checkHeldLocked refuses operations on what rollouts hold that are not finished by the
// same batch, and rollouts that would hold what another one does.
func (s *Store) checkHeldLocked(v *View, ops []Op) error {
	h := s.holdsLocked(v)
	ended := map[string]bool{} // rollouts that the batch finishes
	begun := map[string]*resource.Rollout{}
	open := 0
	for _, op := range ops {
		key, _ := op.target()
		if key.Kind != resource.KindRollout {
			continue
		}
		if it, ok := lookup(v.tree, key); ok && unfinished(it.res) != nil {
			open--
		}
		if begun[key.Name] = unfinished(op.Resource); begun[key.Name] != nil {
			open++
		} else {
			ended[key.Name] = true
		}
	}
	switch {
	case h == nil && len(begun) == 0:
		return nil
	case h == nil:
		h = &holds{}
	}
	if open > 0 && h.open+open > MaxRollouts {
		return &RolloutsError{}
	}
	check := func(own string, key resource.Key, deletes bool) error {
		by, held := h.by[key]
		if held && by != own && !ended[by] {
			return &HeldError{Key: key, Rollout: by}
		}
		if !deletes || key.Kind != resource.KindMesh {
			return nil
		}
		for _, by := range h.meshes[resource.MeshName(key.Name)] {
			if by != own && !ended[by] {
				return &HeldError{Key: key, Rollout: by}
			}
		}
		return nil
	}
	for _, op := range ops {
		if key, _ := op.target(); key.Kind != resource.KindRollout {
			if err := check("", key, op.Resource == nil); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(begun)) {
		if begun[name] == nil {
			continue
		}
		for i := range begun[name].Changes {
			c := &begun[name].Changes[i]
			if err := check(name, c.Key(), c.Delete != nil); err != nil {
				return err
			}
			// What is written into a mesh that another rollout deletes would be lost with it.
			mesh := resource.Key{Kind: resource.KindMesh, Name: string(c.Key().Mesh)}
			if c.Put == nil || !h.deletes[mesh] {
				continue
			}
			if err := check(name, mesh, true); err != nil {
				return err
			}
		}
	}
	return nil
}
