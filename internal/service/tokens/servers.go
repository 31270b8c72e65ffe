package tokens

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/commit"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// Why a server token does not let a server in, for programs.
const (
	ReasonTokenUsed       = "TOKEN_USED"
	ReasonTokenUnrecorded = "TOKEN_UNRECORDED"
)

// Server issues a token by which one new server may join this global. It takes
// membership of mesh-system:admin (§6.2): who joins holds everything.
func (s *Service) Server(ctx context.Context, validForSeconds int64) (string, error) {
	raw, _, err := s.issue(ctx, issue{
		validFor: validForSeconds,
		allowed:  func() error { return s.cfg.Access.RequireAdmin(ctx) },
		sign: func(i *token.Issuer, d time.Duration) (string, token.Token, error) {
			return i.Server(d)
		},
	})
	return raw, err
}

// UseUp records that a server of that name joins by a verified server token, which
// no other server can use after that. The same attempt, identified by its request
// id and the server's name, may be repeated, as its answer can be lost. A token
// without a record is refused.
func (s *Service) UseUp(ctx context.Context, presented token.Token, requestID, name string) error {
	_, err := commit.WriteNewest(ctx, s.cfg.Writer, func() (commit.Batch, error) {
		return s.using(presented, requestID, name)
	})
	return err
}

// using decides that a server of that name uses up a server token: a batch
// without operations where the same attempt has done so before.
func (s *Service) using(presented token.Token, requestID, name string) (commit.Batch, error) {
	stored, record, ok := s.cfg.Ring.Find(presented.ID)
	switch {
	case !ok || token.Use(record.Use) != token.ForServer || record.ID != presented.ID:
		return commit.Batch{}, rpcerr.New(rpcerr.Denied, ReasonTokenUnrecorded,
			"Access Denied: the server token %s is not on record here, so it cannot be noted as used; issue another with `meridian generate server-token`", presented.ID)
	case record.UsedBy == name && record.UsedFor == requestID:
		return commit.Batch{}, nil
	case record.UsedBy != "":
		return commit.Batch{}, rpcerr.New(rpcerr.Denied, ReasonTokenUsed,
			"Access Denied: the server token %s was used up by server %q on %s: every new server takes a token of its own; issue another with `meridian generate server-token`",
			presented.ID, record.UsedBy, stored.Meta().ModificationTime.UTC().Format(time.RFC3339))
	}
	if err := s.recheck(presented); err != nil {
		return commit.Batch{}, err
	}
	used := *record
	used.UsedBy, used.UsedFor = name, requestID
	text, err := json.Marshal(used)
	if err != nil {
		return commit.Batch{}, fmt.Errorf("encode the record of token %s: %w", presented.ID, err)
	}
	next, _, err := resource.Build(resource.Meta{Key: stored.Key(), Labels: stored.Meta().Labels}, text)
	if err != nil {
		return commit.Batch{}, fmt.Errorf("note the use of token %s: %w", presented.ID, err)
	}
	return commit.Batch{Txn: store.Txn{
		RequestID: "join/" + presented.ID + "/" + requestID, Time: s.cfg.Now(), Ops: []store.Op{store.Put(next)},
		Preconditions: []store.Precondition{{Key: stored.Key(), Version: stored.Meta().Version, Revision: stored.Meta().Revision}},
	}}, nil
}

// recheck asks again, on the newest state, whether a token still holds: it was
// verified on whatever this server had applied when the call came in.
func (s *Service) recheck(presented token.Token) error {
	if err := s.cfg.Ring.Verifier().Recheck(presented); err != nil {
		return rpcerr.New(rpcerr.Unauthenticated, authn.ReasonBadToken, "not authenticated: %w", err)
	}
	return nil
}
