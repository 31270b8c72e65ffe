package admin

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/grpctest"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

type (
	applies = grpctest.Stream[meridianv1.ApplyRequest, meridianv1.ApplyResponse]
	deletes = grpctest.Stream[meridianv1.DeleteRequest, meridianv1.DeleteResponse]
)

// counting is a secured service that counts what is made of requests.
type counting struct {
	*secured
	// decoded counts documents that were decoded to their end, previewed the
	// batches that were advised on.
	decoded, previewed int
	conditions         *condition.Compiler
}

func newCounting(t *testing.T) *counting {
	t.Helper()
	conditions, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	c := &counting{secured: newSecured(t), conditions: conditions}
	preview := c.cfg.Preview
	c.cfg.Preview = func(txn store.Txn) func() (store.Result, store.Reader) {
		c.previewed++
		return preview(txn)
	}
	c.cfg.Check = func(spec resource.Spec) []resource.Problem {
		c.decoded++
		return conditions.Check(spec)
	}
	return c
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

var roleless = authn.WithPrincipal(context.Background(), authn.UserPrincipal("roleless", nil))

// authPolicy returns a policy with many conditions' worth of text.
func authPolicy(name, when string) *meridianv1.Resource {
	return message("AuthPolicy", "default", name, fmt.Sprintf(
		`{"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}, "defaults": {"when": %q, "rules": {"metadata": {"a": 1}}}}`, when))
}

// A caller who may write nothing of what a message names is refused by its first
// message: the others are not received, and nothing is decoded.
func TestWhoHoldsNothingIsRefusedEarly(t *testing.T) {
	c := newCounting(t)
	part := func(i int) *meridianv1.ApplyRequest {
		return &meridianv1.ApplyRequest{RequestId: "1", Resources: []*meridianv1.Resource{authPolicy(fmt.Sprint("p", i), strings.Repeat("true||", 500)+"true")}}
	}
	for name, user := range map[string]context.Context{"no role": roleless, "other kinds": bob} {
		t.Run(name, func(t *testing.T) {
			s := &applies{Ctx: user}
			for i := range 100 {
				s.Requests = append(s.Requests, part(i))
			}
			var err error
			bytes := allocated(func() { err = c.Apply(s) })
			requireCode(t, err, rpcerr.Denied, `CREATE on AuthPolicy "p0" in mesh "default"`)
			require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
			require.LessOrEqual(t, s.Received, 2, "the second tells whether the first was all")
			require.Zero(t, c.decoded)
			require.Zero(t, c.previewed)
			require.Less(t, bytes, uint64(1<<20))
		})
	}
	// What is allowed in the first message does not allow the others.
	s := &applies{Ctx: bob, Requests: []*meridianv1.ApplyRequest{
		{RequestId: "2", Resources: []*meridianv1.Resource{permission("a", "backend")}}, part(0), part(1), part(2), part(3),
	}}
	requireCode(t, c.Apply(s), rpcerr.Denied, `AuthPolicy "p0"`)
	require.LessOrEqual(t, s.Received, 3)
	require.Zero(t, c.decoded)

	d := &deletes{Ctx: bob, Requests: []*meridianv1.DeleteRequest{
		{RequestId: "3", Keys: []*meridianv1.ResourceKey{{Kind: "TrafficPermission", Mesh: "default", Name: "not-there"}}}, {}, {},
	}}
	requireCode(t, c.Delete(d), rpcerr.Denied, `DELETE on TrafficPermission "not-there"`, "it grants CREATE, UPDATE, not DELETE")
	require.LessOrEqual(t, d.Received, 2)
}

// A field that this release does not know may be a condition on the write, as
// if_version of earlier releases was: no message with one is written, wherever it
// stands in the batch.
func TestUnknownFieldsAreRefused(t *testing.T) {
	c := newCounting(t)
	old := func(m proto.Message) {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 7))
	}
	first := func() *meridianv1.ApplyRequest {
		return &meridianv1.ApplyRequest{RequestId: "1", Resources: []*meridianv1.Resource{permission("a", "backend")}}
	}
	last := &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{permission("b", "backend")}}
	old(last)
	e := requireCode(t, c.Apply(&applies{Ctx: bob, Requests: []*meridianv1.ApplyRequest{first(), last}}), rpcerr.Invalid, "use the same release")
	require.Equal(t, "UNKNOWN_FIELDS", e.Reason)
	require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(e))
	require.Zero(t, c.View().Count("TrafficPermission"))
	require.NoError(t, c.Apply(&applies{Ctx: bob, Requests: []*meridianv1.ApplyRequest{first()}}))

	remove := &meridianv1.DeleteRequest{RequestId: "2", Keys: []*meridianv1.ResourceKey{{Kind: "TrafficPermission", Mesh: "default", Name: "a"}}}
	old(remove)
	requireCode(t, c.Delete(&deletes{Ctx: root, Requests: []*meridianv1.DeleteRequest{remove}}), rpcerr.Invalid, "use the same release")
	require.Equal(t, 1, c.View().Count("TrafficPermission"))
}

