package global

import (
	"context"
	"slices"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/rpcerr"
	"meridian/internal/service/auditlog"
)

// registerAudit registers the service that lists the records of all servers and zones.
func (g *global) registerAudit() {
	own := auditlog.Local(g.Audit.List)
	g.peerService.audit.Store(&own)
	meridianv1.RegisterAuditServiceServer(g.GRPC, &auditlog.Service{Authorize: g.Authorizer.RequireAdmin, Sources: g.auditSources})
}

// auditSources returns this server, the others, and the zones that are connected to any
// of them, and names the other zones.
func (g *global) auditSources(ctx context.Context) ([]auditlog.Source, []auditlog.Absence) {
	sources := []auditlog.Source{{Server: g.cfg.Name, Ask: auditlog.Local(g.Audit.List)}}
	for _, p := range g.otherServers() {
		client := peerv1.NewZoneServiceClient(p.conn)
		sources = append(sources, auditlog.Source{Server: p.name, Ask: func(ctx context.Context, q *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
			page, err := client.ListAudit(ctx, q)
			if err != nil {
				return nil, rpcerr.FromStatus(err)
			}
			return page, nil
		}})
	}
	known := g.zonesEverywhere(ctx)
	for _, zone := range known.connected() {
		server := known.servers[zone]
		sources = append(sources, auditlog.Source{Zone: string(zone), Ask: auditlog.AskZone(func(ctx context.Context, question []byte) ([]byte, error) {
			reply, err := g.fleet.AskAudit(ctx, zone, server, question)
			if err != nil {
				return nil, rpcerr.FromStatus(err)
			}
			return reply, nil
		})})
	}
	var absent []auditlog.Absence
	for _, z := range known.zones {
		if !slices.Contains(known.connected(), z.Name) {
			absent = append(absent, auditlog.Absence{Zone: string(z.Name), Reason: string(z.State)})
		}
	}
	return sources, absent
}
