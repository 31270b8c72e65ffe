package global

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	zonesync "meridian/internal/sync"
)

// matcherOf returns a matcher as a zone of that name would have it.
func matcherOf(t require.TestingT, zone resource.ZoneName, resources []*resource.Resource) *policy.Matcher {
	view, err := policy.Offline(resources, zone, false)
	require.NoError(t, err)
	m := policy.NewMatcher(engines.All()...)
	m.Reset(view)
	return m
}

// zonesWith returns a service over zones that answer from matchers, as zones do.
func zonesWith(zones map[resource.ZoneName]*policy.Matcher) *inspectService {
	return &inspectService{
		zones: func(context.Context) fleetStatus { return connectedTo("a", slices.Sorted(maps.Keys(zones))...) },
		asking: func(_ context.Context, zone resource.ZoneName, _ string, asked []byte) ([]byte, error) {
			var req meridianv1.InspectRequest
			if err := proto.Unmarshal(asked, &req); err != nil {
				return nil, err
			}
			q, err := question.Parse(&req)
			if err != nil {
				return nil, err
			}
			answered, err := question.Answer(q, question.Fixed{Matcher: zones[zone]}, question.At{Mesh: resource.MeshName(req.GetMesh()), Zone: zone})
			if errors.Is(err, answer.ErrNotFound) {
				return nil, rpcerr.ToStatus(rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "zone %q: %w", zone, err)).Err()
			}
			if err != nil {
				return nil, err
			}
			return proto.Marshal(&meridianv1.InspectResponse{Json: answered.Document, Ends: question.EncodeEnds(answered.Ends)})
		},
	}
}

func aboutConnection(from, to string, port uint32) *meridianv1.InspectRequest {
	return question.Request(question.Connection{From: from, To: to, Port: port}, "m", "")
}

var services = []string{"a", "b", "c"}

