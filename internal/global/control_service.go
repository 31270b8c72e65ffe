package global

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/clientconfig"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	zonesync "meridian/internal/sync"
	"meridian/internal/version"
)

// controlService is about this global: what it is, its zones, its credentials.
type controlService struct {
	meridianv1.UnimplementedControlServiceServer
	global *global
}

// Info says which server this is.
func (s *controlService) Info(context.Context, *meridianv1.InfoRequest) (*meridianv1.InfoResponse, error) {
	return &meridianv1.InfoResponse{
		Role:      "global",
		Version:   version.String(),
		ClusterId: s.global.ClusterID(),
		Name:      s.global.cfg.Name,
		Revision:  uint64(s.global.Store.Revision()),
	}, nil
}

// Zones lists what the servers of this global know of every zone.
func (s *controlService) Zones(ctx context.Context, _ *meridianv1.ZonesRequest) (*meridianv1.ZonesResponse, error) {
	return readableZones(ctx, s.global.Authorizer, s.global.Store.Revision(), s.global.zonesEverywhere), nil
}

// readableZones is what is known of zones, without what the caller may not read.
// No server is asked for a caller who may read none. Why a zone failed and which
// servers are silent may name anything: the first is for callers who read
// everything, the second for those who read every zone.
func readableZones(ctx context.Context, may admin.Readers, revision resource.Revision, survey func(context.Context) fleetStatus) *meridianv1.ZonesResponse {
	response := &meridianv1.ZonesResponse{Revision: uint64(revision)}
	if may.CouldRead(ctx, resource.KindZone, "") != nil {
		return response
	}
	known := survey(ctx)
	response.Notes = known.notes()
	if len(response.Notes) > 0 && may.ReadKey(ctx, resource.Key{Kind: resource.KindZone}) != nil {
		response.Notes = []string{"some servers could not be asked for their zones"}
	} else {
		for _, u := range known.silent {
			response.Incomplete = append(response.Incomplete, &meridianv1.SilentServer{Server: u.name, Reason: cluster.DescribeError(u.err)})
		}
	}
	everything := may.ReadsMesh(ctx, "")
	for _, z := range known.zones {
		if may.ReadKey(ctx, resource.Key{Kind: resource.KindZone, Name: string(z.Name)}) != nil {
			continue
		}
		if !everything {
			z.LastError = ""
		}
		z.Quarantined = slices.DeleteFunc(slices.Clone(z.Quarantined), func(q zonesync.Quarantined) bool { return may.ReadKey(ctx, q.Key) != nil })
		response.Zones = append(response.Zones, encodeZone(z))
	}
	return response
}

func encodeZone(z zonesync.ZoneStatus) *meridianv1.ZoneStatus {
	out := &meridianv1.ZoneStatus{
		Name: string(z.Name), State: shownState(z), Revision: uint64(z.Revision), Lag: z.Lag,
		Instances: z.Instances, Servers: z.Servers, LastError: z.LastError, Versions: z.Versions,
		Quarantined: encodeQuarantined(z.Quarantined), ServersOfZone: uint32(z.ServersOfZone), //nolint:gosec // a count
	}
	if !z.LastSeen.IsZero() {
		out.LastSeen = timestamppb.New(z.LastSeen)
	}
	if z.ToDrain {
		out.Drain = &meridianv1.ZoneDrain{
			Begun: z.Draining.Begun, Dataplanes: z.Draining.Dataplanes, DataplanesApplied: z.Draining.Applied,
			Unsupported: len(z.Instances) > 0 && !z.CanDrain, // not known of a zone that is away
		}
	}
	return out
}

// GenerateZoneToken issues a token for a zone, creating an enabled Zone if there
// is none (§6.8, §7.7).
func (s *controlService) GenerateZoneToken(ctx context.Context, req *meridianv1.GenerateZoneTokenRequest) (*meridianv1.GenerateZoneTokenResponse, error) {
	g := s.global
	zone, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindZone, Name: req.GetZone()}}, []byte("{}"))
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "BAD_ZONE_NAME", "%q cannot be the name of a zone: %w", req.GetZone(), err)
	}
	token, err := g.Tokens.Zone(ctx, zone, req.GetScope(), req.GetValidForSeconds())
	if err != nil {
		return nil, err
	}
	response := &meridianv1.GenerateZoneTokenResponse{Token: token}
	if req.GetBundle() {
		response.Bundle, err = clientconfig.ZoneBundle{
			Zone: req.GetZone(), Addresses: g.ServerAddresses(), CA: string(g.PKI.CAPEM()), Token: token,
		}.Encode()
	}
	return response, err
}
