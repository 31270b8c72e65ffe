package global

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
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
	caller, called := lookup{name: q.GetFrom(), zone: q.GetFromZone()}, lookup{name: q.GetTo(), zone: q.GetToZone()}
	for _, r := range all.found {
		ends := r.response.GetEnds()
		if proto.Size(ends) > maxEnds || len(ends.GetCallers())+len(ends.GetInbounds()) > maxEndItems {
			absent = append(absent, answer.Absence{Zone: r.zone, Reason: "it has too many inbounds for a question about another zone"})
			continue
		}
		// Without ends, it has both, and has answered.
		if caller.heard(r.zone, ends == nil || len(ends.GetCallers()) > 0) {
			from = append(from, r)
		}
		if called.heard(r.zone, ends == nil || ends.GetCalled()) {
			to = append(to, r)
		}
	}
	switch {
	case len(from) == 0:
		return nil, s.unknownEnd(limited, known, req, caller, all.failed, absent)
	case len(to) == 0:
		return nil, s.unknownEnd(limited, known, req, called, all.failed, absent)
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

// lookup is the search for a dataplane of a connection.
type lookup struct {
	// name is that of the dataplane, and zone the one that it is said to be in; empty
	// for any.
	name, zone string
	// answered is whether that zone has said that it has one, or none.
	answered bool
}

// heard reports whether the dataplane that is meant is in a zone, which says whether it
// has one of that name.
func (l *lookup) heard(zone resource.ZoneName, has bool) bool {
	l.answered = l.answered || l.zone == string(zone)
	return has && (l.zone == "" || l.zone == string(zone))
}

// unknownEnd says that a dataplane of a connection is in no zone, or not in the one that
// is named.
func (s *inspectService) unknownEnd(ctx context.Context, known fleetStatus, req *meridianv1.InspectRequest, end lookup, failed error, absent []answer.Absence) error {
	what := fmt.Sprintf("dataplane %q in mesh %q: not found", end.name, req.GetMesh())
	zone, only := known.only()
	switch {
	case end.answered && !only:
		return rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s in zone %q%s", what, end.zone, s.elsewhere(ctx, known, req.GetMesh(), end))
	case failed != nil:
		return failed
	case only:
		// What this zone suggests is right: there is no other.
		_, err := s.ask(ctx, zone, known, req)
		return err
	}
	return nowhere(what, known, absent)
}

// elsewhere says which other zones have a dataplane of the name; empty where none says so.
func (s *inspectService) elsewhere(ctx context.Context, known fleetStatus, mesh string, end lookup) string {
	all := s.askEach(ctx, known, question.Request(question.Connection{From: end.name, To: end.name, Ends: true}, mesh, ""))
	have := slices.DeleteFunc(all.found, func(r zoneAnswer) bool {
		return string(r.zone) == end.zone || r.response.GetEnds() != nil && !r.response.GetEnds().GetCalled()
	})
	switch len(have) {
	case 0:
		return ""
	case 1:
		return "; " + names(have)[0] + " has one"
	}
	return "; " + strings.Join(names(have), " and ") + " have one"
}

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
