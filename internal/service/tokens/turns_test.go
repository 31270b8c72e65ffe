package tokens

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/batch"
	"meridian/internal/commit"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// calls are requests of every method that works, by name.
func (f *fixture) calls(revocable string) map[string]func(ctx context.Context) error {
	zone := resourcetest.Build(f.t, "Zone", "", "east", "{}")
	return map[string]func(ctx context.Context) error{
		"user token": func(ctx context.Context) error {
			_, err := f.GenerateUserToken(ctx, &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
			return err
		},
		"dataplane token": func(ctx context.Context) error {
			_, err := f.GenerateDataplaneToken(ctx, &meridianv1.GenerateDataplaneTokenRequest{Mesh: "default", ValidForSeconds: hour})
			return err
		},
		"zone token": func(ctx context.Context) error {
			_, err := f.Zone(ctx, zone, nil, hour)
			return err
		},
		"server token": func(ctx context.Context) error {
			_, err := f.Server(ctx, hour)
			return err
		},
		"rotation": func(ctx context.Context) error {
			_, err := f.RotateKey(ctx, &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "rotation"})
			return err
		},
		"revocation": func(ctx context.Context) error {
			_, err := f.RevokeToken(ctx, &meridianv1.RevokeTokenRequest{Id: revocable, RequestId: "revocation"})
			return err
		},
		"admin token": func(ctx context.Context) error {
			_, err := f.ReissueAdminToken(ctx, &meridianv1.ReissueAdminTokenRequest{RequestId: "reissue"})
			return err
		},
		"list": func(ctx context.Context) error {
			return f.ListTokens(&meridianv1.ListTokensRequest{}, &collect{Ctx: ctx})
		},
	}
}

// revocable issues a token to revoke.
func (f *fixture) revocable() string {
	f.t.Helper()
	issued, err := f.GenerateUserToken(admin(f.t), &meridianv1.GenerateUserTokenRequest{Name: "eve", ValidForSeconds: hour})
	require.NoError(f.t, err)
	return issued.GetId()
}

// watched is access control that counts the decisions that are made in turn, and
// those that are not. Early ones are not counted.
type watched struct {
	*authz.Authorizer
	turns         *turns.Turns
	within, apart int
}

func (w *watched) running() bool {
	work, _ := w.turns.Stats()
	return work.Running > 0
}

func (w *watched) count() {
	if w.running() {
		w.within++
	} else {
		w.apart++
	}
}

func (w *watched) GenerateUserToken(ctx context.Context, name string, groups []string, force bool) error {
	w.count()
	return w.Authorizer.GenerateUserToken(ctx, name, groups, force)
}

func (w *watched) GenerateDataplaneToken(ctx context.Context, token rbac.Token) error {
	w.count()
	return w.Authorizer.GenerateDataplaneToken(ctx, token)
}

func (w *watched) GenerateZoneToken(ctx context.Context, scope ...string) error {
	w.count()
	return w.Authorizer.GenerateZoneToken(ctx, scope...)
}

func (w *watched) RequireAdmin(ctx context.Context) error {
	if w.running() {
		w.within++ // else it is an early one
	}
	return w.Authorizer.RequireAdmin(ctx)
}

func (w *watched) Read(ctx context.Context, r *resource.Resource) error {
	w.count()
	return w.Authorizer.Read(ctx, r)
}

func (w *watched) WriteOwn(ctx context.Context, ops []store.Op) (authz.Permit, error) {
	w.count()
	return w.Authorizer.WriteOwn(ctx, ops)
}

// Every decision is made in turn, and no turn is held while the log is waited for.
func TestDecisionsAreMadeInTurn(t *testing.T) {
	f := newServerFixture(t)
	id := f.revocable()
	w := &watched{Authorizer: authz.New(f.store.View), turns: f.cfg.Turns}
	f.cfg.Access = w
	waits := 0
	f.writer.Before(func(store.Txn) error {
		waits++
		require.False(t, w.running(), "a turn is held while a batch is proposed")
		return nil
	})
	f.writer.Reading(func() error {
		waits++
		require.False(t, w.running(), "a turn is held while the newest state is waited for")
		return nil
	})
	for name, call := range f.calls(id) {
		w.within, waits = 0, 0
		require.NoError(t, call(admin(t)), name)
		require.Positive(t, w.within, name)
		require.Zero(t, w.apart, name)
		require.Positive(t, waits, name)
	}
}

// A caller who has as many pieces waiting as it may is refused by every method, and
// another one is served.
func TestRequestsOfOneCallerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newServerFixture(t)
		id := f.revocable()
		revision := f.store.Revision()
		limits, end := turns.DefaultLimits(), make(chan struct{})
		for range limits.PerCaller + limits.Waiting {
			go func() {
				_ = f.cfg.Turns.Work(admin(t), 0, func() error {
					<-end
					return nil
				})
			}()
		}
		synctest.Wait()
		for name, call := range f.calls(id) {
			err := call(admin(t))
			require.True(t, rpcerr.HasReason(err, turns.ReasonWaiting), "%s: %v", name, err)
		}
		require.Equal(t, revision, f.store.Revision(), "nothing is written")
		for name, call := range f.calls(id) {
			require.NoError(t, call(as(t, "second", authn.AdminGroup)), name)
		}
		close(end)
		synctest.Wait()
	})
}

// A request that is sent again after its id was forgotten is refused, for it may
// have taken effect; one that was first sent after anything that is forgotten is
// made.
func TestAForgottenRequestIsNotRepeated(t *testing.T) {
	opts := store.DefaultOptions()
	opts.Requests.Min = 0
	f := newFixtureOn(t, store.New(opts), nil)
	id := f.revocable()
	sent := func(age time.Duration) context.Context {
		md, _ := metadata.FromOutgoingContext(batch.WithAge(t.Context(), age))
		return metadata.NewIncomingContext(admin(t), md)
	}
	rotate := func(ctx context.Context, id string) error {
		_, err := f.RotateKey(ctx, &meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: id})
		return err
	}
	// A jump of the clock counts a third of MaxAge at most.
	pass := func(id string) {
		f.clock = f.clock.Add(5 * time.Minute)
		require.NoError(t, rotate(admin(t), id))
		f.clock = f.clock.Add(5 * time.Minute)
	}
	require.NoError(t, rotate(admin(t), "first"))
	pass("between-1")
	require.NoError(t, rotate(admin(t), "second"))
	keys := f.store.View().Count(resource.KindGlobalSecret)
	require.NoError(t, rotate(sent(10*time.Minute), "first"), "it is remembered")
	require.Equal(t, keys, f.store.View().Count(resource.KindGlobalSecret))
	pass("between-2")
	require.NoError(t, rotate(admin(t), "third"))

	revision := f.store.Revision()
	calls := f.calls(id)
	calls["rotation"] = func(ctx context.Context) error { return rotate(ctx, "first") }
	for _, name := range []string{"rotation", "revocation", "admin token"} {
		err := calls[name](sent(20 * time.Minute))
		require.True(t, rpcerr.HasReason(err, commit.ReasonForgotten), "%s: %v", name, err)
		require.Equal(t, rpcerr.EffectUnknown, rpcerr.EffectOf(err), name)
	}
	require.Equal(t, revision, f.store.Revision(), "nothing is written")
	for _, name := range []string{"revocation", "admin token"} {
		require.NoError(t, calls[name](sent(10*time.Minute)), "no id of that time is forgotten: it was not applied")
	}
}
