package global

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	zonesync "meridian/internal/sync"
)

// zonesThat returns a service over zones that answer with what reply gives.
func zonesThat(reply func(zone resource.ZoneName) (string, uint64, error), zones ...resource.ZoneName) *inspectService {
	return &inspectService{
		zones: func(context.Context) fleetStatus { return connectedTo("a", zones...) },
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
	require.Equal(t, []string{`zone "west" is not in this answer: west is busy`}, r.GetNotes(), "and is named")
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
	require.EqualError(t, err, "not found in any connected zone; connected are east, west; `meridian dataplanes` lists what there is")
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
		`zone "slow" is not in this answer: no answer`,
		`zone "south" is not in this answer: what it sent cannot be read`,
		`zone "north" is not in this answer: it is offline`,
		`zone "west" is lagging: its part of the answer holds at revision 7`,
	} {
		require.Contains(t, notes, want)
	}
	require.Len(t, r.GetNotes(), 4, "a disabled zone is not missed")
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
		{"name": "dp-east", "zone": "east", "attachments": []}, {"name": "dp-west", "zone": "west", "attachments": []}], "conditions": []}`,
		string(r.GetJson()))
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
	require.Contains(t, r.GetNotes()[0], `zone "west" is not in this answer, which would be too large: it sent 16777229 bytes; ask it alone, with --zone`)
}