// drawMesh draws the resources of one mesh: dataplanes, each with the zone it is in,
// and policies of both generations.
func drawMesh(rt *rapid.T, zones []resource.ZoneName) (policies []*resource.Resource, dataplanes map[resource.ZoneName][]*resource.Resource) {
	world := policytest.NewWorld()
	service := rapid.SampledFrom(services)
	any := rapid.SampledFrom(append([]string{"*"}, services...))
	put := func(kind, name, spec string) resource.Key {
		meta := resource.Meta{
			Key:              resource.Key{Kind: resource.Kind(kind), Mesh: "m", Name: name},
			ModificationTime: time.Unix(int64(rapid.IntRange(0, 2).Draw(rt, "modified")), 0),
		}
		if kind == "Mesh" {
			meta.Key = resource.Key{Kind: "Mesh", Name: "m"}
		}
		return world.Put(rt, meta, spec)
	}
	mtls := ""
	if rapid.Bool().Draw(rt, "mtls") {
		mtls = `, "mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}`
	}
	put("Mesh", "m", fmt.Sprintf(`{"matching": {"sourceDestination": %q}%s}`, rapid.SampledFrom([]string{"KongMesh", "Kuma2020"}).Draw(rt, "rules"), mtls))
	for i := range rapid.IntRange(1, 8).Draw(rt, "policies") {
		name := fmt.Sprintf("p%d", i)
		ends := fmt.Sprintf(`"sources": [{"match": {"kuma.io/service": %q}}], "destinations": [{"match": {"kuma.io/service": %q}}]`, any.Draw(rt, "source"), any.Draw(rt, "destination"))
		if rapid.IntRange(0, 3).Draw(rt, "zoned") == 0 {
			ends = fmt.Sprintf(`"sources": [{"match": {"kuma.io/zone": %q}}], "destinations": [{"match": {"kuma.io/service": "*"}}]`, rapid.SampledFrom(zones).Draw(rt, "zone"))
		}
		value := rapid.IntRange(1, 3).Draw(rt, "value")
		switch rapid.IntRange(0, 5).Draw(rt, "kind") {
		case 0:
			put("TrafficPermission", name, `{`+ends+`}`)
		case 1:
			put("Timeout", name, fmt.Sprintf(`{%s, "conf": {"connectTimeout": "%ds"}}`, ends, value))
		case 2:
			put("RateLimit", name, fmt.Sprintf(`{%s, "conf": {"http": {"requests": %d, "interval": "1s"}}}`, ends, value))
		case 3:
			put("MeshTrafficPermission", name, fmt.Sprintf(`{"targetRef": {"kind": "Service", "name": %q}, "from": [{"targetRef": {"kind": "MeshSubset", "tags": {"kuma.io/zone": %q}}, "action": %q}]}`,
				service.Draw(rt, "target"), rapid.SampledFrom(zones).Draw(rt, "zone"), rapid.SampledFrom([]string{"ALLOW", "DENY"}).Draw(rt, "action")))
		case 4:
			put("MeshUpstreamTimeout", name, fmt.Sprintf(`{"to": [{"targetRef": {"kind": "Service", "name": %q}, "connectTimeout": "%dm"}]}`, service.Draw(rt, "target"), value))
		case 5:
			put("MeshRateLimit", name, fmt.Sprintf(`{"from": [{"targetRef": {"kind": "Service", "name": %q}, "local": {"http": {"requestRate": {"num": %d, "interval": "1s"}}}}]}`, service.Draw(rt, "target"), value))
		}
	}
	policies = slices.Collect(maps.Values(world.Resources))
	dataplanes = map[resource.ZoneName][]*resource.Resource{}
	for i := range rapid.IntRange(2, 5).Draw(rt, "dataplanes") {
		zone := rapid.SampledFrom(zones).Draw(rt, "zone")
		port := func() string {
			return fmt.Sprintf(`{"port": %d, "tags": {"kuma.io/service": %q}}`, rapid.IntRange(1, 2).Draw(rt, "port"), service.Draw(rt, "service"))
		}
		networking := fmt.Sprintf(`"inbound": [%s, %s]`, port(), port())
		if rapid.IntRange(0, 3).Draw(rt, "gateway") == 0 {
			networking = fmt.Sprintf(`"gateway": {"tags": {"kuma.io/service": %q}}`, service.Draw(rt, "service"))
		}
		key := put("Dataplane", fmt.Sprintf("d%d", i), fmt.Sprintf(`{"networking": {"address": "10.0.0.1", %s, "outbound": [%s, %s]}}`, networking, port(), port()))
		inZone, err := resource.WithZone(world.Resources[key], zone)
		require.NoError(rt, err)
		dataplanes[zone] = append(dataplanes[zone], inZone)
	}
	return policies, dataplanes
}

// A connection between dataplanes of any zones is what eval says of the union of the
// files: the same bytes, or the same refusal.
func TestConnectionAcrossZonesEqualsTheUnion(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []resource.ZoneName{"east", "west", "north"}
		policies, dataplanes := drawMesh(rt, names)
		zones := map[resource.ZoneName]*policy.Matcher{}
		union, all := slices.Clone(policies), []string{}
		for _, zone := range names {
			zones[zone] = matcherOf(rt, zone, append(slices.Clone(policies), dataplanes[zone]...))
			for _, d := range dataplanes[zone] {
				union, all = append(union, d), append(all, d.Key().Name)
			}
		}
		s, eval := zonesWith(zones), matcherOf(rt, "", union)
		for _, from := range all {
			for _, to := range all {
				port := uint32(rapid.IntRange(0, 2).Draw(rt, "asked port"))
				want, err := answer.Connection(eval, answer.ConnectionQuestion{Mesh: "m", From: from, To: to, Port: port}, 0)
				got, gotErr := s.Inspect(t.Context(), aboutConnection(from, to, port))
				if err != nil {
					require.ErrorIs(rt, err, answer.ErrNotFound)
					require.Equal(rt, rpcerr.NotFound, rpcerr.CodeOf(gotErr))
					require.ErrorContains(rt, gotErr, err.Error())
					continue
				}
				require.NoError(rt, gotErr)
				encoded, err := answer.Marshal(want)
				require.NoError(rt, err)
				require.Equal(rt, string(encoded), string(got.GetJson()), "%s to %s", from, to)
				require.Empty(rt, got.GetNotes())
			}
		}
	})
}

