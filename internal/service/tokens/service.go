package tokens

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/batch"
	"meridian/internal/commit"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// listPart is how many records one message of ListTokens holds.
const listPart = 1000

// Access decides what the caller of a request may do. *authz.Authorizer
// implements it; its errors are *rpcerr.Error and say what is missing.
type Access interface {
	// Early and EarlyToken refuse what nothing could grant to the caller, before it
	// is worked on. They grant nothing.
	Early(ctx context.Context, deletion bool, keys ...resource.Key) error
	EarlyToken(ctx context.Context, access resource.Access, mesh resource.MeshName) error
	GenerateUserToken(ctx context.Context, name string, groups []string, force bool) error
	GenerateDataplaneToken(ctx context.Context, token rbac.Token) error
	GenerateZoneToken(ctx context.Context, scope ...string) error
	RequireAdmin(ctx context.Context) error
	// Read decides whether a record may be shown.
	Read(ctx context.Context, r *resource.Resource) error
	// WriteOwn decides about keys, records and revocations that were made here.
	WriteOwn(ctx context.Context, ops []store.Op) (authz.Permit, error)
}

// Config is what a Service needs. Every field is required.
type Config struct {
	Ring   *token.Ring
	Writer commit.Log
	Access Access
	// Local reads the store that is written, View everything there is to read.
	Local func() *store.View
	View  func() store.Reader
	// Uses are the tokens that this control plane issues.
	Uses []token.Use
	Now  func() time.Time
	// Remembers reports whether the batch of a request id is known to have been
	// applied, or surely was not within an age, by this server's clock.
	Remembers func(requestID string, now time.Time, age time.Duration) bool
	// Turns bound the work of requests.
	Turns *turns.Turns
}

// Service implements meridianv1.TokenServiceServer. It is safe for concurrent
// use.
type Service struct {
	meridianv1.UnimplementedTokenServiceServer
	cfg Config
}

// New returns a service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// work runs a piece of work of a request in its turn. Every request of the service
// is one message, so that none is a large one.
func (s *Service) work(ctx context.Context, piece func() error) error {
	return s.cfg.Turns.Work(ctx, batch.MaxMessage, piece)
}

// decided has a batch decided in turn. No turn is held while it is proposed.
func (s *Service) decided(ctx context.Context, decide func() (commit.Batch, error)) (store.Result, error) {
	return commit.WriteNewest(ctx, s.cfg.Writer, func() (made commit.Batch, err error) {
		err = s.work(ctx, func() error {
			made, err = decide()
			return err
		})
		return made, err
	})
}

// GenerateUserToken issues a token for a user of this control plane.
func (s *Service) GenerateUserToken(ctx context.Context, req *meridianv1.GenerateUserTokenRequest) (*meridianv1.GenerateUserTokenResponse, error) {
	if err := s.earlyToken(ctx, resource.AccessGenerateUserToken, ""); err != nil {
		return nil, err
	}
	if err := s.work(ctx, func() error { return checkUser(req.GetName(), req.GetGroups()) }); err != nil {
		return nil, err
	}
	raw, issued, err := s.issue(ctx, issue{
		validFor: req.GetValidForSeconds(),
		allowed: func() error {
			return s.cfg.Access.GenerateUserToken(ctx, req.GetName(), req.GetGroups(), req.GetForce())
		},
		sign: func(i *token.Issuer, d time.Duration) (string, token.Token, error) {
			return i.User(req.GetName(), req.GetGroups(), d)
		},
	})
	if err != nil {
		return nil, err
	}
	return &meridianv1.GenerateUserTokenResponse{Token: raw, Id: issued.ID}, nil
}

// GenerateDataplaneToken issues a token by which dataplanes register.
func (s *Service) GenerateDataplaneToken(ctx context.Context, req *meridianv1.GenerateDataplaneTokenRequest) (*meridianv1.GenerateDataplaneTokenResponse, error) {
	if err := s.earlyToken(ctx, resource.AccessGenerateDataplaneToken, resource.MeshName(req.GetMesh())); err != nil {
		return nil, err
	}
	var tags map[string][]string
	if err := s.work(ctx, func() (err error) {
		tags, err = checkDataplane(req)
		return err
	}); err != nil {
		return nil, err
	}
	raw, issued, err := s.issue(ctx, issue{
		validFor: req.GetValidForSeconds(),
		allowed: func() error {
			if err := s.cfg.Access.GenerateDataplaneToken(ctx, rbac.Token{Mesh: resource.MeshName(req.GetMesh()), Name: req.GetName(), Tags: tags}); err != nil {
				return err
			}
			return s.checkMesh(req.GetMesh())
		},
		sign: func(i *token.Issuer, d time.Duration) (string, token.Token, error) {
			return i.Dataplane(req.GetMesh(), req.GetName(), tags, d)
		},
	})
	if err != nil {
		return nil, err
	}
	return &meridianv1.GenerateDataplaneTokenResponse{Token: raw, Id: issued.ID}, nil
}

// Zone issues a token for a zone, and creates the zone if there is none and the
// token is for its control plane: the access that issues the token covers that
// (§6.2). zone is the resource as it would be created.
func (s *Service) Zone(ctx context.Context, zone *resource.Resource, scope []string, validForSeconds int64) (string, error) {
	if err := s.work(ctx, func() (err error) {
		scope, err = checkScope(scope)
		return err
	}); err != nil {
		return "", err
	}
	i := issue{
		validFor: validForSeconds,
		allowed:  func() error { return s.cfg.Access.GenerateZoneToken(ctx, scope...) },
		sign: func(i *token.Issuer, d time.Duration) (string, token.Token, error) {
			return i.Zone(zone.Key().Name, scope, d)
		},
	}
	if slices.Contains(scope, token.ScopeControlPlane) {
		i.ensure = zone
	}
	raw, _, err := s.issue(ctx, i)
	return raw, err
}

