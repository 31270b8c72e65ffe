package global

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/inherit"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	zonesync "meridian/internal/sync"
	"meridian/internal/turns"
)

// askTimeout bounds how long a zone may take to answer one question. One from which
// nothing is received is given up on earlier (zonesync.ErrZoneSilent).
const askTimeout = 10 * time.Second

// Reasons of errors about a zone.
const (
	reasonZoneTimeout     = "ZONE_TIMEOUT"
	reasonZoneUnavailable = "ZONE_UNAVAILABLE"
)

// inspectService answers questions about inherited policies itself, since the
// global owns everything they depend on (§5.8), and passes all others
// to the zones.
type inspectService struct {
	meridianv1.UnimplementedInspectServiceServer
	// matching follows the paths of the inherited policies.
	matching *livematch.Matching
	// past answers questions about earlier states. source, unless nil, takes the place of
	// matching.
	past   *pastStates
	source func() question.Source
	// then is what zones are told of the earlier state that a question is about, if it is.
	then *telling
	// zones returns what is known of every zone.
	zones func(ctx context.Context) fleetStatus
	// asking passes a question to a zone that is connected to a server.
	asking func(ctx context.Context, zone resource.ZoneName, server string, question []byte) ([]byte, error)
	// turns bound how many questions are answered here at once, fairly between callers.
	turns *turns.Turns
	// proxies are the questions to zones of the waits for their proxies.
	proxies *rounds[proxyVerdict]
}

// Inspect passes a question to the zone that it names, or to every connected
// zone, whichever server it is connected to: what only one can answer is
// answered by that one, and what is spread over zones is put together.
func (s *inspectService) Inspect(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	if req.GetAt() != nil {
		return s.inspectThen(ctx, req)
	}
	return s.inspect(ctx, req)
}

func (s *inspectService) inspect(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	if about := req.GetConnection(); about.GetFrom() == "" && about.GetToZone() != "" && req.GetZone() == "" {
		// The caller is given by its tags: the zone of the other end has all there is.
		req = proto.CloneOf(req)
		req.Zone = about.GetToZone()
	}
	if req.GetAnalysis() != nil && req.GetZone() == "" {
		return s.analyze(ctx, req)
	}
	if req.GetInvariant() != nil && req.GetZone() == "" {
		return s.invariant(ctx, req)
	}
	if req.GetZone() == "" {
		if response, own, err := s.answerInherited(ctx, req); own {
			return response, err
		}
	}
	known := s.zones(ctx)
	if zone := resource.ZoneName(req.GetZone()); zone != "" {
		if _, connected := known.servers[zone]; !connected {
			return nil, notConnected(zone, known)
		}
		if about := req.GetConnection(); about != nil {
			named := question.Connection{FromZone: resource.ZoneName(about.GetFromZone()), ToZone: resource.ZoneName(about.GetToZone())}
			if err := named.Within(zone); err != nil { // a zone of an older release would not say so
				return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
			}
		}
		return s.ask(ctx, zone, known, req)
	}
	if len(known.servers) == 0 {
		return nil, rpcerr.New(rpcerr.Unavailable, "NO_ZONES", "no zone is connected: only a zone knows its dataplanes; see `meridian zones`%s", silentSuffix(known))
	}
	if req.GetConnection().GetFrom() != "" {
		return s.connect(ctx, known, req)
	}
	found, failed, err := s.askAll(ctx, known, req)
	if err != nil {
		return nil, err
	}
	switch req.GetQuestion().(type) {
	case *meridianv1.InspectRequest_Policy:
		return merge(found, answer.MergePolicies, known.absentWith(failed))
	case *meridianv1.InspectRequest_Dataplanes:
		return merge(found, answer.MergeDataplanes, known.absentWith(failed))
	case *meridianv1.InspectRequest_Proxies:
		return merge(found, answer.MergeProxies, known.absentWith(failed))
	case *meridianv1.InspectRequest_Trials:
		return merge(found, answer.MergeTrials, known.absentWith(failed))
	case *meridianv1.InspectRequest_Conditions:
		return merge(found, answer.MergeConditions, known.absentWith(failed))
	}
	if len(found) > 1 {
		return nil, rpcerr.New(rpcerr.Invalid, "AMBIGUOUS_ZONE", "%s can answer this: name one with --zone", strings.Join(names(found), " and "))
	}
	found[0].response.Notes = append(known.notes(), sentences(failed)...)
	return found[0].response, nil
}

