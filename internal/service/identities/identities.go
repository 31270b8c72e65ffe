// Package identities keeps the certificate authorities of a zone, one for each mesh with
// mutual TLS, and issues the certificates of its dataplanes.
//
// Guarantees. A key of an authority is stored with the zone's own secrets and is in no
// answer. A certificate names a dataplane as it is stored. An authority is replaced in
// the steps of package meshca, each of which is stored before it has an effect.
//
// Non-goals: who may have a certificate, which the token decides; other zones.
package identities

import (
	"context"
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"meridian/internal/authn/token"
	"meridian/internal/commit"
	"meridian/internal/identity"
	"meridian/internal/meshca"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// reviewEvery is how often steps that are due by the clock are looked for.
const reviewEvery = time.Minute

// Config is what a Keeper needs. All fields are required.
type Config struct {
	Zone resource.ZoneName
	// View reads what the zone has, meshes among it; Stores are where that changes.
	View   func() store.Reader
	Stores []*store.Store
	// Local is where the zone's own resources are, and Writer commits to it.
	Local  *store.Store
	Writer commit.Log
	// Elsewhere counts, in a zone of several servers, the dataplanes of the others that have
	// not acknowledged what is of a stamp, and returns since when all of them have
	// remembered who has a certificate. It is not complete where one does not answer, or on
	// a server that does not lead: then no step is taken that waits for all of them. Nil in a
	// zone of one.
	Elsewhere func(ctx context.Context, mesh resource.MeshName, stamp string) (waiting Waiting, since time.Time, complete bool)
	// Undenied counts the revoked tokens of a mesh whose certificates its servers do not
	// deny, because they are too many.
	Undenied func(resource.MeshName) int
	Now      func() time.Time
	Log      *slog.Logger
}

// Identity is what a dataplane is known by, and whom it trusts.
type Identity struct {
	// Certificate and Roots are in PEM; empty without a certificate.
	Certificate, Roots []byte
	// Refused says why there is none; empty where the mesh has no mutual TLS.
	Refused string
	// Plaintext is whether the mesh accepts plaintext beside TLS.
	Plaintext bool
	// Stamp is the state of the authority that this is of.
	Stamp string
	// Of is the dataplane that the certificate names; nil without one.
	Of *resource.Resource
	// Until is when the certificate ends; zero without one.
	Until time.Time
}

// Proxies are those who have identities.
type Proxies interface {
	// IdentitiesChanged has the proxies of a mesh be sent new ones.
	IdentitiesChanged(mesh resource.MeshName)
	// Unacknowledged counts those of a mesh that have a valid certificate, of this run of
	// the zone, and have not acknowledged what is of a stamp.
	Unacknowledged(mesh resource.MeshName, stamp string) Waiting
}

// Waiting are the dataplanes that the replacement of an authority waits for.
type Waiting struct{ Connected, Away int }

// Status is what a zone knows of the authority of a mesh.
type Status struct {
	Mesh resource.MeshName
	// Err is why the authority cannot be used; nil if it can. The other fields are those
	// of one that can.
	Err error
	// Expires is when the root that signs expires.
	Expires time.Time
	Phase   meshca.Phase
	// Waiting is whom the replacement waits for, in the phase Publishing.
	Waiting Waiting
}

// Keeper keeps the authorities. Its methods are safe for concurrent use.
type Keeper struct {
	cfg     Config
	started time.Time
	wake    chan struct{} // capacity 1

	mu sync.Mutex // serialises writes; guards what follows
	// parsed are the authorities as they were read last, with what they were read from.
	parsed map[resource.MeshName]parsed
	// told is what proxies were last told about, by mesh.
	told map[resource.MeshName]string
	// undenied is what was logged of them last, by mesh.
	undenied map[resource.MeshName]int
	// status is that of the last look, in order of the meshes.
	status []Status
}

type parsed struct {
	from      *resource.Resource
	authority *meshca.Authority
	err       error
}

// unusableError means that an authority cannot be read, a stored one or one that is
// provided: it stays so until another one is stored.
type unusableError struct {
	what   string
	reason error
}

func (e *unusableError) Error() string {
	return fmt.Sprintf("%s cannot be used: %v", e.what, e.reason)
}

func (e *unusableError) Unwrap() error { return e.reason }

// New returns a keeper.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, started: cfg.Now(), wake: make(chan struct{}, 1), parsed: map[resource.MeshName]parsed{}, told: map[resource.MeshName]string{}, undenied: map[resource.MeshName]int{}}
}

