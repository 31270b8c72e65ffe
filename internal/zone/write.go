package zone

import (
	"context"
	"fmt"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/controlplane"
	"meridian/internal/meshca"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/service/dataplane"
	"meridian/internal/store"
	"meridian/internal/version"
)

// bootstrap is what a zone needs before its first use.
func (z *zone) bootstrap() controlplane.Bootstrap {
	return controlplane.Bootstrap{
		Mesh: !z.cfg.federated() && !z.cfg.SkipDefaultMesh, Rules: authz.Defaults{Restricted: z.cfg.federated()}, Uses: z.tokenUses(),
	}
}

// tokenUses are the tokens that a zone issues: those of its own users, those of the
// dataplanes that register with it, and those of servers that join it.
func (z *zone) tokenUses() []token.Use {
	uses := []token.Use{token.ForUser, token.ForDataplane}
	if z.cluster != nil {
		uses = append(uses, token.ForServer)
	}
	return uses
}

// admin returns the service by which the zone's resources are written and
// everything it has is read.
func (z *zone) admin() *admin.Service {
	return admin.New(admin.Config{
		Writer:    z.Writer,
		Access:    z.Authorizer,
		Applied:   z.Store.Applied,
		Remembers: z.Store.Remembers,
		Preview:   z.preview,
		View:      z.view,
		Stores:    z.stores,
		Source:    z.source,
		Owns:      z.owns,
		Prepare:   z.prepareApplied,
		Check:     z.Conditions.Check,
		Surveyors: engines.Surveyors(),
		Plan:      z.inspect.planned,
		Now:       z.Now,
		Turns:     z.Turns,

		WaitForProxies: z.waitForProxies,
	})
}

// view reads everything the zone has.
func (z *zone) view() store.Reader {
	if z.globalStore == nil {
		return z.Store.View()
	}
	return store.Union(z.globalStore.View(), z.Store.View())
}

// preview says what a transaction would do, and what the zone would then have.
func (z *zone) preview(txn store.Txn) func() (store.Result, store.Reader) {
	if z.globalStore == nil {
		return admin.PreviewOf(z.Store)(txn)
	}
	global, preview := z.globalStore.View(), z.Store.Previewing(txn)
	return func() (store.Result, store.Reader) {
		result, after := preview()
		return result, store.Union(global, after)
	}
}

// source returns the store that holds a kind.
func (z *zone) source(d *resource.Descriptor) admin.Source {
	if z.globalStore != nil && d.Synced {
		return z.globalStore
	}
	return z.Store
}

// owns refuses what a global owns (§1.3). A standalone zone owns
// everything.
func (z *zone) owns(d *resource.Descriptor) error {
	if z.globalStore != nil && d.Owner == resource.OwnedByGlobal {
		return fmt.Errorf("%s resources belong to the global control plane, and %q is a zone of it: apply them on the global", d.Kind, z.cfg.Name)
	}
	return nil
}

// prepare completes a dataplane with the zone's tag (§1.5) and checks what the zone's own
// store cannot: that the mesh exists (§1.4), and that a certificate authority that is
// provided can sign for it.
func (z *zone) prepare(view store.Reader, r *resource.Resource) (*resource.Resource, error) {
	key := r.Key()
	if z.globalStore != nil && key.Mesh != "" {
		if _, ok := view.Get(resource.Key{Kind: resource.KindMesh, Name: string(key.Mesh)}); !ok {
			if err := z.replicaReady(); err != nil {
				return nil, rpcerr.New(rpcerr.Invalid, dataplane.ReasonNoMesh, "mesh %q is not known here: %w", key.Mesh, err)
			}
			return nil, rpcerr.New(rpcerr.Invalid, dataplane.ReasonNoMesh, "mesh %q does not exist: create it on the global first", key.Mesh)
		}
	}
	if resource.HoldsProvidedAuthority(key) {
		_, err := meshca.ReadMaterial(resource.ZoneName(z.cfg.Name), key.Mesh, r.Spec().(*resource.Secret).Bytes(), z.Now())
		if err != nil {
			return nil, rpcerr.New(rpcerr.Invalid, "NOT_AN_AUTHORITY", "it is to hold the certificate authority of mesh %s in zone %s: %w", key.Mesh, z.cfg.Name, err)
		}
		return r, nil
	}
	if key.Kind != resource.KindDataplane {
		return r, nil
	}
	return resource.WithZone(r, resource.ZoneName(z.cfg.Name))
}

// controlService is about this zone.
type controlService struct {
	meridianv1.UnimplementedControlServiceServer
	zone *zone
}

// Info says which server this is.
func (s *controlService) Info(context.Context, *meridianv1.InfoRequest) (*meridianv1.InfoResponse, error) {
	z := s.zone
	cluster := z.Node.ClusterID()
	if z.replica != nil {
		cluster = z.replica.Status().Epoch.ClusterID
	}
	return &meridianv1.InfoResponse{
		Role: z.role(), Version: version.String(), ClusterId: cluster, Name: z.cfg.Name, Revision: uint64(z.revision()),
	}, nil
}
