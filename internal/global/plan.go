package global

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/turns"
)

// The zones are asked about changes of at most maxPlanBytes, and told at most
// maxCallersBytes of the callers in other zones.
const (
	maxPlanBytes    = 4 << 20
	maxCallersBytes = 8 << 20
)

// plan says what a change would do: to routes here, where all of their inputs are, and to
// dataplanes in each connected zone.
func (s *inspectService) plan(ctx context.Context, batch *plan.Batch) (*plan.Plan, error) {
	p := plan.New()
	var matcher *policy.Matcher
	err := s.matching.Read(func(m *policy.Matcher, asOf resource.Revision) error {
		matcher, p.AsOf = m, asOf
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.turns.Question(ctx, turns.CallerOf(ctx), func() error { return p.RoutesOf(ctx, matcher, batch) })
	if err != nil {
		return nil, err
	}
	if part := batch.Part(func(key resource.Key) bool { return plan.OnDataplanes(key.Kind) }); !part.Empty() {
		return p, s.planInZones(ctx, p, part)
	}
	return p, nil
}

// planInZones adds what the connected zones say, and names the others.
func (s *inspectService) planInZones(ctx context.Context, p *plan.Plan, batch *plan.Batch) error {
	q := &meridianv1.PlanQuestion{}
	for _, r := range batch.Written {
		q.Written = append(q.Written, admin.Encode(r))
	}
	for _, key := range batch.Deleted {
		q.Deleted = append(q.Deleted, &meridianv1.ResourceKey{Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name})
	}
	if size := proto.Size(q); size > maxPlanBytes {
		return rpcerr.New(rpcerr.Invalid, "PLAN_TOO_LARGE", "the batch has %d bytes of policies; zones plan at most %d: plan it in parts", size, maxPlanBytes)
	}
	known := s.zones(ctx)
	zones := known.connected()
	callers, absent := s.callers(ctx, known, batch)
	var failed []answer.Absence
	questions := make([]*meridianv1.PlanQuestion, len(zones))
	for i, zone := range zones {
		questions[i] = &meridianv1.PlanQuestion{Written: q.GetWritten(), Deleted: q.GetDeleted()}
		var elsewhere []plan.Caller
		for _, other := range slices.Sorted(maps.Keys(callers)) {
			if other != zone {
				for _, caller := range callers[other] {
					caller.Zone = other
					elsewhere = append(elsewhere, caller)
				}
			}
		}
		encoded, err := json.Marshal(elsewhere)
		if err != nil {
			return fmt.Errorf("encode callers: %w", err)
		}
		switch {
		case len(elsewhere) == 0:
		case len(encoded) > maxCallersBytes:
			absent = append(absent, answer.Absence{Zone: zone, Reason: "there are too many callers in other zones: connections from them are not in the plan"})
		default:
			questions[i].Elsewhere = encoded
		}
	}
	parts, errs := askParts(ctx, s, known, zones, plansOf(questions), plan.New)
	for i, zone := range zones {
		if errs[i] != nil {
			failed = append(failed, answer.Absence{Zone: zone, Reason: failureReason(errs[i])})
			continue
		}
		p.Add(zone, parts[i])
	}
	for _, a := range absent {
		if !slices.ContainsFunc(failed, func(f answer.Absence) bool { return f.Zone == a.Zone }) {
			failed = append(failed, a)
		}
	}
	p.Miss(known.absentWith(failed)...)
	return ctx.Err()
}

// callers are the dataplanes that call others, by zone, where connections between zones
// can change; zones that do not say are named.
func (s *inspectService) callers(ctx context.Context, known fleetStatus, batch *plan.Batch) (map[resource.ZoneName][]plan.Caller, []answer.Absence) {
	meshes := map[string]bool{}
	for _, key := range batch.Keys() {
		if !plan.OnInbounds(key.Kind) {
			continue
		}
		if key.Kind == resource.KindMesh {
			meshes[key.Name] = true
		} else {
			meshes[string(key.Mesh)] = true
		}
	}
	return s.callersOf(ctx, known, slices.Sorted(maps.Keys(meshes)))
}

// callersOf are callers of all dataplanes of meshes.
func (s *inspectService) callersOf(ctx context.Context, known fleetStatus, meshes []string) (map[resource.ZoneName][]plan.Caller, []answer.Absence) {
	zones := known.connected()
	if len(meshes) == 0 || len(zones) < 2 {
		return nil, nil
	}
	questions := make([]*meridianv1.PlanQuestion, len(zones))
	for i := range questions {
		questions[i] = &meridianv1.PlanQuestion{Callers: meshes}
	}
	found, errs := askParts(ctx, s, known, zones, plansOf(questions), func() *[]plan.Caller { return &[]plan.Caller{} })
	callers := map[resource.ZoneName][]plan.Caller{}
	var absent []answer.Absence
	for i, zone := range zones {
		if errs[i] != nil {
			absent = append(absent, answer.Absence{Zone: zone, Reason: "its callers are not known: " + failureReason(errs[i])})
			continue
		}
		callers[zone] = *found[i]
	}
	return callers, absent
}

func plansOf(questions []*meridianv1.PlanQuestion) []*meridianv1.InspectRequest {
	requests := make([]*meridianv1.InspectRequest, len(questions))
	for i, q := range questions {
		requests[i] = &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Plan{Plan: q}}
	}
	return requests
}

// askParts puts a question to each zone at the same time, and reads the documents.
func askParts[D any](ctx context.Context, s *inspectService, known fleetStatus, zones []resource.ZoneName, questions []*meridianv1.InspectRequest, empty func() *D) (found []*D, errs []error) {
	found, errs = make([]*D, len(zones)), make([]error, len(zones))
	var group errgroup.Group
	for i, zone := range zones {
		group.Go(func() error {
			response, err := s.ask(ctx, zone, known, questions[i])
			if err == nil {
				found[i] = empty()
				if err = answer.Unmarshal(response.GetJson(), found[i]); err != nil {
					err = rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "what it sent cannot be read: %w", err)
				}
			}
			errs[i] = err
			return nil
		})
	}
	_ = group.Wait()
	return found, errs
}