// settings are what a mesh says about identities.
type settings struct {
	enabled bool
	backend string
	kind    string
	plain   bool // plaintext is accepted beside TLS
	// secret is the name of the Secret with the authority that is provided, and problem why
	// the mesh names none; empty for a backend of another type.
	secret, problem string
	lifetime        time.Duration
	created         time.Time // of the mesh
}

// issues reports whether the zone issues certificates for the mesh.
func (s settings) issues() bool { return s.enabled && resource.ZonesIssue(s.kind) }

func settingsOf(view store.Reader, mesh resource.MeshName) settings {
	r, ok := view.Get(resource.Key{Kind: resource.KindMesh, Name: string(mesh)})
	if !ok {
		return settings{}
	}
	spec := r.Spec().(*resource.Mesh)
	if !spec.MTLSEnabled() {
		return settings{}
	}
	s := settings{enabled: true, backend: spec.MTLS.EnabledBackend, created: r.Meta().CreationTime}
	for i := range spec.MTLS.Backends {
		if b := &spec.MTLS.Backends[i]; b.Name == s.backend {
			s.kind, s.lifetime, s.plain = b.Type, meshca.Lifetime(b.DPCert), b.Mode == "PERMISSIVE"
			if b.Type == resource.ProvidedCA {
				var err error
				if s.secret, err = b.ProvidedSecret(); err != nil {
					s.problem = err.Error()
				}
			}
		}
	}
	return s
}

// Issue makes the identity of a dataplane that is stored, for the public half of a key,
// on the token of its proxy. The authority is made with the first of its mesh. The
// certificate ends no later than the token could be known as revoked. The error is that
// of a write.
func (k *Keeper) Issue(ctx context.Context, dataplane resource.Key, key *ecdsa.PublicKey, on token.Token) (Identity, error) {
	s := settingsOf(k.cfg.View(), dataplane.Mesh)
	issued, err := k.issue(ctx, s, dataplane, key, on)
	issued.Plaintext = s.plain
	return issued, err
}

func (k *Keeper) issue(ctx context.Context, s settings, dataplane resource.Key, key *ecdsa.PublicKey, on token.Token) (Identity, error) {
	switch {
	case !s.enabled:
		return Identity{}, nil
	case !s.issues():
		return Identity{Refused: fmt.Sprintf("mesh %s has mutual TLS enabled with backend %s of type %s: zones issue certificates of types %s and %s only",
			dataplane.Mesh, s.backend, s.kind, resource.BuiltinCA, resource.ProvidedCA)}, nil
	}
	r, ok := k.cfg.Local.View().Get(dataplane)
	if !ok {
		return Identity{Refused: "the dataplane was deleted"}, nil
	}
	name, err := identity.Of(k.cfg.Zone, dataplane.Mesh, dataplane.Name, r.Spec().(*resource.Dataplane).TagSets())
	if err != nil {
		return Identity{Refused: err.Error()}, nil //nolint:nilerr // it is the answer
	}
	authority, stamp, err := k.covering(ctx, dataplane.Mesh, s)
	if damaged := (*unusableError)(nil); errors.As(err, &damaged) {
		return Identity{Refused: damaged.Error(), Stamp: stamp}, nil
	}
	if err != nil {
		return Identity{}, err
	}
	now, lifetime := k.cfg.Now(), s.lifetime
	if !on.Expires.IsZero() {
		lifetime = min(lifetime, on.Expires.Add(identity.KeptFor).Sub(now))
	}
	certificate, err := authority.Sign(key, identity.WithCredential(name, identity.Credential(on.ID)), lifetime, now)
	if err != nil {
		return Identity{Refused: err.Error()}, nil //nolint:nilerr // it is the answer
	}
	return Identity{Certificate: certificate.PEM, Roots: authority.Roots(), Stamp: stamp, Of: r, Until: certificate.NotAfter}, nil
}