// dataplane is one in a zone, with an inbound and an outbound to backend.
func dataplane(t *testing.T, zone resource.ZoneName, name string) *resource.Resource {
	w := policytest.NewWorld()
	key := w.Put(t, resource.Meta{Key: policy.DataplaneKey("m", name)},
		`{"networking": {"address": "1.1.1.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "backend"}}], "outbound": [{"port": 9, "tags": {"kuma.io/service": "backend"}}]}}`)
	inZone, err := resource.WithZone(w.Resources[key], zone)
	require.NoError(t, err)
	return inZone
}

// What cannot be known of a connection is said: a dataplane of which a zone may be
// the one that is away, one that several zones have, a zone that lags or fails.
func TestConnectionNamesWhatItLacks(t *testing.T) {
	east := matcherOf(t, "east", []*resource.Resource{dataplane(t, "east", "web-1"), dataplane(t, "east", "twice")})
	west := matcherOf(t, "west", []*resource.Resource{dataplane(t, "west", "backend-1"), dataplane(t, "west", "twice")})
	s := zonesWith(map[resource.ZoneName]*policy.Matcher{"east": east, "west": west})
	ask := func(from, to string) (*meridianv1.InspectResponse, error) {
		return s.Inspect(t.Context(), aboutConnection(from, to, 0))
	}
	r, err := ask("web-1", "backend-1")
	require.NoError(t, err)
	require.Empty(t, r.GetNotes())

	_, err = ask("twice", "backend-1")
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `dataplane "twice" is in zone "east" and zone "west"`)
	_, err = ask("web-1", "backend-2")
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `dataplane "backend-2" in mesh "m": not found in any connected zone; connected are east, west`)
	require.NotContains(t, err.Error(), "did you mean", "what one zone would suggest is none for the others")

	known := connectedTo("a", "east", "west")
	known.zones[0].State, known.zones[0].Revision = zonesync.ZoneLagging, 3
	known.zones = append(known.zones, zonesync.ZoneStatus{Name: "north", State: zonesync.ZoneOffline})
	known.silent = []silentServer{{name: "b", err: context.DeadlineExceeded}}
	s.zones = func(context.Context) fleetStatus { return known }
	want := []answer.Absence{
		{Server: "b", Reason: "no answer within 1s"}, {Zone: "east", Reason: "lagging, at revision 3"}, {Zone: "north", Reason: "offline"},
	}
	for _, ends := range [][2]string{{"web-1", "backend-1"}, {"web-1", "web-1"}} {
		r, err = ask(ends[0], ends[1])
		require.NoError(t, err)
		absent, err := answer.Incomplete(r.GetJson())
		require.NoError(t, err)
		require.Equal(t, want, absent)
		require.Equal(t, sentences(want), r.GetNotes())
	}
	_, err = ask("web-1", "backend-2")
	require.ErrorContains(t, err, `not asked, or behind: server b: no answer within 1s, zone "east": lagging, at revision 3, zone "north": offline`)
}