// answers is what questions are answered from here.
func (s *inspectService) answers() question.Source {
	if s.source != nil {
		return s.source()
	}
	return s.matching
}

// sentences are absences for people.
func sentences(absent []answer.Absence) []string {
	var out []string
	for _, a := range absent {
		out = append(out, a.String())
	}
	return out
}

// notConnected says why a zone cannot be asked: it is away, or there is none of
// that name.
func notConnected(zone resource.ZoneName, known fleetStatus) error {
	var zones []string
	for _, z := range known.zones {
		if z.Name == zone {
			return rpcerr.New(rpcerr.Unavailable, reasonZoneUnavailable, "zone %q is %s: only the zone itself knows its dataplanes; see `meridian zones`%s", zone, z.State, silentSuffix(known))
		}
		zones = append(zones, string(z.Name))
	}
	if nearest, ok := resource.Nearest(string(zone), zones); ok {
		return rpcerr.New(rpcerr.NotFound, "NO_SUCH_ZONE", "there is no zone %q; did you mean %q?", zone, nearest)
	}
	return rpcerr.New(rpcerr.NotFound, "NO_SUCH_ZONE", "there is no zone %q%s", zone, listZones(known.connected()))
}

// silentSuffix adds to a refusal that a server which could not be asked may know
// better.
func silentSuffix(known fleetStatus) string {
	if len(known.silent) == 0 {
		return ""
	}
	return " (" + strings.Join(known.notes(), "; ") + ")"
}

// answerInherited answers a question that is about inherited policies alone; false when it
// is not.
func (s *inspectService) answerInherited(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, bool, error) {
	asked, err := question.Parse(req)
	if err != nil {
		// A newer zone may know the kind of policy or the question. Conditions are
		// those of kinds that the global stores.
		_, own := req.GetQuestion().(*meridianv1.InspectRequest_Conditions)
		return nil, own, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	}
	var held map[resource.Key][]policy.Condition
	var notes []string
	switch q := asked.(type) {
	case question.Route, question.Gateway:
	case question.Policy:
		if !inherit.Follows(q.Kind) && !q.Brief {
			return nil, false, nil
		}
		held, notes = s.quarantines(ctx)
	case question.Conditions:
		if !inherit.Follows(q.Kind) && question.AsksProxies(q.Kind) {
			return nil, false, nil // the zones know their proxies
		}
		held, notes = s.quarantines(ctx)
	default:
		return nil, false, nil
	}
	response := &meridianv1.InspectResponse{Notes: notes}
	err = s.turns.Question(ctx, turns.CallerOf(ctx), func() error {
		answered, err := question.Answer(asked, s.answers(), question.At{
			Mesh: resource.MeshName(req.GetMesh()),
			Held: func(key resource.Key) []policy.Condition { return held[key] },
		})
		response.AsOf, response.Json, response.ShownNames = uint64(answered.AsOf), answered.Document, answered.Shown
		return err
	})
	switch {
	case errors.Is(err, answer.ErrNotFound):
		err = rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%w", err)
	case errors.Is(err, answer.ErrInvalid):
		err = rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	}
	if about, ok := asked.(question.Policy); ok && about.Brief && err == nil {
		response = s.withZones(ctx, req, about.Kind, response)
	}
	return response, true, err
}

// quarantines has what the zones cannot use, with a condition for every zone, and
// says what that may lack.
func (s *inspectService) quarantines(ctx context.Context) (map[resource.Key][]policy.Condition, []string) {
	held := map[resource.Key][]policy.Condition{}
	known := s.zones(ctx)
	for _, z := range known.zones {
		for _, q := range z.Quarantined {
			held[q.Key] = append(held[q.Key], answer.Quarantined(z.Name, q.Version, q.Message))
		}
	}
	return held, known.notes()
}

// zoneAnswer is one zone's answer.
type zoneAnswer struct {
	zone     resource.ZoneName
	response *meridianv1.InspectResponse
}