// provided returns the authority that the operator of a mesh has made, nil where the zone
// makes it itself, and what it was read from.
func (k *Keeper) provided(mesh resource.MeshName, s settings) (*meshca.Material, *resource.Resource, error) {
	if s.kind != resource.ProvidedCA {
		return nil, nil, nil
	}
	what := fmt.Sprintf("the certificate authority that backend %s of mesh %s provides", s.backend, mesh)
	if s.problem != "" {
		return nil, nil, &unusableError{what, errors.New(s.problem)}
	}
	r, ok := k.cfg.Local.View().Get(resource.Key{Kind: resource.KindSecret, Mesh: mesh, Name: s.secret})
	if !ok {
		return nil, nil, &unusableError{what, fmt.Errorf("there is no Secret %s of mesh %s in zone %s: apply it on the zone", s.secret, mesh, k.cfg.Zone)}
	}
	m, err := meshca.ReadMaterial(k.cfg.Zone, mesh, r.Spec().(*resource.Secret).Bytes(), k.cfg.Now())
	if err != nil {
		return nil, r, &unusableError{what, fmt.Errorf("Secret %s: %w", s.secret, err)}
	}
	return m, r, nil
}

// ofMesh returns an authority that is that of the mesh: the stored one or, where there is
// none or it is that of a mesh of that name which was deleted since, a new one.
func (k *Keeper) ofMesh(stored *meshca.Authority, mesh resource.MeshName, s settings) (*meshca.Authority, error) {
	switch {
	case stored != nil && stored.Created().Equal(s.created):
		return stored, nil
	case stored != nil && stored.Created().IsZero(): // an earlier release made it
		return stored.For(s.created), nil
	}
	provided, _, err := k.provided(mesh, s)
	if err != nil {
		return nil, err
	}
	var made *meshca.Authority
	if provided != nil {
		made = meshca.Provide(k.cfg.Zone, mesh, s.backend, provided, k.cfg.Now())
	} else if made, err = meshca.New(k.cfg.Zone, mesh, s.backend, k.cfg.Now()); err != nil {
		return nil, err
	}
	k.cfg.Log.Info("made a certificate authority", "mesh", mesh, "replaces_deleted_mesh", stored != nil, "expires", made.Status()[0].Certificate.NotAfter)
	return made.For(s.created), nil
}

// covering returns the authority of a mesh, made or changed if need be so that it signs
// for the mesh's lifetime of certificates.
func (k *Keeper) covering(ctx context.Context, mesh resource.MeshName, s settings) (*meshca.Authority, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	authority, stamp, err := k.readLocked(mesh)
	if err != nil || authority != nil && authority.Created().Equal(s.created) && authority.Covers(s.lifetime) {
		return authority, stamp, err
	}
	err = k.writeLocked(ctx, mesh, func(stored *meshca.Authority) (*meshca.Authority, error) {
		next, err := k.ofMesh(stored, mesh, s)
		if err != nil || next.Covers(s.lifetime) {
			return next, err
		}
		return next.WithLongest(s.lifetime), nil
	})
	if err != nil {
		return nil, "", err
	}
	return k.readLocked(mesh)
}

// readLocked returns the stored authority of a mesh, nil if there is none, and its stamp.
func (k *Keeper) readLocked(mesh resource.MeshName) (*meshca.Authority, string, error) {
	r, ok := k.cfg.Local.View().Get(token.MeshAuthorityKey(mesh))
	if !ok {
		delete(k.parsed, mesh)
		return nil, "", nil
	}
	p := k.parsed[mesh]
	if p.from != r {
		p = parsed{from: r}
		authority, err := meshca.Parse(k.cfg.Zone, mesh, r.Spec().(*resource.Secret).Bytes())
		if p.authority = authority; err != nil {
			p.err = &unusableError{"the stored certificate authority of the mesh", err}
		}
		k.parsed[mesh] = p
	}
	return p.authority, strconv.FormatUint(uint64(r.Meta().Revision), 10), p.err
}