// A zone that says that it has the dataplanes of others makes a question end with the
// names of both, and is not listened to where the zones of the ends are named.
func TestConnectionWithAZoneThatLies(t *testing.T) {
	s := zonesWith(map[resource.ZoneName]*policy.Matcher{
		"east": matcherOf(t, "east", []*resource.Resource{dataplane(t, "east", "web-1")}),
		"west": matcherOf(t, "west", []*resource.Resource{dataplane(t, "west", "backend-1")}),
	})
	correct, err := s.Inspect(t.Context(), aboutConnection("web-1", "backend-1", 0))
	require.NoError(t, err)
	lies := map[string]*meridianv1.InspectResponse{
		"both":   {Json: []byte(`{"allowed":true}`)},
		"callee": {Ends: &meridianv1.ConnectionEnds{Called: true}},
		"caller": {Ends: &meridianv1.ConnectionEnds{Callers: []*meridianv1.TagSet{{}}}},
		"ends":   {Ends: &meridianv1.ConnectionEnds{Called: true, Callers: []*meridianv1.TagSet{{}}}},
	}
	answering := s.asking
	s.zones = func(context.Context) fleetStatus { return connectedTo("a", "east", "north", "west") }
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			s.asking = func(ctx context.Context, zone resource.ZoneName, server string, question []byte) ([]byte, error) {
				if zone == "north" {
					return proto.Marshal(lie)
				}
				return answering(ctx, zone, server, question)
			}
			_, err := s.Inspect(t.Context(), aboutConnection("web-1", "backend-1", 0))
			require.True(t, rpcerr.HasReason(err, "AMBIGUOUS_ZONE"), "%v", err)
			require.ErrorContains(t, err, `zone "north"`)
			q := question.Request(question.Connection{From: "web-1", To: "backend-1", FromZone: "east", ToZone: "west"}, "m", "")
			r, err := s.Inspect(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, string(correct.GetJson()), string(r.GetJson()))
		})
	}
	_, err = s.Inspect(t.Context(), question.Request(question.Connection{From: "web-1", To: "backend-1", FromZone: "away"}, "m", ""))
	require.ErrorContains(t, err, `"away"`)
}

// One of several zones that have both dataplanes is asked for one of them alone.
func TestConnectionOfNamesThatZonesShare(t *testing.T) {
	both := func(zone resource.ZoneName) *policy.Matcher {
		return matcherOf(t, zone, []*resource.Resource{dataplane(t, zone, "web-1"), dataplane(t, zone, "backend-1")})
	}
	s := zonesWith(map[resource.ZoneName]*policy.Matcher{"east": both("east"), "west": both("west")})
	_, err := s.Inspect(t.Context(), aboutConnection("web-1", "backend-1", 0))
	require.ErrorContains(t, err, "--from-zone")
	_, err = s.Inspect(t.Context(), question.Request(question.Connection{From: "web-1", To: "backend-1", FromZone: "east"}, "m", ""))
	require.ErrorContains(t, err, "--to-zone")
	for _, zones := range [][2]resource.ZoneName{{"east", "west"}, {"west", "east"}, {"east", "east"}} {
		_, err = s.Inspect(t.Context(), question.Request(question.Connection{From: "web-1", To: "backend-1", FromZone: zones[0], ToZone: zones[1]}, "m", ""))
		require.NoError(t, err)
	}
}