// Kinds that do not exist are suggested to those who may write something, and not
// for every document of a flood.
func TestUnknownKinds(t *testing.T) {
	c := newCounting(t)
	batch := func(n int) []*meridianv1.ApplyRequest {
		req := &meridianv1.ApplyRequest{RequestId: "1"}
		for i := range n {
			req.Resources = append(req.Resources, &meridianv1.Resource{Kind: fmt.Sprintf("MeshTrafficPermision%d", i), Name: "x"})
		}
		return []*meridianv1.ApplyRequest{req}
	}
	requireCode(t, c.Apply(&applies{Ctx: roleless, Requests: batch(9000)}), rpcerr.Denied, "MeshTrafficPermision0", "and 8995 more resources")
	var err error
	bytes := allocated(func() { err = c.Apply(&applies{Ctx: bob, Requests: batch(9000)}) })
	e := requireCode(t, err, rpcerr.Invalid, "did you mean MeshTrafficPermission?")
	require.Len(t, e.Violations, maxViolations, "the others are not looked at")
	require.Less(t, bytes, uint64(8<<20))
	long := strings.Repeat("x", 1<<20)
	e = requireCode(t, c.Apply(&applies{Ctx: bob, Requests: []*meridianv1.ApplyRequest{{RequestId: "2", Resources: []*meridianv1.Resource{{Kind: long, Mesh: long, Name: long}}}}}), rpcerr.Invalid)
	require.Less(t, len(e.Message)+len(e.Violations[0].Description), 2048)
	e = requireCode(t, c.Apply(&applies{Ctx: roleless, Requests: []*meridianv1.ApplyRequest{{RequestId: "2", Resources: []*meridianv1.Resource{{Kind: long, Mesh: long, Name: long}}}}}), rpcerr.Denied)
	require.Less(t, len(e.Message), 2048)
}

// A request that was applied is answered again to who repeats it, whatever has
// become of the rights since.
func TestARetryIsAnsweredAfterRightsAreLost(t *testing.T) {
	c := newCounting(t)
	apply := func() (*applies, error) {
		s := &applies{Ctx: bob, Requests: []*meridianv1.ApplyRequest{{RequestId: "1", Resources: []*meridianv1.Resource{permission("a", "backend")}}}}
		return s, c.Apply(s)
	}
	first, err := apply()
	require.NoError(t, err)
	c.unbind()
	again, err := apply()
	require.NoError(t, err)
	require.Equal(t, first.Sent[0].GetRevision(), again.Sent[0].GetRevision())
	require.Equal(t, outcomes(first.Sent[0].GetResults()), outcomes(again.Sent[0].GetResults()))
	requireCode(t, c.Apply(&applies{Ctx: bob, Requests: []*meridianv1.ApplyRequest{{RequestId: "2", Resources: []*meridianv1.Resource{permission("a", "backend")}}}}), rpcerr.Denied)
}