// writeLocked stores what change makes of the stored authority, nil if there is none; an
// authority that is the same is not written.
func (k *Keeper) writeLocked(ctx context.Context, mesh resource.MeshName, change func(*meshca.Authority) (*meshca.Authority, error)) error {
	key := token.MeshAuthorityKey(mesh)
	_, err := commit.Write(ctx, k.cfg.Writer, func() (commit.Batch, error) {
		var batch commit.Batch
		stored, _, err := k.readLocked(mesh)
		if err != nil {
			return batch, err
		}
		next, err := change(stored)
		if err != nil || next == stored {
			return batch, err
		}
		data, err := next.Marshal()
		if err != nil {
			return batch, err
		}
		spec, err := json.Marshal(resource.Secret{Data: base64.StdEncoding.EncodeToString(data)})
		if err != nil {
			return batch, err
		}
		r, _, err := resource.Build(resource.Meta{Key: key}, spec)
		if err != nil {
			return batch, err
		}
		batch.Time, batch.Ops = k.cfg.Now(), []store.Op{store.Put(r)}
		before := store.Precondition{Key: key}
		if old, ok := k.cfg.Local.View().Get(key); ok {
			before.Version, before.Revision = old.Meta().Version, old.Meta().Revision
		}
		batch.Preconditions = []store.Precondition{before}
		return batch, nil
	})
	if err != nil {
		return fmt.Errorf("store the certificate authority of mesh %s: %w", mesh, err)
	}
	return nil
}

// Acknowledged has the keeper look whether all proxies have what they are to trust.
func (k *Keeper) Acknowledged() {
	select {
	case k.wake <- struct{}{}:
	default: // it looks soon
	}
}

