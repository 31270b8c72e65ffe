package global

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
)

// zonesThat returns a service over zones that answer with what reply gives.
func zonesThat(reply func(zone resource.ZoneName) (string, uint64, error), zones ...resource.ZoneName) *inspectService {
	return &inspectService{
		proxies: newProxyRounds(),
		zones:   func(context.Context) fleetStatus { return connectedTo("a", zones...) },
		asking: func(_ context.Context, zone resource.ZoneName, _ string, question []byte) ([]byte, error) {
			var req meridianv1.InspectRequest
			if err := proto.Unmarshal(question, &req); err != nil || req.GetZone() != "" {
				return nil, fmt.Errorf("unexpected question %v: %w", &req, err)
			}
			json, asOf, err := reply(zone)
			if err != nil {
				return nil, rpcerr.ToStatus(err).Err()
			}
			return proto.Marshal(&meridianv1.InspectResponse{Json: []byte(json), AsOf: asOf})
		},
	}
}

// connectedTo is what is known when zones are connected to a server.
func connectedTo(server string, zones ...resource.ZoneName) fleetStatus {
	c := fleetStatus{servers: map[resource.ZoneName]string{}}
	for _, zone := range zones {
		c.servers[zone] = server
		c.zones = append(c.zones, zonesync.ZoneStatus{Name: zone, State: zonesync.ZoneInSync})
	}
	return c
}

func aboutDataplane(zone string) *meridianv1.InspectRequest {
	return &meridianv1.InspectRequest{Zone: zone, Mesh: "default", Question: &meridianv1.InspectRequest_Dataplane{
		Dataplane: &meridianv1.DataplaneQuestion{Name: "web-1"},
	}}
}

func notFound(resource.ZoneName) (string, uint64, error) {
	return "", 0, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "no dataplane web-1")
}

func TestQuestionIsPassedToTheZoneThatCanAnswer(t *testing.T) {
	onlyWest := func(zone resource.ZoneName) (string, uint64, error) {
		if zone != "west" {
			return notFound(zone)
		}
		return "{}\n", 7, nil
	}
	s := zonesThat(onlyWest, "east", "west")
	for _, zone := range []string{"", "west"} {
		r, err := s.Inspect(t.Context(), aboutDataplane(zone))
		require.NoError(t, err)
		require.Equal(t, "{}\n", string(r.GetJson()), "the zone's bytes, untouched")
		require.Equal(t, uint64(7), r.GetAsOf())
	}
	_, err := s.Inspect(t.Context(), aboutDataplane("east"))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	_, err = s.Inspect(t.Context(), aboutDataplane("mars"))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `there is no zone "mars"; connected are east, west`)
	s.zones = func(context.Context) fleetStatus {
		c := connectedTo("a", "east")
		c.zones = append(c.zones, zonesync.ZoneStatus{Name: "north", State: zonesync.ZoneOffline})
		return c
	}
	_, err = s.Inspect(t.Context(), aboutDataplane("north"))
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err), "it exists, and is away")
	require.ErrorContains(t, err, `zone "north" is offline`)
	_, err = s.Inspect(t.Context(), aboutDataplane("norht"))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `there is no zone "norht"; did you mean "north"?`)
}

// A zone that hangs is named before the caller gives up.
func TestZoneThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zonesThat(nil, "east")
		s.asking = func(ctx context.Context, _ resource.ZoneName, _ string, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		for _, zone := range []string{"", "east"} {
			_, err := s.Inspect(ctx, aboutDataplane(zone))
			require.Equal(t, rpcerr.Timeout, rpcerr.CodeOf(err))
			require.ErrorContains(t, err, `zone "east" is connected but did not answer within`)
			require.NoError(t, ctx.Err())
		}

		s.asking = func(context.Context, resource.ZoneName, string, []byte) ([]byte, error) {
			return nil, rpcerr.New(rpcerr.Timeout, "X", "the Envoy of web-1 does not answer: %w", context.DeadlineExceeded)
		}
		_, err := s.Inspect(ctx, aboutDataplane("east"))
		require.Equal(t, rpcerr.Timeout, rpcerr.CodeOf(err))
		require.EqualError(t, err, "the Envoy of web-1 does not answer: context deadline exceeded", "a zone that says what it waited for has answered")
	})
}