// askAll asks every connected zone and returns the answers, at least one, and the
// zones that failed: an answer that leaves a zone out says so.
func (s *inspectService) askAll(ctx context.Context, known fleetStatus, req *meridianv1.InspectRequest) (found []zoneAnswer, failed []answer.Absence, err error) {
	r := s.askEach(ctx, known, req)
	switch {
	case len(r.found) > 0:
		return r.found, r.absent, nil
	case r.failed != nil:
		return nil, nil, r.failed
	}
	if zone, only := known.only(); only {
		return nil, nil, r.missing[zone]
	}
	return nil, nil, nowhere(subject(req)+"not found", known, nil)
}

// subject begins an error with what a question is about, where it is about something
// that has a name.
func subject(req *meridianv1.InspectRequest) string {
	kind, name := "dataplane", ""
	switch q := req.GetQuestion().(type) {
	case *meridianv1.InspectRequest_Dataplane:
		name = q.Dataplane.GetName()
	case *meridianv1.InspectRequest_Why:
		name = q.Why.GetDataplane()
	case *meridianv1.InspectRequest_Proxy:
		name = q.Proxy.GetName()
	case *meridianv1.InspectRequest_Proxies:
		name = q.Proxies.GetName()
	case *meridianv1.InspectRequest_Policy:
		kind, name = q.Policy.GetKind(), q.Policy.GetName()
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s %q in mesh %q: ", kind, name, req.GetMesh())
}

// nowhere says that no zone that could be asked has something. What one zone would
// suggest instead is no suggestion for the others.
func nowhere(what string, known fleetStatus, absent []answer.Absence) error {
	absent = known.absentWith(absent)
	suffix := ""
	if len(absent) > 0 {
		suffix = "; not asked, or behind: " + strings.Join(sentences(absent), ", ")
	}
	return rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s in any connected zone%s; `meridian dataplanes` lists what there is%s", what, listZones(known.connected()), suffix)
}

// replies are those of all zones to one question.
type replies struct {
	found []zoneAnswer
	// missing are the errors of zones that do not have what is asked about.
	missing map[resource.ZoneName]error
	// absent are the zones that failed, and failed is the error of one of them.
	absent []answer.Absence
	failed error
}

// askEach asks every connected zone at the same time.
func (s *inspectService) askEach(ctx context.Context, known fleetStatus, req *meridianv1.InspectRequest) replies {
	all := replies{missing: map[resource.ZoneName]error{}}
	connected := known.connected()
	responses := make([]*meridianv1.InspectResponse, len(connected))
	errs := make([]error, len(connected))
	var group errgroup.Group
	for i, zone := range connected {
		group.Go(func() error {
			responses[i], errs[i] = s.ask(ctx, zone, known, req)
			return nil
		})
	}
	_ = group.Wait()
	for i, zone := range connected {
		switch {
		case errs[i] == nil:
			all.found = append(all.found, zoneAnswer{zone, responses[i]})
		case rpcerr.CodeOf(errs[i]) == rpcerr.NotFound:
			all.missing[zone] = errs[i]
		default:
			all.failed = errs[i]
			all.absent = append(all.absent, answer.Absence{Zone: zone, Reason: failureReason(errs[i])})
		}
	}
	return all
}

// failureReason is why a zone that is named beside it could not be asked.
func failureReason(err error) string {
	switch {
	case rpcerr.HasReason(err, reasonZoneTimeout):
		return "connected, without an answer in time"
	case rpcerr.HasReason(err, reasonZoneUnavailable):
		return "cannot answer now"
	}
	return err.Error()
}

func (s *inspectService) ask(ctx context.Context, zone resource.ZoneName, known fleetStatus, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	question := proto.CloneOf(req)
	question.Zone = ""
	timeout := zoneTimeout(ctx)
	asked, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	send := func(encoded []byte) ([]byte, error) {
		reply, err := s.asking(asked, zone, known.servers[zone], encoded)
		if errors.Is(err, zonesync.ErrZoneOffline) {
			// It may have gone to another server in the meantime.
			if server, connected := s.zones(asked).servers[zone]; connected {
				reply, err = s.asking(asked, zone, server, encoded)
			}
		}
		return reply, err
	}
	var reply []byte
	var err error
	if s.then != nil {
		reply, err = s.then.ask(question, send)
	} else {
		var encoded []byte
		if encoded, err = proto.Marshal(question); err != nil {
			return nil, fmt.Errorf("encode a question: %w", err)
		}
		reply, err = send(encoded)
	}
	switch {
	case asked.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded): // and not a timeout that the zone tells of
		return nil, rpcerr.New(rpcerr.Timeout, reasonZoneTimeout, "zone %q is connected but did not answer within %s; see `meridian zones`", zone, timeout.Round(time.Millisecond))
	case errors.Is(err, zonesync.ErrZoneSilent):
		return nil, rpcerr.New(rpcerr.Timeout, reasonZoneTimeout, "zone %q is connected and does not answer: it sends nothing; see `meridian zones`", zone)
	case errors.Is(err, zonesync.ErrZoneOffline), errors.Is(err, zonesync.ErrZoneBusy):
		return nil, rpcerr.New(rpcerr.Unavailable, reasonZoneUnavailable, "zone %q cannot answer now: %w", zone, err)
	case err != nil:
		return nil, rpcerr.FromStatus(err)
	}
	var response meridianv1.InspectResponse
	if err := proto.Unmarshal(reply, &response); err != nil {
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "zone %q gave an answer that cannot be read: %w", zone, err)
	}
	if req.GetAt() != nil && response.GetAtRevision() != req.GetAt().GetRevision() {
		return nil, rpcerr.New(rpcerr.Unsupported, "NO_PAST", "zone %q runs a release that cannot answer about earlier states: upgrade it", zone)
	}
	if req.GetAt() == nil {
		known.answered.note(zone, resource.Revision(response.GetAsOf()))
	}
	return &response, nil
}