// Run takes the steps that are due until ctx ends, and tells proxies of what changed.
func (k *Keeper) Run(ctx context.Context, proxies Proxies) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range k.cfg.Stores {
		group.Go(func() error {
			for at := s.View(); ctx.Err() == nil; at = s.View() {
				k.Acknowledged()
				feed := s.Follow(at)
				for {
					batches, err := feed.Next(ctx)
					if err != nil {
						break // it ended, or the history is shorter: look at everything
					}
					if concerns(batches) {
						k.Acknowledged()
					}
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		ticker := time.NewTicker(reviewEvery)
		defer ticker.Stop()
		for {
			select {
			case <-k.wake:
			case <-ticker.C:
			case <-ctx.Done():
				return nil
			}
			k.review(ctx, proxies)
		}
	})
	return group.Wait()
}

// concerning are the kinds that a change of has the keeper look.
var concerning = []resource.Kind{resource.KindMesh, resource.KindGlobalSecret, resource.KindSecret, resource.KindTokenRevocation}

func concerns(batches []store.Batch) bool {
	for _, b := range batches {
		for _, c := range b.Changes {
			if key := c.Key(); slices.Contains(concerning, key.Kind) {
				return true
			}
		}
	}
	return false
}

// review takes the steps of all authorities that are due.
func (k *Keeper) review(ctx context.Context, proxies Proxies) {
	view := k.cfg.View()
	seen := map[resource.MeshName]bool{}
	var all []Status
	for r := range view.List(resource.KindMesh, "") {
		mesh := resource.MeshName(r.Key().Name)
		seen[mesh] = true
		s := settingsOf(view, mesh)
		if status, made := k.step(ctx, mesh, s, proxies); made {
			all = append(all, status)
		}
		k.mu.Lock()
		_, stamp, _ := k.readLocked(mesh)
		now := fmt.Sprint(s, stamp)
		if _, from, _ := k.provided(mesh, s); from != nil { // why there is no certificate may be other
			now += fmt.Sprint(" ", from.Meta().Revision)
		}
		changed := k.told[mesh] != now
		k.told[mesh] = now
		k.mu.Unlock()
		if changed {
			proxies.IdentitiesChanged(mesh)
		}
		k.logUndenied(mesh)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status = all
	for mesh := range k.told {
		if !seen[mesh] {
			delete(k.told, mesh)
			delete(k.parsed, mesh)
			delete(k.undenied, mesh)
		}
	}
}

// logUndenied tells of certificates of revoked tokens that servers of a mesh accept.
func (k *Keeper) logUndenied(mesh resource.MeshName) {
	left := k.cfg.Undenied(mesh)
	k.mu.Lock()
	defer k.mu.Unlock()
	if left > k.undenied[mesh] {
		k.cfg.Log.Warn("more tokens of a mesh are revoked than its servers deny: certificates on the oldest are accepted until they expire", "mesh", mesh, "denied", identity.MaxDenied, "accepted", left)
	}
	k.undenied[mesh] = left
}

// Started is when the keeper began to remember who has a certificate.
func (k *Keeper) Started() time.Time { return k.started }

// Status returns the authorities in use, as they were at the last look.
func (k *Keeper) Status() []Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.status)
}

// step takes the next step of a mesh's authority, if one is due, and returns its status
// if the mesh has one that is in use.
func (k *Keeper) step(ctx context.Context, mesh resource.MeshName, s settings, proxies Proxies) (Status, bool) {
	if !s.issues() {
		return Status{}, false
	}
	k.mu.Lock()
	authority, stamp, err := k.readLocked(mesh)
	k.mu.Unlock()
	if err != nil {
		k.cfg.Log.Error("a certificate authority cannot be used: its mesh gets no certificates here", "mesh", mesh, "error", err)
		return Status{Mesh: mesh, Err: err}, true
	}
	provided, _, unusable := k.provided(mesh, s)
	if unusable != nil {
		// What there is continues to sign.
		k.cfg.Log.Error("a certificate authority that is provided cannot be used", "mesh", mesh, "error", unusable)
		return Status{Mesh: mesh, Err: unusable}, true
	}
	if authority == nil {
		return Status{}, false
	}
	waiting, now := proxies.Unacknowledged(mesh, stamp), k.cfg.Now()
	since, complete := k.started, true
	if k.cfg.Elsewhere != nil {
		var more Waiting
		var others time.Time
		more, others, complete = k.cfg.Elsewhere(ctx, mesh, stamp)
		waiting.Connected, waiting.Away = waiting.Connected+more.Connected, waiting.Away+more.Away
		if others.After(since) {
			since = others
		}
	}
	trusted := complete && waiting == Waiting{} && !authority.Outstanding(since, now)
	k.mu.Lock()
	defer k.mu.Unlock()
	var stepped *meshca.Authority
	err = k.writeLocked(ctx, mesh, func(stored *meshca.Authority) (*meshca.Authority, error) {
		stepped = nil
		if stored == nil {
			return nil, nil
		}
		next, err := k.ofMesh(stored, mesh, s)
		if err != nil || next != stored {
			return next, err
		}
		next, err = stored.Step(s.backend, provided, trusted && stored == authority, now)
		if err == nil && next != stored {
			stepped = next
		}
		return next, err
	})
	switch {
	case err != nil && ctx.Err() == nil:
		k.cfg.Log.Warn("a certificate authority could not be replaced: trying again", "mesh", mesh, "error", err)
	case err == nil && stepped != nil:
		k.logStep(mesh, stepped)
	}
	if authority, _, err = k.readLocked(mesh); err != nil || authority == nil {
		return Status{Mesh: mesh, Err: err}, err != nil
	}
	status := Status{Mesh: mesh, Expires: authority.Status()[0].Certificate.NotAfter, Phase: authority.Phase()}
	if status.Phase == meshca.Publishing {
		status.Waiting = waiting
	}
	return status, true
}

// logStep tells of a step that was taken.
func (k *Keeper) logStep(mesh resource.MeshName, a *meshca.Authority) {
	roots := a.Status()
	about := []any{"mesh", mesh, "roots", len(roots), "signing", roots[0].Backend, "expires", roots[0].Certificate.NotAfter}
	switch a.Phase() {
	case meshca.Publishing:
		k.cfg.Log.Info("a certificate authority is being replaced: the next root is published", append(about, "signs_by", a.SignsBy())...)
	case meshca.Retiring:
		k.cfg.Log.Info("a certificate authority is being replaced: the next root signs", about...)
	case meshca.Stable:
		k.cfg.Log.Info("a certificate authority was replaced: the last root is not trusted any more", about...)
	}
}
