package global

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
)

// maxWaitRound bounds how long another server may have this one wait for its
// zones.
const maxWaitRound = 30 * time.Second

// peerService tells the other servers of this global about the zones that are
// connected to this one. It answers for those only: a question is passed on
// once.
type peerService struct {
	peerv1.UnimplementedZoneServiceServer
	// zones is nil until the server has been assembled: peers may call earlier.
	zones atomic.Pointer[zonesync.Server]
	// authorities says which are trusted; nil as zones is.
	authorities atomic.Pointer[authoritiesOf]
	// audit answers for the audit log of this server; nil as zones is.
	audit atomic.Pointer[func(context.Context, *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error)]
	name  string
}

type authoritiesOf struct {
	get func() *peerv1.AuthoritiesResponse
}

// Authorities says by which authorities this server verifies others.
func (s *peerService) Authorities(context.Context, *peerv1.AuthoritiesRequest) (*peerv1.AuthoritiesResponse, error) {
	if known := s.authorities.Load(); known != nil {
		return known.get(), nil
	}
	return &peerv1.AuthoritiesResponse{}, nil
}

// Zones lists what this server knows of zones.
func (s *peerService) Zones(_ context.Context, req *peerv1.ZonesRequest) (*peerv1.ZonesResponse, error) {
	response := &peerv1.ZonesResponse{Report: &peerv1.ZoneReport{Server: s.name}}
	if zones := s.zones.Load(); zones != nil {
		response.Report = encodeReport(zones.Report(), req.GetPage(), req.GetBrief())
	}
	return response, nil
}

// Ask puts a question to a zone that is connected to this server.
func (s *peerService) Ask(ctx context.Context, req *peerv1.AskRequest) (*peerv1.AskResponse, error) {
	zones := s.zones.Load()
	if zones == nil {
		return &peerv1.AskResponse{Offline: true}, nil
	}
	ask, question := zones.Ask, req.GetQuestion()
	if len(req.GetAudit()) > 0 {
		ask, question = zones.AskAudit, req.GetAudit()
	}
	answer, err := ask(ctx, resource.ZoneName(req.GetZone()), question)
	switch {
	case err == nil:
		return &peerv1.AskResponse{Answer: answer}, nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(context.Cause(ctx)).Err()
	case errors.Is(err, zonesync.ErrZoneOffline):
		return &peerv1.AskResponse{Offline: true}, nil
	case errors.Is(err, zonesync.ErrZoneBusy):
		return &peerv1.AskResponse{Busy: true}, nil
	case errors.Is(err, zonesync.ErrZoneSilent):
		return &peerv1.AskResponse{Silent: true}, nil
	}
	refusal := status.Convert(err)
	return &peerv1.AskResponse{Code: uint32(refusal.Code()), Error: refusal.Message()}, nil
}

// ListAudit lists records of this server's audit log. The server that asks has decided
// that its caller may read them.
func (s *peerService) ListAudit(ctx context.Context, req *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
	list := s.audit.Load()
	if list == nil {
		return nil, rpcerr.ToStatus(rpcerr.New(rpcerr.Unavailable, server.ReasonStarting, "the server is starting")).Err()
	}
	page, err := (*list)(ctx, req)
	if err != nil {
		return nil, rpcerr.ToStatus(err).Err()
	}
	return page, nil
}

// WaitApplied returns when every zone connected to this server has applied a
// revision, or says how far they are when the patience is at its end.
func (s *peerService) WaitApplied(ctx context.Context, req *peerv1.WaitAppliedRequest) (*peerv1.WaitAppliedResponse, error) {
	zones := s.zones.Load()
	if zones == nil {
		return &peerv1.WaitAppliedResponse{Report: &peerv1.ZoneReport{Server: s.name}}, nil // nor has it any zone
	}
	patience := time.Duration(min(req.GetPatienceMs(), uint64(maxWaitRound.Milliseconds()))) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return &peerv1.WaitAppliedResponse{Report: encodeReport(zones.Await(ctx, resource.Revision(req.GetRevision())), req.GetPage(), true)}, nil
}

// reportPage is how many bytes the instances in one answer to another server have
// at most, unless there is only one.
const reportPage = 1 << 20

// encodeReport encodes a page of a report. A brief one is without what zones could
// not accept.
func encodeReport(r zonesync.Report, page *peerv1.Page, brief bool) *peerv1.ZoneReport {
	out := &peerv1.ZoneReport{Server: r.Server, Epoch: encodeEpoch(r.Epoch), Newest: uint64(r.Newest), Reached: r.Reached, Changed: uint64(r.Changed), Digest: r.Digest.Bytes(), ZonesAt: r.Address}
	if page.GetAfterZone() == "" {
		for _, zone := range r.Late {
			out.Late = append(out.Late, string(zone))
		}
	}
	limit := reportPage
	if page.GetBytes() > 0 {
		limit = int(min(page.GetBytes(), reportPage))
	}
	for _, in := range r.Instances {
		if cmp.Or(cmp.Compare(string(in.Zone), page.GetAfterZone()), cmp.Compare(in.ID, page.GetAfterId())) <= 0 {
			continue // of an earlier page
		}
		next := encodeInstance(in, brief)
		if limit -= proto.Size(next); limit < 0 && len(out.Instances) > 0 {
			out.More = true
			break
		}
		out.Instances = append(out.Instances, next)
	}
	return out
}

