package tokens

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/batch"
	"meridian/internal/commit"
	"meridian/internal/identity"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// ListKeys returns the signing keys as they may be shown. Their names are in every
// token, so who may read public keys reads them (§6.1).
func (s *Service) ListKeys(ctx context.Context, req *meridianv1.ListKeysRequest) (*meridianv1.ListKeysResponse, error) {
	use, err := s.use(req.GetKind(), true)
	if err != nil {
		return nil, err
	}
	if err := commit.Newest(ctx, s.cfg.Writer); err != nil {
		return nil, err
	}
	response := &meridianv1.ListKeysResponse{}
	err = s.work(ctx, func() error {
		for _, key := range s.cfg.Ring.List(use) {
			public := resource.New(resource.Meta{Key: resource.Key{Kind: resource.KindSigningKey, Name: key.ID.String()}}, &resource.SigningKey{}, nil)
			if s.cfg.Access.Read(ctx, public) != nil {
				continue
			}
			response.Keys = append(response.Keys, &meridianv1.ListedKey{
				Id: key.ID.String(), Kind: string(key.ID.Use), Serial: key.ID.Serial, Issuer: key.ID.Issuer, State: string(key.State),
				Created: timestamppb.New(key.Created), Tokens: uint64(key.Tokens), //nolint:gosec // a count
			})
		}
		return ctx.Err()
	})
	return response, err
}

// RotateKey makes the next key of a use (§6.8: the highest serial
// signs, all verify). It takes what writing the key's resources takes.
func (s *Service) RotateKey(ctx context.Context, req *meridianv1.RotateKeyRequest) (*meridianv1.RotateKeyResponse, error) {
	use, err := s.use(req.GetKind(), false)
	if err != nil {
		return nil, err
	}
	if err := s.earlyKind(ctx, resource.KindGlobalSecret); err != nil {
		return nil, err // before a key is made, which takes long
	}
	result, err := s.write(ctx, req.GetRequestId(), &meridianv1.RotateKeyRequest{Kind: req.GetKind()}, s.cfg.Access.WriteOwn, func() ([]*resource.Resource, error) {
		_, made, err := s.cfg.Ring.Rotation(use)
		return made, err
	})
	if err != nil {
		return nil, err
	}
	// What was written counts: an earlier attempt may have made another key.
	id, err := token.ParseKeyID(result.Results[0].Key.Name)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "REQUEST_ID_REUSED", "request_id was used for another request")
	}
	return &meridianv1.RotateKeyResponse{Key: id.String(), Serial: id.Serial, Revision: uint64(result.Revision)}, nil
}

// RevokeToken ends a token that was issued here. It takes what writing the
// revocation takes.
func (s *Service) RevokeToken(ctx context.Context, req *meridianv1.RevokeTokenRequest) (*meridianv1.RevokeTokenResponse, error) {
	if err := commit.Newest(ctx, s.cfg.Writer); err != nil {
		return nil, err
	}
	if err := s.cfg.Access.Early(ctx, false, resource.Key{Kind: resource.KindTokenRevocation}); err != nil {
		return nil, err
	}
	_, record, ok := s.cfg.Ring.Find(req.GetId())
	if !ok {
		return nil, rpcerr.New(rpcerr.NotFound, "TOKEN_UNKNOWN",
			"no token with the id %q was issued here; `meridian tokens list` shows those that were, and a TokenRevocation on the control plane that issued it ends any other", clip(req.GetId()))
	}
	response := &meridianv1.RevokeTokenResponse{Token: encode(token.Issued{IssuedToken: record, RevokedNow: true}, s.cfg.Now())}
	if s.cfg.Ring.Verifier().Revoked(token.Use(record.Use), record.ID) {
		response.AlreadyRevoked, response.Revision = true, uint64(s.cfg.Local().Revision())
		s.undenied(record, response)
		return response, nil
	}
	result, err := s.write(ctx, req.GetRequestId(), &meridianv1.RevokeTokenRequest{Id: req.GetId()}, s.cfg.Access.WriteOwn, func() ([]*resource.Resource, error) {
		revocation, err := s.cfg.Ring.Revocation(record, req.GetReason())
		return []*resource.Resource{revocation}, err
	})
	response.Revision = uint64(result.Revision)
	s.undenied(record, response)
	return response, err
}

