package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// maxZoneWait bounds one call of WaitForZones.
const maxZoneWait = time.Hour

// ZoneWait is what a caller waits for.
type ZoneWait struct {
	Revision resource.Revision
	// ConnectedOnly leaves out the enabled zones that are not connected.
	ConnectedOnly bool
	// Enforced waits for the proxies of these zones, too.
	Enforced bool
}

// PendingZone is a zone that has yet to apply a revision.
type PendingZone struct {
	Name resource.ZoneName
	// State is as in the list of zones.
	State     string
	Revision  resource.Revision
	LastError string
	// ProxiesBehind is how many of its proxies have yet to accept the revision, and
	// Proxies are some of them.
	ProxiesBehind int
	Proxies       []PendingProxy
}

// PendingProxy is a proxy that has yet to accept a revision.
type PendingProxy struct {
	Mesh resource.MeshName
	Name string
	// State is "pending" or "rejected".
	State string
}

// ErrProxiesRejected means that only proxies are left that have rejected what a wait was
// for.
var ErrProxiesRejected = errors.New("proxies have rejected it")

// ReasonProxiesRejected is the reason of the refusal for ErrProxiesRejected.
const ReasonProxiesRejected = "PROXIES_REJECTED"

// String says how far the zone is.
func (z PendingZone) String() string {
	if z.ProxiesBehind > 0 {
		return fmt.Sprintf("%d proxies in %s", z.ProxiesBehind, z.Name)
	}
	return fmt.Sprintf("%s (%s)", z.Name, z.State)
}

// WaitForZones returns once zones have applied a revision, and says meanwhile
// which have not. A caller who may read no zone is refused; one who may not read
// all of them is told nothing that names the others.
func (s *Service) WaitForZones(req *meridianv1.WaitForZonesRequest, stream grpc.ServerStreamingServer[meridianv1.WaitForZonesResponse]) error {
	own := s.cfg.WaitForZones == nil
	if own && (s.cfg.WaitForProxies == nil || !req.GetEnforced()) {
		return rpcerr.New(rpcerr.Invalid, "NO_ZONES_HERE", "a zone has no zones to wait for: ask the global, or wait until the zone's own proxies have accepted it")
	}
	if err := s.cfg.Access.CouldRead(stream.Context(), resource.KindZone, ""); err != nil {
		return err
	}
	revision := resource.Revision(req.GetRevision())
	if newest := s.cfg.View().Revision(); !own && revision > newest {
		if err := s.catchUp(stream.Context(), revision); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(stream.Context(), maxZoneWait)
	defer cancel()
	var (
		pending []PendingZone
		sent    error
	)
	progress := func(now []PendingZone) error {
		pending = s.zonesFor(ctx, now)
		sent = stream.Send(&meridianv1.WaitForZonesResponse{Pending: encodePending(pending)})
		return sent
	}
	var warnings []string
	var err error
	if own {
		err = s.cfg.WaitForProxies(ctx, revision, progress)
	} else {
		warnings, err = s.cfg.WaitForZones(ctx, ZoneWait{Revision: revision, ConnectedOnly: req.GetConnectedOnly(), Enforced: req.GetEnforced()}, progress)
	}
	all := s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone}) == nil
	switch {
	case err == nil:
		if !all && len(warnings) > 0 {
			warnings = []string{fmt.Sprintf("not every zone is known to have applied revision %d; details are for callers who may read every zone", revision)}
		}
		return stream.Send(&meridianv1.WaitForZonesResponse{Warnings: warnings})
	case sent != nil:
		return sent
	case errors.Is(context.Cause(stream.Context()), context.Canceled):
		return rpcerr.New(rpcerr.Canceled, "", "the caller has gone")
	case errors.As(err, new(*rpcerr.Error)):
		return err
	}
	names := make([]string, len(pending))
	for i, z := range pending {
		names[i] = z.String()
	}
	if errors.Is(err, ErrProxiesRejected) {
		return rpcerr.New(rpcerr.Conflict, ReasonProxiesRejected, "proxies have rejected revision %d: %s", revision, strings.Join(names, ", "))
	}
	if !all {
		return rpcerr.New(rpcerr.Timeout, "ZONES_PENDING", "revision %d is not applied in every zone in time: %s", revision, strings.Join(names, ", "))
	}
	return rpcerr.New(rpcerr.Timeout, "ZONES_PENDING", "revision %d is not applied in every zone in time: %s (%w)", revision, strings.Join(names, ", "), err)
}

// catchUp brings this server to a revision that another one has written. The error
// is of code OutOfRange where no server has.
func (s *Service) catchUp(ctx context.Context, revision resource.Revision) error {
	view, err := s.read(ctx, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE)
	if err != nil {
		return err
	}
	if newest := view.Revision(); revision > newest {
		return rpcerr.New(rpcerr.OutOfRange, "REVISION_UNKNOWN", "wait for revision %d: it is not written yet; the newest is %d", revision, newest)
	}
	return nil
}

func encodePending(zones []PendingZone) []*meridianv1.PendingZone {
	out := make([]*meridianv1.PendingZone, len(zones))
	for i, z := range zones {
		out[i] = &meridianv1.PendingZone{
			Name: string(z.Name), State: z.State, Revision: uint64(z.Revision), LastError: z.LastError, ProxiesBehind: uint32(z.ProxiesBehind),
		}
		for _, p := range z.Proxies {
			out[i].Proxies = append(out[i].Proxies, &meridianv1.PendingProxy{Mesh: string(p.Mesh), Dataplane: p.Name, State: p.State})
		}
	}
	return out
}
