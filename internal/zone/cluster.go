package zone

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/consensus"
	"meridian/internal/controlplane"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/service/auditlog"
	"meridian/internal/service/dataplane"
	"meridian/internal/service/identities"
	"meridian/internal/store"
	"meridian/internal/xds"
)

// openCluster makes the server one of several of the zone.
func (z *zone) openCluster(servers cluster.Config) {
	z.others = newOtherServers(z)
	z.Secrets = append(z.Secrets, filepath.Join(z.cfg.DataDir, wayFile))
	z.cluster = cluster.New(z.Base, servers, cluster.Hooks{
		Bootstrap:    z.bootstrap,
		PeerServices: func(r grpc.ServiceRegistrar) { peerv1.RegisterProxyServiceServer(r, z.others) },
		Suspend:      func(string) { z.dataplanes.Suspend(true) },
		Resume:       func() { z.dataplanes.Suspend(false) },
		Unreachable:  z.others.unreachable,
		Differing:    func() int { return 0 },
		Authorities: func(ctx context.Context, p cluster.Peer) (*peerv1.AuthoritiesResponse, error) {
			answer, err := peerv1.NewProxyServiceClient(p.Conn).ServerAuthorities(ctx, &peerv1.ServerAuthoritiesRequest{})
			return &peerv1.AuthoritiesResponse{Trusted: answer.GetTrusted(), Signer: answer.GetSigner()}, err
		},
		Unconfirmed: func(context.Context, string) []*meridianv1.RotateCAMissing { return nil },
		KeepOnRestore: func(running *store.View, saved []*resource.Resource) []*resource.Resource {
			return dataplane.KeepRegistrations(running, saved, z.cfg.federated())
		},
		WayToGlobal:     z.wayToGlobal,
		KeepWayToGlobal: z.keepWay,
	})
}

// openLog opens the log of what the zone owns, and the certificates.
func (z *zone) openLog(ctx context.Context, s *store.Store) error {
	if z.cluster != nil {
		return z.cluster.OpenLog(ctx, s)
	}
	err := z.OpenNode(ctx, z.NodeConfig(consensus.RoleZone, s))
	several := err == nil && len(z.Node.Servers()) > 1
	if errors.Is(err, raftlog.ErrForeignDataDir) {
		several = namedServerOf(z.cfg.Name, z.cfg.DataDir)
	}
	if several {
		return &server.UsageError{Err: fmt.Errorf("--data-dir %s: it is of one of several servers of zone %q: say with --raft-addr HOST:PORT where the others reach this one", z.cfg.DataDir, z.cfg.Name)}
	}
	if err != nil {
		return err
	}
	z.PKI, err = server.OpenPKI(z.cfg.Options, z.Encryption, z.cfg.Name, "", z.Addresses, z.Now, z.Log)
	return err
}

// namedServerOf reports whether a data directory is of a server of the zone that has a name
// of its own, as those of a zone of several have.
func namedServerOf(zone, dir string) bool {
	have, err := readMode(dir)
	name := raftlog.NodeIn(dir)
	return err == nil && have.Name == zone && name != "" && name != zone
}

func (z *zone) openRecords(keys token.RingConfig) error {
	if z.cluster != nil {
		return z.cluster.OpenRecords(keys)
	}
	return z.OpenRecords(keys)
}

// api is what the API of the zone is made of.
func (z *zone) api() controlplane.API {
	api := controlplane.API{View: z.view, Uses: z.tokenUses()}
	if z.cluster == nil {
		api.Authorize = dataplane.Authorize(authz.AuthorizeMethods(nil))
		return api
	}
	api.Authorize = dataplane.Authorize(authz.AuthorizeMethods(map[string]token.Use{meridianv1.JoinService_ServiceDesc.ServiceName: token.ForServer}))
	return z.cluster.API(api)
}

func (z *zone) serveEarly(ctx context.Context, parts *errgroup.Group) {
	if z.cluster != nil {
		z.cluster.ServeEarly(ctx, parts, z.hangups)
		return
	}
	z.Base.Serve(ctx, parts, z.hangups, nil)
}