func encodeInstance(in zonesync.Instance, brief bool) *peerv1.ZoneInstance {
	out := &peerv1.ZoneInstance{
		Zone: string(in.Zone), Id: in.ID, Lease: in.Lease, Connected: in.Connected,
		QuietMs: uint64(max(in.Quiet, 0).Milliseconds()), Epoch: encodeEpoch(in.Epoch), Revision: uint64(in.Revision),
		Lag: in.Lag, LastError: in.LastError, Authorities: in.Authorities, Version: in.Version, Applied: in.Applied,
		Drains: in.Drains, Draining: in.Draining.Begun, Dataplanes: in.Draining.Dataplanes, DataplanesApplied: in.Draining.Applied,
		DataplanesOfZone: in.Draining.OfZone, Servers: uint32(in.ServersOfZone), //nolint:gosec // a count
	}
	if !brief {
		out.Quarantined = encodeQuarantined(in.Quarantined)
	}
	return out
}

// allPages asks for a report, page by page, and puts it together. What it says of
// the server is as of the first page.
func allPages(ask func(*peerv1.Page) (*peerv1.ZoneReport, error)) (zonesync.Report, error) {
	page := &peerv1.Page{Bytes: reportPage}
	first, err := ask(page)
	if err != nil {
		return zonesync.Report{}, err
	}
	out := decodeReport(first)
	for last := first; last.GetMore() && len(last.GetInstances()) > 0; {
		end := last.GetInstances()[len(last.GetInstances())-1]
		if cmp.Or(cmp.Compare(end.GetZone(), page.GetAfterZone()), cmp.Compare(end.GetId(), page.GetAfterId())) <= 0 {
			break // it does not advance
		}
		page = &peerv1.Page{Bytes: reportPage, AfterZone: end.GetZone(), AfterId: end.GetId()}
		if last, err = ask(page); err != nil {
			return zonesync.Report{}, err
		}
		out.Instances = append(out.Instances, decodeReport(last).Instances...)
	}
	return out, nil
}

func decodeReport(r *peerv1.ZoneReport) zonesync.Report {
	out := zonesync.Report{Server: r.GetServer(), Epoch: decodeEpoch(r.GetEpoch()), Newest: resource.Revision(r.GetNewest()), Reached: r.GetReached(), Address: r.GetZonesAt()}
	if digest, err := store.DigestFromBytes(r.GetDigest()); err == nil {
		out.Changed, out.Digest = resource.Revision(r.GetChanged()), digest
	}
	for _, zone := range r.GetLate() {
		out.Late = append(out.Late, resource.ZoneName(zone))
	}
	for _, in := range r.GetInstances() {
		instance := zonesync.Instance{
			Zone: resource.ZoneName(in.GetZone()), ID: in.GetId(), Server: r.GetServer(), Lease: in.GetLease(), Connected: in.GetConnected(),
			Quiet: time.Duration(in.GetQuietMs()) * time.Millisecond, Epoch: decodeEpoch(in.GetEpoch()), Revision: resource.Revision(in.GetRevision()),
			Lag: in.GetLag(), LastError: in.GetLastError(), Applied: in.GetApplied(), Authorities: in.GetAuthorities(), Version: in.GetVersion(),
			ServersOfZone: int(in.GetServers()), Drains: in.GetDrains(), Draining: zonesync.Draining{
				Begun: in.GetDraining(), Dataplanes: in.GetDataplanes(), Applied: in.GetDataplanesApplied(), OfZone: in.GetDataplanesOfZone(),
			},
		}
		for _, q := range in.GetQuarantined() {
			instance.Quarantined = append(instance.Quarantined, zonesync.Quarantined{
				Key:     resource.Key{Kind: resource.Kind(q.GetKind()), Mesh: resource.MeshName(q.GetMesh()), Name: q.GetName()},
				Version: q.GetVersion(), Message: q.GetMessage(),
			})
		}
		out.Instances = append(out.Instances, instance)
	}
	return out
}

func encodeEpoch(e store.Epoch) *syncv1.Epoch {
	return &syncv1.Epoch{ClusterId: e.ClusterID, Incarnation: e.Incarnation, Nonce: e.Random}
}

func decodeEpoch(e *syncv1.Epoch) store.Epoch {
	return store.Epoch{ClusterID: e.GetClusterId(), Incarnation: e.GetIncarnation(), Random: e.GetNonce()}
}

func encodeQuarantined(all []zonesync.Quarantined) []*meridianv1.Quarantined {
	var out []*meridianv1.Quarantined
	for _, q := range all {
		out = append(out, &meridianv1.Quarantined{
			Kind: string(q.Key.Kind), Mesh: string(q.Key.Mesh), Name: q.Key.Name, Version: q.Version, Message: q.Message,
		})
	}
	return out
}