// A right that another server has just given counts: the early refusal, too, is one
// on the newest state.
func TestEarlyRefusalsAreOnTheNewestState(t *testing.T) {
	c := newCounting(t)
	c.unbind()
	read := 0
	c.Reading(func() error {
		if read++; read == 1 {
			c.change(c.op(bound))
		}
		return nil
	})
	require.NoError(t, c.Apply(&applies{Ctx: bob, Requests: []*meridianv1.ApplyRequest{{RequestId: "1", Resources: []*meridianv1.Resource{permission("a", "backend")}}}}))
	require.Positive(t, read)
}

// Documents are decoded once per request, however often it is decided, and what is
// refused for its content is not advised on.
func TestDocumentsAreDecodedOnce(t *testing.T) {
	c := newCounting(t)
	batch := func(id, destination string) []*meridianv1.ApplyRequest {
		req := &meridianv1.ApplyRequest{RequestId: id}
		for i := range 10 {
			req.Resources = append(req.Resources, permission(fmt.Sprint("p", i), destination))
		}
		return []*meridianv1.ApplyRequest{req}
	}
	requireCode(t, c.Apply(&applies{Ctx: bob, Requests: batch("1", "other")}), rpcerr.Denied)
	require.Equal(t, 10, c.decoded)
	require.Zero(t, c.previewed)
	c.Once(func() { c.change(c.op(permission("p3", "backend"))) }) // so that it is decided again
	require.NoError(t, c.Apply(&applies{Ctx: bob, Requests: batch("2", "backend")}))
	require.Equal(t, 20, c.decoded)
}

// Refused requests leave nothing behind, whatever their expressions: 24 batches of
// 64 KiB of them once took 3.7 GB for good.
func TestRefusedExpressionsLeaveNothing(t *testing.T) {
	c := newCounting(t)
	attack := func(user context.Context) {
		for i := range 24 {
			req := &meridianv1.ApplyRequest{RequestId: fmt.Sprint(i), DryRun: true}
			for j := range 16 {
				req.Resources = append(req.Resources, authPolicy(fmt.Sprint("p", j), fmt.Sprintf(`"%d-%d".matches("(a{100}){10}")`, i, j)+strings.Repeat(` || "a".matches("(a{90}){10}")`, 2)))
			}
			requireCode(t, c.Apply(&applies{Ctx: user, Requests: []*meridianv1.ApplyRequest{req}}), rpcerr.Denied)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	attack(roleless)
	runtime.ReadMemStats(&after)
	require.Zero(t, c.decoded)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), "bytes allocated for who holds nothing")

	// Who may write some of them is refused for the content, after it was compiled.
	c.must("editor", message("AccessRole", "", "editor", `{"rules": [{"types": ["AuthPolicy"], "access": ["CREATE"], "when": [{"targetRef": {"kind": "HTTPRoute", "name": "mine"}}]}]}`),
		message("AccessRoleBinding", "", "roleless", `{"subjects": [{"type": "User", "name": "roleless"}], "roles": ["editor"]}`))
	decoded := c.decoded
	attack(roleless)
	require.Equal(t, 24*16, c.decoded-decoded)
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(8<<20), "bytes kept")
}

// The work for a caller that has gone ends.
func TestWorkEndsWithTheCaller(t *testing.T) {
	c := newCounting(t)
	ctx, leave := context.WithCancel(bob)
	defer leave()
	check := c.cfg.Check
	c.cfg.Check = func(spec resource.Spec) []resource.Problem {
		if c.decoded == 3 {
			leave()
		}
		return check(spec)
	}
	req := &meridianv1.ApplyRequest{RequestId: "1"}
	for i := range 100 {
		req.Resources = append(req.Resources, permission(fmt.Sprint("p", i), "backend"))
	}
	require.ErrorIs(t, c.Apply(&applies{Ctx: ctx, Requests: []*meridianv1.ApplyRequest{req}}), context.Canceled)
	require.Equal(t, 4, c.decoded)
	require.Zero(t, c.View().Count("TrafficPermission"))
}