// Dataplanes of other zones than the one that is asked are not answered for as if they
// were in that one: of two with the same name, the other one may be denied what this one
// is allowed.
func TestConnectionAsksWhereTheDataplanesAre(t *testing.T) {
	w := policytest.NewWorld()
	w.Put(t, resource.Meta{Key: resource.Key{Kind: "Mesh", Name: "m"}}, `{"mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}}`)
	w.Put(t, resource.Meta{Key: resource.Key{Kind: "TrafficPermission", Mesh: "m", Name: "p"}},
		`{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*", "kuma.io/zone": "east"}}]}`)
	policies := slices.Collect(maps.Values(w.Resources))
	zones := map[resource.ZoneName]*policy.Matcher{}
	for _, zone := range []resource.ZoneName{"east", "west"} {
		zones[zone] = matcherOf(t, zone, append(slices.Clone(policies), dataplane(t, zone, "web-1")))
	}
	s := zonesWith(zones)
	allowed := func(zone string, q question.Connection) (bool, error) {
		r, err := s.Inspect(t.Context(), question.Request(q, "m", zone))
		if err != nil {
			return false, err
		}
		var a answer.ConnectionAnswer
		require.NoError(t, answer.Unmarshal(r.GetJson(), &a))
		return a.Allowed, nil
	}
	for name, c := range map[string]struct {
		zone    string
		q       question.Connection
		allowed bool
		refused string
	}{
		"within the zone":       {"east", question.Connection{From: "web-1", To: "web-1", FromZone: "east", ToZone: "east"}, true, ""},
		"both named":            {"", question.Connection{From: "web-1", To: "web-1", FromZone: "east", ToZone: "west"}, false, ""},
		"called elsewhere":      {"east", question.Connection{From: "web-1", To: "web-1", ToZone: "west"}, false, "--to-zone"},
		"caller elsewhere":      {"west", question.Connection{From: "web-1", To: "web-1", FromZone: "east"}, false, "--from-zone"},
		"tags, called there":    {"", question.Connection{FromTags: map[string]string{"kuma.io/service": "x"}, To: "web-1", ToZone: "west"}, false, ""},
		"tags, called here":     {"", question.Connection{FromTags: map[string]string{"kuma.io/service": "x"}, To: "web-1", ToZone: "east"}, true, ""},
		"tags, called in other": {"east", question.Connection{FromTags: map[string]string{"kuma.io/service": "x"}, To: "web-1", ToZone: "west"}, false, "--to-zone"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := allowed(c.zone, c.q)
			if c.refused == "" {
				require.NoError(t, err)
				require.Equal(t, c.allowed, got)
				return
			}
			require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
			require.ErrorContains(t, err, c.refused)
			require.ErrorContains(t, err, "ask the global")
			_, err = question.Answer(c.q, question.Fixed{Matcher: zones[resource.ZoneName(c.zone)]}, question.At{Mesh: "m", Zone: resource.ZoneName(c.zone)})
			require.ErrorIs(t, err, answer.ErrInvalid, "a zone that is asked itself")
		})
	}
}

// A dataplane that is not in the zone that is named is said to be in others.
func TestConnectionWithADataplaneInAnotherZone(t *testing.T) {
	s := zonesWith(map[resource.ZoneName]*policy.Matcher{
		"east":  matcherOf(t, "east", []*resource.Resource{dataplane(t, "east", "web-1")}),
		"north": matcherOf(t, "north", []*resource.Resource{dataplane(t, "north", "shared")}),
		"west":  matcherOf(t, "west", []*resource.Resource{dataplane(t, "west", "backend-1"), dataplane(t, "west", "shared")}),
	})
	for want, q := range map[string]question.Connection{
		`dataplane "backend-1" in mesh "m": not found in zone "east"; zone "west" has one`:                {From: "web-1", To: "backend-1", FromZone: "east", ToZone: "east"},
		`dataplane "web-1" in mesh "m": not found in zone "west"; zone "east" has one`:                    {From: "web-1", To: "backend-1", FromZone: "west"},
		`dataplane "shared" in mesh "m": not found in zone "east"; zone "north" and zone "west" have one`: {From: "web-1", To: "shared", ToZone: "east"},
		`dataplane "none" in mesh "m": not found in zone "east"`:                                          {From: "web-1", To: "none", ToZone: "east"},
	} {
		_, err := s.Inspect(t.Context(), question.Request(q, "m", ""))
		require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
		require.EqualError(t, err, want)
	}
}