func TestAmbiguousAndFailingZones(t *testing.T) {
	everywhere := func(resource.ZoneName) (string, uint64, error) { return "{}\n", 7, nil }
	_, err := zonesThat(everywhere, "east", "west").Inspect(t.Context(), aboutDataplane(""))
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, `zone "east" and zone "west" can answer this: name one with --zone`)

	_, err = zonesThat(notFound, "east", "west").Inspect(t.Context(), aboutDataplane(""))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))

	_, err = zonesThat(notFound).Inspect(t.Context(), aboutDataplane(""))
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, "no zone is connected")

	busy := zonesThat(everywhere, "east")
	busy.asking = func(context.Context, resource.ZoneName, string, []byte) ([]byte, error) {
		return nil, zonesync.ErrZoneBusy
	}
	_, err = busy.Inspect(t.Context(), aboutDataplane("east"))
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))

	oneDown := func(zone resource.ZoneName) (string, uint64, error) {
		if zone == "west" {
			return "", 0, rpcerr.New(rpcerr.Unavailable, "X", "west is busy")
		}
		return "{}\n", 7, nil
	}
	r, err := zonesThat(oneDown, "east", "west").Inspect(t.Context(), aboutDataplane(""))
	require.NoError(t, err, "one zone that fails spoils no answer")
	require.Equal(t, []string{`zone "west": west is busy`}, r.GetNotes(), "and is named")
}

// What one zone suggests in place of a name is not suggested for all zones.
func TestNotFoundInSeveralZones(t *testing.T) {
	suggests := func(resource.ZoneName) (string, uint64, error) {
		return "", 0, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", `no dataplane web-1; did you mean "web-2"?`)
	}
	_, err := zonesThat(suggests, "east").Inspect(t.Context(), aboutDataplane(""))
	require.ErrorContains(t, err, `did you mean "web-2"?`)
	_, err = zonesThat(suggests, "east", "west").Inspect(t.Context(), aboutDataplane(""))
	require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err))
	const nowhere = "not found in any connected zone; connected are east, west; `meridian dataplanes` lists what there is"
	require.EqualError(t, err, `dataplane "web-1" in mesh "default": `+nowhere)
	for about, asked := range map[string]question.Question{
		`dataplane "web-1" in mesh "default": `: question.Why{Dataplane: "web-1", Kind: "Timeout"},
		`Timeout "slow" in mesh "default": `:    question.Policy{Kind: "Timeout", Name: "slow"},
		`dataplane "web-2" in mesh "default": `: question.Proxy{Name: "web-2"},
		`dataplane "web-3" in mesh "default": `: question.Proxies{Name: "web-3"},
	} {
		_, err = zonesThat(suggests, "east", "west").Inspect(t.Context(), question.Request(asked, "default", ""))
		require.EqualError(t, err, about+nowhere)
	}
}

// An answer about several zones shows each dataplane in the zone that was asked,
// and names every zone that it lacks, that is behind, or that cannot be understood.
func TestAnswerAboutAllZonesNamesWhatItLacks(t *testing.T) {
	s := zonesThat(func(zone resource.ZoneName) (string, uint64, error) {
		switch zone {
		case "west":
			return `{"items": [{"mesh": "default", "name": "stolen", "zone": "east", "inbounds": []}]}`, 7, nil
		case "south":
			return `{"items": "none"}`, 7, nil
		case "slow":
			return "", 0, rpcerr.New(rpcerr.Timeout, "ZONE_TIMEOUT", "no answer")
		}
		return `{"items": [{"mesh": "default", "name": "web-1", "zone": "east", "inbounds": []}]}`, 9, nil
	}, "east", "west", "south", "slow")
	known := connectedTo("a", "east", "west", "south", "slow")
	known.zones[1].State, known.zones[1].Revision = zonesync.ZoneLagging, 7
	known.zones[3].State = zonesync.ZoneStale // slow, which is named once
	known.zones = append(known.zones, zonesync.ZoneStatus{Name: "north", State: zonesync.ZoneOffline}, zonesync.ZoneStatus{Name: "old", State: stateDisabled})
	s.zones = func(context.Context) fleetStatus { return known }
	r, err := s.Inspect(t.Context(), &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Dataplanes{Dataplanes: &meridianv1.DataplanesQuestion{}}})
	require.NoError(t, err)
	var all answer.DataplanesAnswer
	require.NoError(t, answer.Unmarshal(r.GetJson(), &all))
	zones := map[string]resource.ZoneName{}
	for _, d := range all.Items {
		zones[d.Name] = d.Zone
	}
	require.Equal(t, map[string]resource.ZoneName{"web-1": "east", "stolen": "west"}, zones)
	notes := strings.Join(r.GetNotes(), "\n")
	for _, want := range []string{
		`zone "slow": connected, without an answer in time`,
		`zone "south": what it sent cannot be read`,
		`zone "north": offline`,
		`zone "west": lagging, at revision 7`,
	} {
		require.Contains(t, notes, want)
	}
	require.Len(t, r.GetNotes(), 4, "a disabled zone is not missed")
	require.Equal(t, r.GetNotes(), sentences(all.Incomplete), "and the document lists the same")
}

