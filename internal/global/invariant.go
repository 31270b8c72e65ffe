package global

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/expectation"
	"meridian/internal/plan"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// maxExampleBytes bounds the counterexamples of a zone.
const maxExampleBytes = 16 << 10

// invariant puts the verdicts of all connected zones about an invariant together. Each zone
// judges its own dataplanes, and the connections to them, also from other zones.
func (s *inspectService) invariant(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	known := s.zones(ctx)
	zones := known.connected()
	if len(zones) == 0 {
		return nil, rpcerr.New(rpcerr.Unavailable, "NO_ZONES", "no zone is connected: only a zone knows its dataplanes; see `meridian zones`%s", silentSuffix(known))
	}
	about := req.GetInvariant()
	var callers map[resource.ZoneName][]plan.Caller
	var failed []answer.Absence
	if about.GetOver() == resource.OverConnections && req.GetMesh() != "" {
		callers, failed = s.callersOf(ctx, known, []string{req.GetMesh()})
	}
	questions := make([]*meridianv1.InspectRequest, len(zones))
	for i, zone := range zones {
		elsewhere, err := json.Marshal(dataplanesBut(zone, callers))
		switch {
		case err != nil:
			return nil, fmt.Errorf("encode dataplanes: %w", err)
		case len(elsewhere) > maxCallersBytes:
			failed = append(failed, answer.Absence{Zone: zone, Reason: "there are too many callers in other zones: connections from them are not looked at"})
			elsewhere = nil
		}
		questions[i] = &meridianv1.InspectRequest{Mesh: req.GetMesh(), Question: &meridianv1.InspectRequest_Invariant{
			Invariant: &meridianv1.InvariantQuestion{Over: about.GetOver(), Expression: about.GetExpression(), Elsewhere: elsewhere},
		}}
	}
	verdicts, errs := askParts(ctx, s, known, zones, questions, func() *expectation.Verdict { return &expectation.Verdict{} })
	merged := &expectation.Verdict{Examples: []string{}}
	for i, zone := range zones {
		err := errs[i]
		if err == nil {
			err = credible(verdicts[i])
		}
		switch {
		case rpcerr.HasReason(err, "INVARIANT"):
			return nil, err // the expression fails on what there is
		case err != nil:
			failed = append(slices.DeleteFunc(failed, func(a answer.Absence) bool { return a.Zone == zone }), answer.Absence{Zone: zone, Reason: failureReason(err)})
			continue
		}
		merged.Checked += verdicts[i].Checked
		merged.Broken += verdicts[i].Broken
		for _, example := range verdicts[i].Examples {
			if len(merged.Examples) < expectation.MaxExamples {
				merged.Examples = append(merged.Examples, fmt.Sprintf("zone %s: %s", zone, example))
			}
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	merged.Incomplete = append([]answer.Absence{}, known.absentWith(failed)...)
	encoded, err := json.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("encode a verdict: %w", err)
	}
	return &meridianv1.InspectResponse{Json: encoded, Notes: sentences(merged.Incomplete)}, nil
}

// dataplanesBut are the callers of all zones but one.
func dataplanesBut(zone resource.ZoneName, callers map[resource.ZoneName][]plan.Caller) []expectation.Dataplane {
	all := []expectation.Dataplane{}
	for _, other := range slices.Sorted(maps.Keys(callers)) {
		if other == zone {
			continue
		}
		for _, group := range callers[other] {
			for _, name := range group.Names {
				all = append(all, expectation.Dataplane{Mesh: group.Mesh, Name: name, Zone: other, Tags: group.Tags})
			}
		}
	}
	return all
}

// credible fails for what no zone of this product says.
func credible(v *expectation.Verdict) error {
	if v.Checked < 0 || v.Broken < 0 || v.Broken > v.Checked || len(v.Examples) != min(v.Broken, expectation.MaxExamples) || len(strings.Join(v.Examples, "")) > maxExampleBytes {
		return rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "what it sent cannot be read: %w", errVerdict)
	}
	return nil
}

var errVerdict = errors.New("its numbers do not fit together")