// earlyToken refuses a caller whom no rule lets issue such a token, on the newest
// state, before anything is made of the request.
func (s *Service) earlyToken(ctx context.Context, access resource.Access, mesh resource.MeshName) error {
	return s.early(ctx, func() error { return s.cfg.Access.EarlyToken(ctx, access, mesh) })
}

// earlyKind is earlyToken for the resources of a kind, whatever their names.
func (s *Service) earlyKind(ctx context.Context, kind resource.Kind) error {
	return s.early(ctx, func() error { return s.cfg.Access.Early(ctx, false, resource.Key{Kind: kind}) })
}

func (s *Service) early(ctx context.Context, ask func() error) error {
	if ask() == nil {
		return nil
	}
	if err := commit.Newest(ctx, s.cfg.Writer); err != nil {
		return err
	}
	return ask()
}

// issue is a token to be issued.
type issue struct {
	validFor int64 // seconds
	allowed  func() error
	sign     func(*token.Issuer, time.Duration) (string, token.Token, error)
	// ensure, unless nil, is created with the record if it does not exist.
	ensure *resource.Resource
}

// issue signs a token and stores its record, on the condition that the access
// rules are still those that it was decided on.
func (s *Service) issue(ctx context.Context, i issue) (string, token.Token, error) {
	validFor, err := validity(i.validFor)
	if err != nil {
		return "", token.Token{}, err
	}
	var (
		raw    string
		signed token.Token
	)
	_, err = s.decided(ctx, func() (commit.Batch, error) {
		decidedOn := s.cfg.Local().AccessRevision()
		if err := i.allowed(); err != nil {
			return commit.Batch{}, err
		}
		if raw, signed, err = i.sign(s.cfg.Ring.Issuer(), validFor); err != nil {
			return commit.Batch{}, rpcerr.New(rpcerr.Invalid, "BAD_TOKEN_REQUEST", "%w", err)
		}
		txn, err := s.recording(ctx, signed, i.ensure)
		txn.AccessRevision = &decidedOn
		return commit.Batch{Txn: txn}, err
	})
	if err != nil {
		return "", token.Token{}, err
	}
	return raw, signed, nil
}

// recording returns the transaction that stores a token's record and removes
// records that have outlived their use.
func (s *Service) recording(ctx context.Context, signed token.Token, ensure *resource.Resource) (store.Txn, error) {
	record, err := token.Record(signed, authn.PrincipalFrom(ctx).Name)
	if err != nil {
		return store.Txn{}, err
	}
	txn := store.Txn{
		Time: s.cfg.Now(), Ops: []store.Op{store.Put(record)},
		Preconditions: []store.Precondition{{Key: record.Key()}},
	}
	for _, key := range s.cfg.Ring.Expired() {
		txn.Ops = append(txn.Ops, store.Delete(key))
	}
	if ensure == nil {
		return txn, nil
	}
	if _, ok := s.cfg.Local().Get(ensure.Key()); !ok {
		txn.Ops = append(txn.Ops, store.Put(ensure))
		txn.Preconditions = append(txn.Preconditions, store.Precondition{Key: ensure.Key()})
	}
	return txn, nil
}

// ListTokens streams the records of issued tokens. They hold no secret, so
// who may read everything reads them (§6.1).
func (s *Service) ListTokens(req *meridianv1.ListTokensRequest, stream grpc.ServerStreamingServer[meridianv1.ListTokensResponse]) error {
	use, err := s.use(req.GetKind(), true)
	if err != nil {
		return err
	}
	if err := commit.Newest(stream.Context(), s.cfg.Writer); err != nil {
		return err
	}
	ctx := stream.Context()
	var issued []token.Issued
	if err := s.work(ctx, func() error {
		issued = slices.DeleteFunc(s.cfg.Ring.Issued(use), func(i token.Issued) bool {
			return ctx.Err() != nil || s.cfg.Access.Read(ctx, i.Resource) != nil
		})
		return ctx.Err()
	}); err != nil {
		return err
	}
	now := s.cfg.Now()
	for chunk := range slices.Chunk(issued, listPart) {
		part := &meridianv1.ListTokensResponse{}
		if err := s.work(ctx, func() error {
			for _, i := range chunk {
				part.Tokens = append(part.Tokens, encode(i, now))
			}
			return nil
		}); err != nil {
			return err
		}
		// No turn is held while the reader is waited for.
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return nil
}

func encode(t token.Issued, now time.Time) *meridianv1.IssuedToken {
	out := &meridianv1.IssuedToken{
		Id: t.ID, Kind: t.Use, Subject: t.Subject, State: "active", KeySerial: t.Serial, Issuer: t.Issuer,
		Groups: t.Groups, Scope: t.Scope, Tags: encodeTags(t.Tags), UsedBy: t.UsedBy,
	}
	if t.KeyDeleted {
		out.State = "key deleted"
	}
	if issued, err := time.Parse(time.RFC3339, t.Issued); err == nil {
		out.Issued = timestamppb.New(issued)
	}
	if expires, err := time.Parse(time.RFC3339, t.Expires); err == nil {
		out.Expires = timestamppb.New(expires)
		if !now.Before(expires) {
			out.State = "expired"
		}
	}
	if t.UsedBy != "" {
		out.State = "used"
	}
	if t.RevokedNow {
		out.State = "revoked"
	}
	return out
}