func TestAnswersOfSeveralZonesArePutTogether(t *testing.T) {
	reply := func(zone resource.ZoneName) (string, uint64, error) {
		asOf := map[resource.ZoneName]uint64{"east": 9, "west": 7}[zone]
		return fmt.Sprintf(`{"kind": "Timeout", "mesh": "default", "name": "t", "asOf": %d,
			"dataplanes": [{"name": "dp-%s", "zone": %q, "attachments": []}], "conditions": []}`, asOf, zone, zone), asOf, nil
	}
	r, err := zonesThat(reply, "east", "west").Inspect(t.Context(), &meridianv1.InspectRequest{
		Mesh:     "default",
		Question: &meridianv1.InspectRequest_Policy{Policy: &meridianv1.PolicyQuestion{Kind: "Timeout", Name: "t"}},
	})
	require.NoError(t, err)
	require.Equal(t, uint64(7), r.GetAsOf(), "it holds for the oldest revision among them")
	require.JSONEq(t, `{"kind": "Timeout", "mesh": "default", "name": "t", "asOf": 7, "dataplanes": [
		{"name": "dp-east", "zone": "east", "attachments": []}, {"name": "dp-west", "zone": "west", "attachments": []}], "conditions": [],
		"warnings": [], "meshDataplanes": 0}`,
		string(r.GetJson()))
}

// §4.1: what an author was warned of is told for as long as it holds: what the global
// sees itself, and of the dataplanes what every zone with some of the mesh sees.
func TestWarningsOfTheFleet(t *testing.T) {
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(7, store.Txn{Ops: []store.Op{
		store.Put(resourcetest.Build(t, "Mesh", "", "default", `{"mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}}`)),
		store.Put(resourcetest.Build(t, "TrafficLog", "default", "log", `{"sources": [{"match": {"kuma.io/service": "*"}}],
			"destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"backend": "splunk"}}`)),
	}}).Err)
	of := func(message string, dataplanes int) string {
		return fmt.Sprintf(`{"kind": "TrafficLog", "mesh": "default", "name": "log", "asOf": 7, "dataplanes": [], "conditions": [], "meshDataplanes": %d,
			"warnings": [{"path": "conf.backend", "message": "no logging backend"}%s]}`, dataplanes, message)
	}
	unknown := func(hint string) string {
		return `, {"path": "targetRef", "message": "no inbound has kuma.io/service=bakend` + hint + `", "ofDataplanes": true}`
	}
	about := func(kind, mesh, name string, zones map[resource.ZoneName]string) []answer.Warning {
		t.Helper()
		service := service(t, s)
		service.asking = func(_ context.Context, zone resource.ZoneName, _ string, _ []byte) ([]byte, error) {
			return proto.Marshal(&meridianv1.InspectResponse{Json: []byte(zones[zone]), AsOf: 7})
		}
		known := connectedTo("a", slices.Collect(maps.Keys(zones))...)
		service.zones = func(context.Context) fleetStatus { return known }
		r, err := service.Inspect(t.Context(), question.Request(question.Policy{Kind: resource.Kind(kind), Name: name, Brief: true}, mesh, ""))
		require.NoError(t, err)
		var a answer.PolicyAnswer
		require.NoError(t, answer.Unmarshal(r.GetJson(), &a))
		return a.Warnings
	}
	messages := func(warnings []answer.Warning) (said []string) {
		for _, w := range warnings {
			said = append(said, w.String())
		}
		return said
	}
	log := func(zones map[resource.ZoneName]string) []string {
		return messages(about("TrafficLog", "default", "log", zones))
	}
	own := `conf.backend: mesh default has no logging backend "splunk"; the policy configures nothing until it has`
	require.Equal(t, []string{own}, log(nil), "also while no zone is connected")
	both := log(map[resource.ZoneName]string{"east": of(unknown(""), 3), "west": of(unknown("; did you mean backend?"), 2)})
	require.Contains(t, both, "targetRef: no inbound has kuma.io/service=bakend; did you mean backend?", "the nearest name of the fleet")
	require.NotContains(t, both, "conf.backend: no logging backend", "what the global knows itself no zone says for it")
	require.Equal(t, []string{own}, log(map[resource.ZoneName]string{"east": of(unknown(strings.Repeat("x", 4<<10)), 3)}), "longer than any warning")
	require.NotContains(t, log(map[resource.ZoneName]string{"east": of(unknown(""), 3), "west": of("", 2)}), "targetRef: no inbound has kuma.io/service=bakend",
		"it selects something in west")
	require.Contains(t, log(map[resource.ZoneName]string{"east": of(unknown(""), 3), "west": of("", 0)}), "targetRef: no inbound has kuma.io/service=bakend",
		"west has nothing to select")
	require.Equal(t, []string{"mtls.enabledBackend: denies every connection: with mutual TLS a caller needs a TrafficPermission or MeshTrafficPermission, and mesh default has none"},
		messages(about("Mesh", "", "default", nil)), "a resource that is no policy")
}