// zoneTimeout is how long a zone is waited for: less than the caller waits, so
// that the answer can name the zone.
func zoneTimeout(ctx context.Context) time.Duration {
	until, ok := ctx.Deadline()
	if !ok {
		return askTimeout
	}
	left := time.Until(until)
	return min(askTimeout, left-min(left/10, time.Second))
}

// merge puts the answers of several zones together. It holds at the oldest
// revision among them.
func merge(found []zoneAnswer, join func([]answer.Part, func([]answer.Rejected) []answer.Absence) ([]byte, error), absent []answer.Absence) (*meridianv1.InspectResponse, error) {
	found, left := fitting(found, maxMerged)
	asOf := found[0].response.GetAsOf()
	parts := make([]answer.Part, len(found))
	for i, r := range found {
		parts[i] = answer.Part{Zone: r.zone, JSON: r.response.GetJson()}
		asOf = min(asOf, r.response.GetAsOf())
	}
	for _, r := range left {
		absent = append(absent, answer.Absence{Zone: r.zone, Reason: fmt.Sprintf("the answer would be too large, it sent %d bytes: ask it alone, with --zone", len(r.response.GetJson()))})
	}
	joined, err := join(parts, func(rejected []answer.Rejected) []answer.Absence {
		for _, r := range rejected {
			absent = append(absent, answer.Absence{Zone: r.Zone, Reason: "what it sent cannot be read: " + r.Err.Error()})
		}
		return absent
	})
	if err != nil {
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "%s: %w", strings.Join(names(found), ", "), err)
	}
	shown := map[string]string{}
	for _, r := range found {
		maps.Copy(shown, r.response.GetShownNames())
	}
	return &meridianv1.InspectResponse{Json: joined, AsOf: asOf, Notes: sentences(absent), ShownNames: shown}, nil
}

// maxMerged bounds the answers that are put together, in bytes: one message takes
// them.
const maxMerged = 16 << 20

// fitting returns the answers that have at most so many bytes together, at least
// one: those that are left out are the largest.
func fitting(found []zoneAnswer, most int) (fit, left []zoneAnswer) {
	size := 0
	for _, r := range found {
		size += len(r.response.GetJson())
	}
	fit = slices.Clone(found)
	for size > most && len(fit) > 1 {
		largest := 0
		for i, r := range fit {
			if len(r.response.GetJson()) > len(fit[largest].response.GetJson()) {
				largest = i
			}
		}
		size -= len(fit[largest].response.GetJson())
		left = append(left, fit[largest])
		fit = slices.Delete(fit, largest, largest+1)
	}
	return fit, left
}

func names(found []zoneAnswer) []string {
	out := make([]string, len(found))
	for i, r := range found {
		out[i] = fmt.Sprintf("zone %q", r.zone)
	}
	return out
}

func listZones(connected []resource.ZoneName) string {
	if len(connected) == 0 {
		return "; no zone is"
	}
	list := make([]string, len(connected))
	for i, zone := range connected {
		list[i] = string(zone)
	}
	return "; connected are " + strings.Join(list, ", ")
}
