package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/consensus"
	"meridian/internal/controlplane"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// Why a backup is not restored, for programs.
const (
	reasonBadBackup   = "BAD_BACKUP"
	reasonNotRestored = "NOT_RESTORED"
	reasonUnknown     = "OUTCOME_UNKNOWN"
)

// backupPart is how much of a backup one message carries, in bytes.
const backupPart = 256 << 10

// SaveSnapshot streams the whole state as a file. It holds every secret of the
// cluster, so it takes membership of mesh-system:admin.
func (s *clusterService) SaveSnapshot(req *meridianv1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[meridianv1.SaveSnapshotResponse]) error {
	c, ctx := s.server, stream.Context()
	if err := c.authorizeOperation(ctx); err != nil {
		return err
	}
	out := &backupWriter{stream: stream}
	buffered := bufio.NewWriterSize(out, backupPart)
	revision, err := c.Node.SaveBackup(ctx, buffered, req.GetStale())
	if err == nil {
		err = buffered.Flush()
	}
	if out.sent > 0 { // also a part of the file may hold a secret
		c.Audit.RecordOperation(ctx, audit.Record{
			Rule: "member of " + authn.AdminGroup, Revision: uint64(revision),
			Targets: []audit.Target{{Action: "save", Kind: "snapshot", Name: fmt.Sprintf("%d bytes", out.sent)}},
		}, err)
	}
	if err != nil && out.sent == 0 {
		return rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "save a snapshot: %w", err)
	}
	return err
}

// backupWriter sends what is written to it.
type backupWriter struct {
	stream grpc.ServerStreamingServer[meridianv1.SaveSnapshotResponse]
	sent   int
}

// Write implements io.Writer.
func (w *backupWriter) Write(p []byte) (int, error) {
	if err := w.stream.Send(&meridianv1.SaveSnapshotResponse{Data: p}); err != nil {
		return 0, err
	}
	w.sent += len(p)
	return len(p), nil
}

// RestoreSnapshot replaces the whole state by a saved one.
func (s *clusterService) RestoreSnapshot(stream grpc.ClientStreamingServer[meridianv1.RestoreSnapshotRequest, meridianv1.RestoreSnapshotResponse]) error {
	c, ctx := s.server, stream.Context()
	if err := c.authorizeOperation(ctx); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	restored, err := c.Node.Restore(ctx, consensus.NewBackupReader(first.GetData(), stream.Recv), first.GetDropRevocations())
	record := audit.Record{
		Rule: "member of " + authn.AdminGroup, Revision: uint64(restored.Revision),
		Targets: []audit.Target{{Action: "restore", Kind: "snapshot", Name: fmt.Sprintf("incarnation %d", restored.Epoch.Incarnation)}},
	}
	switch {
	case err == nil:
		c.Audit.RecordOperation(ctx, record, nil)
	case errors.Is(err, consensus.ErrUnknownOutcome):
		record.Decision, record.Targets[0].Name = audit.Unknown, ""
		c.Audit.RecordOperation(ctx, record, err)
	}
	if err != nil {
		return restoreRefusal(err)
	}
	return stream.SendAndClose(&meridianv1.RestoreSnapshotResponse{
		Revision: uint64(restored.Saved), Effective: uint64(restored.Revision), Resources: uint64(restored.Resources), //nolint:gosec // a count
		Incarnation: restored.Epoch.Incarnation, ClusterId: restored.Epoch.ClusterID,
		Kept: &meridianv1.KeptTrust{
			Revocations: uint32(restored.Kept.Revocations), Keys: uint32(restored.Kept.Keys), //nolint:gosec // counts
			Tokens: uint32(restored.Kept.Tokens), DeletedKeys: uint32(restored.Kept.DeletedKeys), //nolint:gosec // counts
		},
	})
}

// restoreRefusal says what became of a restore that did not succeed.
func restoreRefusal(err error) error {
	switch {
	case errors.Is(err, consensus.ErrBadBackup):
		return rpcerr.WithEffect(rpcerr.New(rpcerr.Invalid, reasonBadBackup, "%w", err), rpcerr.EffectNone)
	case errors.Is(err, consensus.ErrUnknownOutcome):
		return rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, reasonUnknown,
			"the backup may have been restored, as a whole, or not at all: look at what is there, and restore it again if it is not (%w)", err), rpcerr.EffectUnknown)
	case errors.Is(err, consensus.ErrNotRestored), errors.Is(err, consensus.ErrClosed):
		return rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, reasonNotRestored, "%w", err), rpcerr.EffectNone)
	}
	return err
}

// untouched reports whether a state holds nothing but what a first start and
// servers that joined have written: no client has used this control plane yet.
func untouched(v *store.View) bool {
	if v.Epoch().Incarnation > 1 {
		return false
	}
	for r := range v.All() {
		if !writtenByServers(r) {
			return false
		}
	}
	return true
}

func writtenByServers(r *resource.Resource) bool {
	switch key := r.Key(); key.Kind {
	case resource.KindSigningKey, resource.KindIssuedToken, resource.KindTokenRevocation:
		return true
	case resource.KindGlobalSecret:
		_, err := token.ParseKeyID(key.Name)
		return err == nil || key.Name == token.AdminTokenName || key == token.ServersKey
	case resource.KindAccessRole:
		return key.Name == rbac.AdminRole && r.Meta().Version == 1
	case resource.KindAccessRoleBinding:
		return key.Name == authz.DefaultBinding && r.Meta().Version == 1
	case controlplane.DefaultMesh.Kind:
		return key == controlplane.DefaultMesh && r.Meta().Version == 1
	}
	return false
}

// ClusterID names the control plane to the outside. A backup that was restored into a
// new cluster brings the name along under which zones know it; what the servers
// of the cluster call it among themselves stays.
func (c *Server) ClusterID() string {
	if id := c.Store.View().Epoch().ClusterID; id != "" {
		return id
	}
	return c.Node.ClusterID()
}

// followReplacements does what a server has to do when its state is replaced by
// a backup's, until ctx ends: what it begins with may be missing in it.
func (c *Server) followReplacements(ctx context.Context) error {
	for v := c.Store.View(); ; {
		epoch := v.Epoch()
		next, err := c.Store.AwaitKinds(ctx, v)
		if err != nil {
			return nil // ctx has ended
		}
		if next.Epoch() != epoch {
			c.replaced(next)
		}
		v = next
	}
}

func (c *Server) replaced(v *store.View) {
	epoch := v.Epoch()
	c.Log.Warn("the state was replaced: a new incarnation of its history begins", "cluster", epoch.ClusterID,
		"incarnation", epoch.Incarnation, "revision", v.Revision(), "resources", v.Len())
	c.Audit.RecordEvent(fmt.Sprintf("the state was replaced by a backup: incarnation %d of cluster %s begins at revision %d with %d resources",
		epoch.Incarnation, epoch.ClusterID, v.Revision(), v.Len()))
	if c.Node.IsLeader() {
		c.notifyLeadership()
	}
}
