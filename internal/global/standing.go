package global

import (
	"context"
	"fmt"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/turns"
)

// withZones adds what the zones, which know the dataplanes, say of a policy to what the
// global says of it. An answer that lacks a zone says so.
func (s *inspectService) withZones(ctx context.Context, req *meridianv1.InspectRequest, kind resource.Kind, own *meridianv1.InspectResponse) *meridianv1.InspectResponse {
	if !question.AsksProxies(kind) {
		return own
	}
	known := s.zones(ctx)
	notes := sentences(known.absent())
	if len(known.servers) == 0 {
		own.Notes = notes
		return own
	}
	found, failed, err := s.askAll(ctx, known, req)
	switch {
	case rpcerr.CodeOf(err) == rpcerr.NotFound: // it has not reached them
		own.Notes = notes
		return own
	case err != nil:
		own.Notes = append(notes, fmt.Sprintf("the dataplanes are not looked at: %s", err))
		return own
	}
	joined, err := merge(append([]zoneAnswer{{response: own}}, found...), answer.MergePolicies, known.absentWith(failed))
	if err != nil {
		own.Notes = append(notes, fmt.Sprintf("the dataplanes are not looked at: %s", err))
		return own
	}
	return joined
}

// analyze tells what the global finds in what it owns, together with what the connected
// zones find on their dataplanes.
func (s *inspectService) analyze(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	own := &meridianv1.InspectResponse{}
	err := s.turns.Question(ctx, turns.CallerOf(ctx), func() error {
		answered, err := question.Answer(question.Analysis{}, s.matching, question.At{Mesh: resource.MeshName(req.GetMesh())})
		own.AsOf, own.Json, own.ShownNames = uint64(answered.AsOf), answered.Document, answered.Shown
		return err
	})
	if err != nil {
		return nil, err
	}
	known := s.zones(ctx)
	asked := s.askEach(ctx, known, req)
	return merge(append([]zoneAnswer{{response: own}}, asked.found...), answer.MergeAnalyses, known.absentWith(asked.absent))
}
