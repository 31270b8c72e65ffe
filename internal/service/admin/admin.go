package admin

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/commit"
	"meridian/internal/doctree"
	"meridian/internal/past"
	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// MaxBatchBytes bounds a batch, in bytes of its message: what is written, or of
// what is removed as it is stored. A batch is one entry of the log, one message to
// every watch, and frames to every zone.
const MaxBatchBytes = 16 << 20

// Source is one store that the service reads: all resources of some kinds.
type Source interface {
	past.Source
	View() *store.View
	// OldestState is the oldest revision whose contents are kept.
	OldestState() resource.Revision
	Follow(v *store.View) *store.Feed
	FollowFrom(after resource.Revision) *store.Feed
}

// Access decides what the caller of a request may do. *authz.Authorizer
// implements it; its errors are *rpcerr.Error and say what is missing.
type Access interface {
	// Early refuses a batch of which only the identities are known, where nothing
	// could be granted whatever its content. It grants nothing.
	Early(ctx context.Context, deletion bool, keys ...resource.Key) error
	// Write decides a batch on the newest state, and returns what the state
	// machine must still find when it makes it (§6.4).
	Write(ctx context.Context, ops []store.Op, force bool) (authz.Permit, error)
	Readers
}

// Config says how a server serves its resources. Every field is required
// unless marked otherwise.
type Config struct {
	Writer commit.Log
	Access Access
	// Applied returns what became of the batch that was applied under a request
	// id, as long as that is remembered.
	Applied func(requestID string) (store.Result, bool)
	// Remembers reports whether the batch of a request id is known to have been
	// applied, or surely was not within an age, by this server's clock.
	Remembers func(requestID string, now time.Time, age time.Duration) bool
	// Preview returns what says what a transaction would do to the state of now, and
	// what there would then be to read, changing nothing. It is called once at most, on
	// any goroutine: it does the work.
	Preview func(txn store.Txn) func() (store.Result, store.Reader)
	// View returns everything that can be read, as of now.
	View func() store.Reader
	// Stores are those that View reads, the one first whose revision answers have.
	Stores func() []*store.Store
	// Source returns the store that holds a kind.
	Source func(*resource.Descriptor) Source
	// Owns returns an error that says where to write instead, when resources of
	// the kind are not written here (§1.3).
	Owns func(*resource.Descriptor) error
	// Prepare completes or refuses a resource before it is stored. Optional.
	Prepare func(view store.Reader, r *resource.Resource) (*resource.Resource, error)
	// Check reports what is wrong with a spec beyond what its kind checks, such
	// as conditions that cannot be used (§5.6). Optional.
	Check func(spec resource.Spec) []resource.Problem
	// Surveyors advise on resources as they are written.
	Surveyors []policy.Surveyor
	// WaitForZones waits until zones have applied a revision, until ctx ends. It
	// calls progress whenever the zones that have not change, and ends with its
	// error; the warnings say of which zones that is not known. nil where there are
	// no zones.
	WaitForZones func(ctx context.Context, w ZoneWait, progress func([]PendingZone) error) (warnings []string, err error)
	// Plan says what a batch would do that the caller may make, and of which it may read
	// everything around. It fails with the cause of ctx, and with *rpcerr.Error.
	Plan func(ctx context.Context, batch *plan.Batch) (*plan.Plan, error)
	// WaitForProxies is WaitForZones where there are no zones, for the server's own
	// proxies; an *rpcerr.Error is passed on. nil where there are no proxies.
	WaitForProxies func(ctx context.Context, revision resource.Revision, progress func([]PendingZone) error) error
	// Rollouts is what is known of the zones for changes that reach them by stages; nil
	// where there are no zones.
	Rollouts *RolloutConfig
	// Now is the clock that writes are stamped with.
	Now func() time.Time
	// Turns bound the work of requests, which are decoded and decided in turn. nil
	// for some of the service's own.
	Turns *turns.Turns
}

// Service implements meridianv1.AdminServiceServer. It is safe for concurrent
// use.
type Service struct {
	meridianv1.UnimplementedAdminServiceServer
	cfg Config
}

// New returns a service.
func New(cfg Config) *Service {
	if cfg.Turns == nil {
		cfg.Turns = turns.NewServer()
	}
	return &Service{cfg: cfg}
}

// Encode turns a stored resource into its message.
//
// The data of signing keys is left out, for every caller.
func Encode(r *resource.Resource) *meridianv1.Resource {
	r = token.Withheld(r)
	m := r.Meta()
	return &meridianv1.Resource{
		Kind:             string(m.Kind),
		Mesh:             string(m.Mesh),
		Name:             m.Name,
		Labels:           m.Labels,
		CreationTime:     encodeTime(m.CreationTime),
		ModificationTime: encodeTime(m.ModificationTime),
		Version:          m.Version,
		Revision:         uint64(m.Revision),
		Spec:             r.Canonical(),
		Rollout:          m.Rollout,
	}
}

func encodeTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Decode turns a message into a resource, strictly.
func Decode(m *meridianv1.Resource) (*resource.Resource, []resource.Problem, error) {
	meta := metaOf(m)
	report := &resource.Report{}
	if resource.CheckLabels(meta.Key, meta.Labels, "labels", report); report.Failed() {
		return nil, nil, &resource.DocumentError{Key: meta.Key, Problems: report.Problems}
	}
	return resource.Build(meta, m.GetSpec())
}

// Encodes reports whether a message is that of a resource, as Encode makes it of one that is
// not secret.
func Encodes(m *meridianv1.Resource, r *resource.Resource) bool {
	a, b := metaOf(m), r.Meta()
	return a.Key == b.Key && a.Version == b.Version && a.Revision == b.Revision &&
		a.CreationTime.Equal(b.CreationTime) && a.ModificationTime.Equal(b.ModificationTime) &&
		maps.Equal(a.Labels, b.Labels) && bytes.Equal(m.GetSpec(), r.Canonical())
}

func metaOf(m *meridianv1.Resource) resource.Meta {
	meta := resource.Meta{
		Key:     resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()},
		Labels:  m.GetLabels(),
		Version: m.GetVersion(), Revision: resource.Revision(m.GetRevision()),
	}
	if t := m.GetCreationTime(); t != nil {
		meta.CreationTime = t.AsTime()
	}
	if t := m.GetModificationTime(); t != nil {
		meta.ModificationTime = t.AsTime()
	}
	return meta
}

// descriptors resolves kinds as users spell them; none means every kind.
func descriptors(names []string) ([]*resource.Descriptor, error) {
	if len(names) == 0 {
		return resource.Kinds(), nil
	}
	out := make([]*resource.Descriptor, 0, len(names))
	for _, name := range names {
		d, ok := resource.Lookup(name)
		if !ok {
			return nil, unknownKind(name)
		}
		out = append(out, d)
	}
	return out, nil
}

func unknownKind(name string) error {
	if nearest, ok := resource.NearestKind(name); ok {
		return fmt.Errorf("unknown kind %q; did you mean %s?", doctree.Clip(name), nearest)
	}
	return fmt.Errorf("unknown kind %q", doctree.Clip(name))
}