// Of the only zone that there is, what it suggests is right; while another may be
// away, it is not given.
func TestSuggestionOfTheOnlyZone(t *testing.T) {
	s := zonesWith(map[resource.ZoneName]*policy.Matcher{
		"east": matcherOf(t, "east", []*resource.Resource{dataplane(t, "east", "web-1"), dataplane(t, "east", "backend-1")}),
	})
	questions := map[string]*meridianv1.InspectRequest{
		`dataplane "backend-2" in mesh "m": not found; did you mean "backend-1"?`: aboutConnection("web-1", "backend-2", 0),
		`dataplane "web-2" in mesh "m": not found; did you mean "web-1"?`:         question.Request(question.Dataplane{Name: "web-2"}, "m", ""),
	}
	for want, q := range questions {
		_, err := s.Inspect(t.Context(), q)
		require.ErrorContains(t, err, want)
	}
	for _, away := range []fleetStatus{
		{zones: []zonesync.ZoneStatus{{Name: "east", State: zonesync.ZoneInSync}, {Name: "west", State: zonesync.ZoneOffline}}},
		{zones: []zonesync.ZoneStatus{{Name: "east", State: zonesync.ZoneInSync}}, silent: []silentServer{{name: "b", err: errors.New("refused")}}},
	} {
		away.servers = map[resource.ZoneName]string{"east": "a"}
		s.zones = func(context.Context) fleetStatus { return away }
		for _, q := range questions {
			_, err := s.Inspect(t.Context(), q)
			require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
			require.NotContains(t, err.Error(), "did you mean")
			require.ErrorContains(t, err, "not asked, or behind: ")
		}
	}
}

// Two rounds to zones that do not answer cost one bounded wait.
func TestConnectionCostsOneWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zonesWith(map[resource.ZoneName]*policy.Matcher{
			"east":  matcherOf(t, "east", []*resource.Resource{dataplane(t, "east", "web-1")}),
			"west":  matcherOf(t, "west", []*resource.Resource{dataplane(t, "west", "backend-1")}),
			"north": nil,
		})
		answering := s.asking
		var mu sync.Mutex
		asked := map[resource.ZoneName]int{}
		s.asking = func(ctx context.Context, zone resource.ZoneName, server string, question []byte) ([]byte, error) {
			mu.Lock()
			asked[zone]++
			times := asked[zone]
			mu.Unlock()
			if zone == "north" || times > 1 { // and west freezes after the first round
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return answering(ctx, zone, server, question)
		}
		began := time.Now()
		_, err := s.Inspect(t.Context(), aboutConnection("web-1", "backend-1", 0))
		require.Equal(t, rpcerr.Timeout, rpcerr.CodeOf(err))
		require.LessOrEqual(t, time.Since(began), askTimeout)
	})
}

// A zone of an earlier release, which answers only for both ends, is named.
func TestConnectionWithAnEarlierZone(t *testing.T) {
	s := zonesWith(map[resource.ZoneName]*policy.Matcher{
		"east": matcherOf(t, "east", []*resource.Resource{dataplane(t, "east", "web-1")}), "west": nil,
	})
	answering := s.asking
	s.asking = func(ctx context.Context, zone resource.ZoneName, server string, question []byte) ([]byte, error) {
		if zone == "west" {
			_, _, err := notFound(zone)
			return nil, rpcerr.ToStatus(err).Err()
		}
		return answering(ctx, zone, server, question)
	}
	_, err := s.Inspect(t.Context(), aboutConnection("web-1", "backend-1", 0))
	require.ErrorContains(t, err, `zone "west": its version answers only for both ends of a connection`)
}

// What a zone says of its dataplane is bounded in number, before another zone works on
// it.
func TestConnectionEndsAreBounded(t *testing.T) {
	s := zonesWith(map[resource.ZoneName]*policy.Matcher{
		"east": matcherOf(t, "east", []*resource.Resource{dataplane(t, "east", "web-1")}), "west": nil,
	})
	ends := &meridianv1.ConnectionEnds{Called: true}
	for range maxEndItems + 1 {
		ends.Inbounds = append(ends.Inbounds, &meridianv1.ConnectionInbound{})
	}
	answering := s.asking
	s.asking = func(ctx context.Context, zone resource.ZoneName, server string, question []byte) ([]byte, error) {
		if zone == "west" {
			return proto.Marshal(&meridianv1.InspectResponse{Ends: ends})
		}
		return answering(ctx, zone, server, question)
	}
	_, err := s.Inspect(t.Context(), aboutConnection("web-1", "backend-1", 0))
	require.ErrorContains(t, err, `zone "west": it has too many inbounds for a question about another zone`)
}