// undenied says how many certificates servers accept in the mesh of a token of dataplanes
// although their tokens are revoked.
func (s *Service) undenied(record *resource.IssuedToken, response *meridianv1.RevokeTokenResponse) {
	if mesh := identity.MeshOf(record); mesh != "" {
		_, left := s.cfg.Ring.Revocations().Denied(mesh)
		response.Accepted, response.DeniedAtMost = uint64(left), identity.MaxDenied //nolint:gosec // a count
	}
}

// ReissueAdminToken replaces the bootstrap admin token. Of two requests at the
// same time, the second replaces the token of the first.
func (s *Service) ReissueAdminToken(ctx context.Context, req *meridianv1.ReissueAdminTokenRequest) (*meridianv1.ReissueAdminTokenResponse, error) {
	allowed := func(ctx context.Context, ops []store.Op) (authz.Permit, error) {
		if err := s.cfg.Access.RequireAdmin(ctx); err != nil {
			return authz.Permit{}, err
		}
		return s.cfg.Access.WriteOwn(ctx, ops)
	}
	if err := s.cfg.Access.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	result, err := s.write(ctx, req.GetRequestId(), &meridianv1.ReissueAdminTokenRequest{}, allowed, func() ([]*resource.Resource, error) {
		return s.cfg.Ring.AdminReissue(authn.PrincipalFrom(ctx).Name)
	})
	if err != nil {
		return nil, err
	}
	// What was written counts: an earlier attempt may have made another token.
	raw := s.cfg.Ring.AdminToken()
	issued, err := s.cfg.Ring.Verifier().User(raw)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Unavailable, "ADMIN_TOKEN_REPLACED", "the admin token was replaced again meanwhile: read it, or reissue it once more")
	}
	return &meridianv1.ReissueAdminTokenResponse{Token: raw, Id: issued.ID, Revision: uint64(result.Revision)}, nil
}

// write has a batch made, asks access control for it and writes it. request is
// what is asked for under the id.
func (s *Service) write(ctx context.Context, requestID string, request proto.Message, allowed allowance, making func() ([]*resource.Resource, error)) (store.Result, error) {
	if requestID == "" || len(requestID) > 128 {
		return store.Result{}, rpcerr.New(rpcerr.Invalid, "REQUEST_ID_MISSING", "request_id is required, of at most 128 characters, so that a retry takes effect once")
	}
	attempt, err := authn.ScopedRequestID(ctx, requestID, request)
	if err != nil {
		return store.Result{}, err
	}
	memory := commit.Memory{Remembers: s.cfg.Remembers, Now: s.cfg.Now}
	if err := memory.Check(ctx, s.cfg.Writer, attempt, batch.Age(ctx)); err != nil {
		return store.Result{}, err
	}
	return s.decided(ctx, func() (commit.Batch, error) {
		resources, err := making()
		if err != nil {
			return commit.Batch{}, err
		}
		txn := store.Txn{RequestID: attempt, Time: s.cfg.Now()}
		for _, r := range resources {
			txn.Ops = append(txn.Ops, store.Put(r))
		}
		permit, err := allowed(ctx, txn.Ops)
		txn.AccessRevision, txn.Preconditions = &permit.AccessRevision, permit.Preconditions
		return commit.Batch{Txn: txn}, err
	})
}

// allowance asks access control for a batch.
type allowance func(ctx context.Context, ops []store.Op) (authz.Permit, error)

// use reads a kind of token, of those that this control plane issues.
func (s *Service) use(kind string, optional bool) (token.Use, error) {
	if kind == "" && optional {
		return "", nil
	}
	var issued []string
	for _, use := range s.cfg.Uses {
		if string(use) == kind {
			return use, nil
		}
		issued = append(issued, string(use))
	}
	return "", rpcerr.New(rpcerr.Invalid, "UNKNOWN_TOKEN_KIND", "this control plane issues no %q; it issues %s", clip(kind), strings.Join(issued, ", "))
}