// serveCluster adds to parts what a server of several runs once it has started.
func (z *zone) serveCluster(ctx context.Context, parts *errgroup.Group) {
	if z.cluster == nil {
		return
	}
	z.cluster.ServeStarted(ctx, parts)
	parts.Go(func() error { return z.others.run(ctx) })
}

// auditSources returns the servers of the zone.
func (z *zone) auditSources(context.Context) (sources []auditlog.Source, absent []auditlog.Absence) {
	sources = []auditlog.Source{{Zone: z.cfg.Name, Server: z.serverOfSeveral(), Ask: auditlog.Local(z.Audit.List)}}
	if z.cluster == nil {
		return sources, nil
	}
	for _, p := range z.cluster.Others() {
		if z.others.isLost(p.Name) {
			absent = append(absent, auditlog.Absence{Zone: z.cfg.Name, Server: p.Name, Reason: "it does not answer"})
			continue
		}
		client := peerv1.NewProxyServiceClient(p.Conn)
		sources = append(sources, auditlog.Source{Zone: z.cfg.Name, Server: p.Name, Ask: func(ctx context.Context, q *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, auditTimeout)
			defer cancel()
			response, err := client.AuditRecords(ctx, &peerv1.AuditRecordsRequest{Query: q})
			switch {
			case ctx.Err() != nil:
				return nil, fmt.Errorf("no answer within %s", auditTimeout)
			case err != nil:
				return nil, errors.New(cluster.DescribeError(err))
			}
			return response.GetPage(), nil
		}})
	}
	return sources, absent
}

// auditTimeout bounds how long another server may take to list its records: less than the
// global waits for those of the zone.
const auditTimeout = 5 * time.Second

// auditAnswer is what the zone answers its global with that asks for records.
func (z *zone) auditAnswer() func(context.Context, []byte) ([]byte, error) {
	if z.cluster == nil {
		return auditlog.AnswerZone(auditlog.Local(z.Audit.List))
	}
	return auditlog.AnswerZone(auditlog.Together(z.auditSources))
}

// AuditRecords returns records of this server.
func (o *otherServers) AuditRecords(ctx context.Context, req *peerv1.AuditRecordsRequest) (*peerv1.AuditRecordsResponse, error) {
	if !o.assembled.Load() {
		return nil, errStarting
	}
	page, err := auditlog.Local(o.zone.Audit.List)(ctx, req.GetQuery())
	return &peerv1.AuditRecordsResponse{Page: page}, err
}

// serverOfSeveral is the name of this server in a zone of several, empty in a zone of one.
func (z *zone) serverOfSeveral() string {
	if z.cluster == nil {
		return ""
	}
	return z.Name
}

// absent reports whether this server looks after what proxies registered at another one.
func (z *zone) absent(server string) bool { return z.others != nil && z.others.absent(server) }

// proxyChanged is what is told of every change of a proxy; nil in a zone of one.
func (z *zone) proxyChanged() func(resource.Key) {
	if z.others == nil {
		return nil
	}
	return z.others.changed
}

// certified notes whether a proxy of this server has a certificate.
func (z *zone) certified(dataplane resource.Key, has bool) {
	z.resources.Certified(dataplane, has)
	if z.others != nil {
		z.others.certified(dataplane, has)
	}
}

// identitiesElsewhere is identities.Config.Elsewhere; nil in a zone of one server.
func (z *zone) identitiesElsewhere() func(context.Context, resource.MeshName, string) (identities.Waiting, time.Time, bool) {
	if z.others == nil {
		return nil
	}
	return z.others.elsewhere
}

// proxySource is what proxies are sent, which notes how they listen.
func (z *zone) proxySource() xds.Source {
	if z.others == nil {
		return z.resources
	}
	return notingSource{z.resources, z.others}
}

// notingSource tells the other servers how the proxies of this one listen.
type notingSource struct {
	xds.Source
	others *otherServers
}

// Listening implements xds.Source.
func (s notingSource) Listening(dataplane resource.Key, envoy, secure bool) {
	s.Source.Listening(dataplane, envoy, secure)
	s.others.listening(dataplane, envoy, secure)
}
