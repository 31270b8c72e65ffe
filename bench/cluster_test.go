package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/batch"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
	"meridian/internal/service/admin"
)

// global is a global of one server.
type global struct {
	*process
	grpcAddr string
	args     []string
	api      *client
}

// zone is a zone of a global.
type zone struct {
	*process
	api *client
}

// client is a connection to a server.
type client struct {
	meridianv1.AdminServiceClient
	meridianv1.ControlServiceClient
	inspect  meridianv1.InspectServiceClient
	tokens   meridianv1.TokenServiceClient
	cluster  meridianv1.ClusterServiceClient
	requests atomic.Int64
}

const anyPort = "127.0.0.1:0"

// newGlobal starts a global and writes the first n policies to it.
func newGlobal(b *testing.B, n int) *global {
	b.Helper()
	g := startGlobal(b, b.TempDir())
	g.api.apply(b, policies(n))
	return g
}

// startGlobal starts a global and waits until it is ready.
func startGlobal(b *testing.B, dir string, args ...string) *global {
	b.Helper()
	g := &global{args: args, process: start(b, "meridian-global", dir, append([]string{
		"--grpc-addr", anyPort, "--http-addr", anyPort, "--raft-addr", anyPort, "--gossip-addr", anyPort,
	}, args...)...)}
	g.grpcAddr = g.ready(b).GRPC
	g.api = dial(b, dir)
	return g
}

// bundle writes what a zone needs to join into a file and returns its path.
// Through says at which address the zone reaches the global.
func (g *global) bundle(b *testing.B, zone, through string) string {
	b.Helper()
	response, err := g.api.GenerateZoneToken(b.Context(), &meridianv1.GenerateZoneTokenRequest{Zone: zone, ValidForSeconds: 3600, Bundle: true})
	require.NoError(b, err)
	bundle, err := clientconfig.DecodeZoneBundle(response.GetBundle())
	require.NoError(b, err)
	bundle.Addresses = []string{through}
	data, err := bundle.Encode()
	require.NoError(b, err)
	path := filepath.Join(b.TempDir(), zone+".bundle")
	require.NoError(b, os.WriteFile(path, data, 0o600))
	return path
}

// startZone starts the zone east and waits until it is ready.
func startZone(b *testing.B, bundle, dir string) *zone {
	b.Helper()
	return startZoneNamed(b, "east", bundle, dir)
}

// startZoneNamed is startZone with a name.
func startZoneNamed(b *testing.B, name, bundle, dir string) *zone {
	b.Helper()
	z := &zone{process: start(b, "meridian-zone", dir,
		"--name", name, "--join-bundle", bundle, "--grpc-addr", anyPort, "--http-addr", anyPort)}
	z.ready(b)
	z.api = dial(b, dir)
	return z
}

// newZone starts a zone that reaches its global at an address, waits until the
// global knows it to be in sync, and gives it dataplanes.
func newZone(b *testing.B, g *global, through string) *zone {
	b.Helper()
	z := startZone(b, g.bundle(b, "east", through), b.TempDir())
	z.await(b, connected, 0)
	g.api.write(b, policy(0, 1), true) // a zone that has this has the mesh
	z.api.apply(b, proxies())
	return z
}

// connected is what a zone logs when the global has welcomed it.
const connected = "connected to the global"

// dial connects to the server that keeps its data in dir.
func dial(b *testing.B, dir string) *client {
	b.Helper()
	contexts, err := clientconfig.LoadContexts(filepath.Join(dir, "admin.yaml"))
	require.NoError(b, err)
	server, err := contexts.Get("")
	require.NoError(b, err)
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: []byte(server.CA), Source: dir})
	require.NoError(b, err)
	conn, err := grpc.NewClient(server.Addresses[0], grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(token.Credentials(server.Token, false)))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return newClient(conn)
}

func newClient(conn *grpc.ClientConn) *client {
	return &client{
		AdminServiceClient: meridianv1.NewAdminServiceClient(conn), ControlServiceClient: meridianv1.NewControlServiceClient(conn),
		inspect: meridianv1.NewInspectServiceClient(conn), tokens: meridianv1.NewTokenServiceClient(conn), cluster: meridianv1.NewClusterServiceClient(conn),
	}
}

// apply writes resources in batches of half the size that a server takes, which counts more
// than what is encoded.
func (c *client) apply(b *testing.B, all []*meridianv1.Resource) {
	b.Helper()
	for len(all) > 0 {
		n, size := 0, 0
		for ; n < len(all) && size+proto.Size(all[n]) <= admin.MaxBatchBytes/2; n++ {
			size += proto.Size(all[n])
		}
		_, err := batch.Apply(b.Context(), c, &meridianv1.ApplyRequest{Resources: all[:n], RequestId: c.requestID()})
		require.NoError(b, err)
		all = all[n:]
	}
}

// write writes one changed resource and returns the revision; with confirm,
// when the zones have it on their disks.
func (c *client) write(b *testing.B, r *meridianv1.Resource, confirm bool) uint64 {
	b.Helper()
	revision, err := c.put(b.Context(), r, confirm)
	require.NoError(b, err)
	return revision
}

// put is write for any goroutine.
func (c *client) put(ctx context.Context, r *meridianv1.Resource, confirm bool) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := batch.Apply(ctx, c, &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{r}, RequestId: c.requestID()})
	if err != nil {
		return 0, fmt.Errorf("apply %s: %w", r.GetName(), err)
	}
	if outcome := response.GetResults()[0].GetOutcome(); outcome != meridianv1.Outcome_OUTCOME_UPDATED {
		return 0, fmt.Errorf("apply %s: %s, there is nothing to measure", r.GetName(), outcome)
	}
	if confirm {
		if err := c.awaitZones(ctx, response.GetRevision()); err != nil {
			return 0, fmt.Errorf("wait for zones: %w", err)
		}
	}
	return response.GetRevision(), nil
}

// awaitZones returns when every enabled zone has applied a revision.
func (c *client) awaitZones(ctx context.Context, revision uint64) error {
	stream, err := c.WaitForZones(ctx, &meridianv1.WaitForZonesRequest{Revision: revision})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (c *client) requestID() string {
	return fmt.Sprintf("bench-%p-%d", c, c.requests.Add(1))
}

// holds fails unless the server holds exactly n policies.
func (c *client) holds(b *testing.B, n int) {
	b.Helper()
	got, page := 0, ""
	for first := true; first || page != ""; first = false {
		stream, err := c.List(b.Context(), &meridianv1.ListRequest{Kinds: kinds, Consistency: meridianv1.Consistency_CONSISTENCY_STALE, PageToken: page})
		require.NoError(b, err)
		page = ""
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(b, err)
			got += len(part.GetResources())
			page = part.GetNextPageToken()
		}
	}
	require.Equal(b, n, got)
}
