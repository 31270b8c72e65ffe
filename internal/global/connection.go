package global

import (
	"context"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// maxEnds and maxEndItems bound what a zone may say of the dataplanes of a connection,
// in bytes, and in tag sets of callers and inbounds: it is passed on to another zone,
// which compares each with the rules of its dataplane. A dataplane with more of them
// is asked about with dataplanes of its own zone only.
const (
	maxEnds     = 1 << 20
	maxEndItems = 4096
)

// connect answers a question about a connection between two dataplanes wherever they
// are. Every zone is asked at once; one that has both answers it, and of two zones
// that have one each, each answers for its side, given what the other one has said of
// its dataplane. Both rounds together take no longer than one question to a zone.
func (s *inspectService) connect(ctx context.Context, known fleetStatus, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	for _, named := range []string{req.GetConnection().GetFromZone(), req.GetConnection().GetToZone()} {
		if _, connected := known.servers[resource.ZoneName(named)]; named != "" && !connected {
			return nil, notConnected(resource.ZoneName(named), known)
		}
	}
	limited, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asked := proto.CloneOf(req)
	asked.GetConnection().Ends = true
	all := s.askEach(limited, known, asked)
	absent := all.absent
	for _, zone := range known.connected() {
		if all.missing[zone] != nil { // which says nothing about a single end
			absent = append(absent, answer.Absence{Zone: zone, Reason: "its version answers only for both ends of a connection"})
		}
	}
	q := req.GetConnection()
	var from, to []zoneAnswer
	for _, r := range all.found {
		ends := r.response.GetEnds()
		if proto.Size(ends) > maxEnds || len(ends.GetCallers())+len(ends.GetInbounds()) > maxEndItems {
			absent = append(absent, answer.Absence{Zone: r.zone, Reason: "it has too many inbounds for a question about another zone"})
			continue
		}
		// Without ends, it has both, and has answered.
		if (ends == nil || len(ends.GetCallers()) > 0) && in(r.zone, q.GetFromZone()) {
			from = append(from, r)
		}
		if (ends == nil || ends.GetCalled()) && in(r.zone, q.GetToZone()) {
			to = append(to, r)
		}
	}
	if len(from) == 0 || len(to) == 0 {
		return nil, s.unknownEnd(limited, known, req, len(from) == 0, all.failed, absent)
	}
	absent = known.absentWith(absent)
	switch {
	case len(from) > 1:
		return nil, ambiguousEnd(q.GetFrom(), "--from-zone", from)
	case len(to) > 1:
		return nil, ambiguousEnd(q.GetTo(), "--to-zone", to)
	case from[0].zone != to[0].zone:
		return s.connectAcross(limited, known, req, from[0], to[0], absent)
	}
	response := from[0].response
	if response.GetEnds() != nil {
		// It has both and yet could not answer: it says why.
		var err error
		if response, err = s.ask(limited, from[0].zone, known, req); err != nil {
			return nil, err
		}
	}
	if len(absent) == 0 {
		return response, nil
	}
	document, err := answer.WithIncomplete(response.GetJson(), absent)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "zone %q: %w", from[0].zone, err)
	}
	response.Json, response.Notes = document, sentences(absent)
	return response, nil
}

// unknownEnd says which dataplane of a connection no zone has.
func (s *inspectService) unknownEnd(ctx context.Context, known fleetStatus, req *meridianv1.InspectRequest, caller bool, failed error, absent []answer.Absence) error {
	if failed != nil {
		return failed
	}
	if zone, only := known.only(); only {
		// What this zone suggests is right: there is no other.
		_, err := s.ask(ctx, zone, known, req)
		return err
	}
	name := req.GetConnection().GetTo()
	if caller {
		name = req.GetConnection().GetFrom()
	}
	return nowhere("dataplane \""+name+"\" in mesh \""+req.GetMesh()+"\": not found", known, absent)
}

// in reports whether a zone is the one that is named, if one is.
func in(zone resource.ZoneName, named string) bool { return named == "" || string(zone) == named }

// ambiguousEnd says that several zones say that they have a dataplane of that name. None
// of them is trusted more than the others: which one is meant the user says.
func ambiguousEnd(name, flag string, in []zoneAnswer) error {
	return rpcerr.New(rpcerr.Invalid, "AMBIGUOUS_ZONE", "dataplane %q is in %s, as these say: name the one that is meant with %s", name, strings.Join(names(in), " and "), flag)
}

// connectAcross asks two zones for their sides of a connection and puts these
// together.
func (s *inspectService) connectAcross(ctx context.Context, known fleetStatus, req *meridianv1.InspectRequest, from, to zoneAnswer, absent []answer.Absence) (*meridianv1.InspectResponse, error) {
	calls := []struct {
		zone      resource.ZoneName
		elsewhere *meridianv1.ConnectionEnds
	}{
		{from.zone, &meridianv1.ConnectionEnds{Called: true, Inbounds: to.response.GetEnds().GetInbounds()}},
		{to.zone, &meridianv1.ConnectionEnds{Callers: from.response.GetEnds().GetCallers()}},
	}
	sides := make([]*meridianv1.InspectResponse, len(calls))
	errs := make([]error, len(calls))
	var group errgroup.Group
	for i, c := range calls {
		group.Go(func() error {
			asked := proto.CloneOf(req)
			asked.GetConnection().Elsewhere = c.elsewhere
			sides[i], errs[i] = s.ask(ctx, c.zone, known, asked)
			return nil
		})
	}
	_ = group.Wait()
	// Whether there is such an inbound the zone that is called knows.
	for _, err := range slices.Backward(errs) {
		if err != nil {
			return nil, err
		}
	}
	document, err := answer.MergeConnections(
		answer.Part{Zone: from.zone, JSON: sides[0].GetJson()}, answer.Part{Zone: to.zone, JSON: sides[1].GetJson()}, absent)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "%w", err)
	}
	shown := map[string]string{}
	for _, side := range sides {
		maps.Copy(shown, side.GetShownNames())
	}
	return &meridianv1.InspectResponse{
		Json: document, AsOf: min(sides[0].GetAsOf(), sides[1].GetAsOf()), Notes: sentences(absent), ShownNames: shown,
	}, nil
}