// A zone that sends more than an answer may have is left out, and the others are
// shown.
func TestALargeAnswerOfOneZoneSpoilsNoOther(t *testing.T) {
	small := `{"items": [{"mesh": "default", "name": "web-1", "zone": "east", "inbounds": []}]}`
	s := zonesThat(func(zone resource.ZoneName) (string, uint64, error) {
		if zone == "west" {
			return `{"items": []}` + strings.Repeat(" ", maxMerged), 7, nil
		}
		return small, 9, nil
	}, "east", "west")
	question := &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Dataplanes{Dataplanes: &meridianv1.DataplanesQuestion{}}}
	r, err := s.Inspect(t.Context(), question)
	require.NoError(t, err)
	require.Contains(t, string(r.GetJson()), "web-1")
	require.Equal(t, uint64(9), r.GetAsOf())
	require.Len(t, r.GetNotes(), 1)
	require.Contains(t, r.GetNotes()[0], `zone "west": the answer would be too large, it sent 16777229 bytes: ask it alone, with --zone`)
}

// TestAnAnswerOfAnOlderState: a zone that is in sync by what it has acknowledged is named
// beside its answer where that is of an older state, unless an earlier state was asked for.
func TestAnAnswerOfAnOlderState(t *testing.T) {
	for _, c := range []struct {
		name  string
		at    *meridianv1.PointInTime
		asOf  uint64
		named bool
	}{
		{name: "older", asOf: 3, named: true},
		{name: "the newest", asOf: 4},
		{name: "a zone that does not say"},
		{name: "an earlier state", at: &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: 3}}, asOf: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			known := fleetStatus{
				zones: []zonesync.ZoneStatus{{Name: "east", State: zonesync.ZoneInSync}}, servers: map[resource.ZoneName]string{"east": "a"},
				newest: 4, answered: &zoneRevisions{of: map[resource.ZoneName]resource.Revision{}},
			}
			s := &inspectService{asking: func(context.Context, resource.ZoneName, string, []byte) ([]byte, error) {
				return proto.Marshal(&meridianv1.InspectResponse{AsOf: c.asOf, AtRevision: c.at.GetRevision()})
			}}
			req := aboutDataplane("")
			req.At = c.at
			all := s.askEach(t.Context(), known, req)
			require.Len(t, all.found, 1)
			var want []answer.Absence
			if c.named {
				want = []answer.Absence{{Zone: "east", Reason: "lagging, at revision 3"}}
			}
			require.Equal(t, want, known.absentWith(all.absent))
		})
	}
}
