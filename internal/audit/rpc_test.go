package audit

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/grpctest"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

var errUnknown = errors.New("outcome unknown")

// node answers every proposal with what it is set to.
type node struct {
	result store.Result
	err    error
}

func (n *node) Propose(context.Context, store.Txn) (store.Result, error) { return n.result, n.err }
func (n *node) Read(context.Context) (resource.Revision, error)          { return 0, nil }

// writer returns the Writer of the server a.
func writer(n Node, log *Log) *Writer {
	w := NewWriter("a", time.Now, errUnknown)
	w.Open(n, log)
	return w
}

// because is a rule that allows something.
type because string

func (b because) String() string { return string(b) }

// request is the context of a call by bob.
func request(t *testing.T) context.Context {
	p := authn.UserPrincipal("bob", []string{"team-a"})
	p.Token = &token.Token{ID: "id-1"}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4000}})
	return authn.WithPrincipal(ctx, p)
}

// records returns all records of the writes in a log's current file.
func records(t *testing.T, dir string) []Record {
	t.Helper()
	return recordsOf(t, dir, "")
}

func recordsOf(t *testing.T, dir, chain string) []Record {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, baseOf(chain)+fileSuffix))
	require.NoError(t, err)
	return decodeAll(t, data)
}

func decodeAll(t *testing.T, data []byte) []Record {
	t.Helper()
	var out []Record
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if line == "" {
			continue
		}
		r, _, err := decodeRecord([]byte(line))
		require.NoError(t, err)
		if len(r.Targets) == 0 || r.Targets[0].Kind != "snapshot" {
			require.Equal(t, r.Revision, writeOf([]byte(line)).revision)
			if r.Revision > 0 && r.Part <= 1 {
				require.Equal(t, writeBy(r), writeOf([]byte(line)))
			}
		}
		out = append(out, r)
	}
	return out
}

func TestEveryWriteIsRecorded(t *testing.T) {
	dir := t.TempDir()
	log := open(t, config(dir))
	key := func(name string) resource.Key { return resource.Key{Kind: "Timeout", Mesh: "default", Name: name} }
	n := &node{result: store.Result{Revision: 7, Results: []store.OpResult{
		{Key: key("a"), Outcome: store.Created, Version: 1},
		{Key: key("b"), Outcome: store.Updated, Version: 4},
		{Key: key("c"), Outcome: store.Unchanged, Version: 2},
		{Key: key("d"), Outcome: store.Deleted},
		{Key: key("e"), Outcome: store.Missing},
	}}}
	w := writer(n, log)
	txn := store.Txn{RequestID: "r-1", Ops: []store.Op{store.Delete(key("d"))}}
	ctx := authn.CollectReasons(request(t))
	authn.AddReason(ctx, because("rule one"))
	authn.AddReason(ctx, because("rule two"))
	authn.AddReason(ctx, because("rule one"))
	_, err := w.Propose(ctx, txn)
	require.NoError(t, err)
	_, err = w.Propose(t.Context(), txn) // by the server itself
	require.NoError(t, err)
	n.err = errUnknown
	_, err = w.Propose(request(t), txn)
	require.ErrorIs(t, err, errUnknown)
	n.err = &store.ConflictError{}
	_, err = w.Propose(request(t), txn)
	require.Error(t, err)
	n.err, n.result = nil, store.Result{Results: []store.OpResult{{Key: key("c"), Outcome: store.Unchanged}}}
	_, err = w.Propose(request(t), txn)
	require.NoError(t, err)

	all := records(t, dir)
	require.Len(t, all, 3, "what was not written and what changed nothing is not recorded")
	require.Equal(t, Allowed, all[0].Decision)
	require.Equal(t, Who{Name: "bob", Groups: []string{"team-a", authn.AuthenticatedGroup}, Source: "token", Token: "id-1"}, all[0].Who)
	require.Equal(t, "192.0.2.7:4000", all[0].From)
	require.Equal(t, "rule one; rule two", all[0].Rule)
	require.Equal(t, uint64(7), all[0].Revision)
	require.Equal(t, "r-1", all[0].Request)
	require.Equal(t, []Target{
		{"create", "Timeout", "default", "a", 1}, {"update", "Timeout", "default", "b", 4}, {"delete", "Timeout", "default", "d", 0},
	}, all[0].Targets)
	require.Equal(t, serverItself, all[1].Who)
	require.Equal(t, Unknown, all[2].Decision)
	require.Equal(t, []Target{{Action: "delete", Kind: "Timeout", Mesh: "default", Name: "d"}}, all[2].Targets)
}

func TestEveryDenialIsRecorded(t *testing.T) {
	dir := t.TempDir()
	log := open(t, config(dir))
	denied := rpcerr.New(rpcerr.Denied, "ACCESS_DENIED", "Access Denied (…)")
	call := func(req any, err error) {
		t.Helper()
		_, got := log.Unary(request(t), req, &grpc.UnaryServerInfo{FullMethod: "/meridian.v1.S/M"}, func(ctx context.Context, _ any) (any, error) {
			authn.AddReason(ctx, because("x"))
			require.Len(t, authn.Reasons(ctx), 1, "grounds are collected")
			return nil, err
		})
		require.Equal(t, err, got)
	}
	key := &meridianv1.ResourceKey{Kind: "Timeout", Mesh: "default", Name: "t"}
	call(&meridianv1.ApplyRequest{RequestId: "r", Resources: []*meridianv1.Resource{{Kind: "GlobalSecret", Name: "s", Spec: []byte(`{"data":"c2VjcmV0"}`)}}}, denied)
	call(&meridianv1.DeleteRequest{RequestId: "r", Keys: []*meridianv1.ResourceKey{key}}, rpcerr.ToStatus(denied).Err())
	call(&meridianv1.GetRequest{Key: key}, denied)
	call(&meridianv1.GenerateUserTokenRequest{Name: "eve"}, denied)
	call(&meridianv1.GenerateDataplaneTokenRequest{Mesh: "default", Name: "web"}, denied)
	call(&meridianv1.GenerateZoneTokenRequest{Zone: "east"}, denied)
	call(&meridianv1.RotateKeyRequest{Kind: "user-token", RequestId: "r"}, denied)
	call(&meridianv1.RevokeTokenRequest{Id: "i", RequestId: "r"}, denied)
	for _, other := range []error{nil, errors.New("x"), rpcerr.New(rpcerr.NotFound, "", "x"), rpcerr.New(rpcerr.Invalid, "", "x")} {
		call(nil, other)
	}
	require.Equal(t, error(denied), log.Stream(nil, &grpctest.Call{Ctx: request(t)}, &grpc.StreamServerInfo{FullMethod: "/meridian.v1.S/Stream", IsServerStream: true},
		func(any, grpc.ServerStream) error { return denied }))
	log.Refused(request(t), authn.Principal{}, "/meridian.v1.S/N", rpcerr.New(rpcerr.Unauthenticated, "TOKEN_REFUSED", "not authenticated: x"))

	all := append(recordsOf(t, dir, chainDenied), recordsOf(t, dir, chainRefused)...)
	var targets []string
	for _, r := range all {
		line := string(r.Decision) + " " + r.Who.Name + " " + r.Method
		for _, tgt := range r.Targets {
			line += " " + strings.TrimSpace(strings.Join([]string{tgt.Action, tgt.Kind, tgt.Mesh, tgt.Name}, " "))
		}
		targets = append(targets, line)
		require.NotContains(t, line, "c2VjcmV0")
	}
	require.Equal(t, []string{
		"denied bob meridian.v1.S/M apply GlobalSecret  s",
		"denied bob meridian.v1.S/M delete Timeout default t",
		"denied bob meridian.v1.S/M read Timeout default t",
		"denied bob meridian.v1.S/M generate user-token  eve",
		"denied bob meridian.v1.S/M generate dataplane-token default web",
		"denied bob meridian.v1.S/M generate zone-token  east",
		"denied bob meridian.v1.S/M rotate user-token",
		"denied bob meridian.v1.S/M revoke token  i",
		"denied bob meridian.v1.S/Stream",
		"refused  meridian.v1.S/N",
	}, targets)
	require.Equal(t, "ACCESS_DENIED", all[0].Rule)
	require.Equal(t, "Access Denied (…)", all[0].Message)
	require.Equal(t, "unknown", all[9].Who.Source)
}

// What a request does beside writing resources is recorded with who asked, and
// what happens to the server without a request.
func TestDidAndNoted(t *testing.T) {
	dir := t.TempDir()
	log := open(t, config(dir))
	log.RecordOperation(request(t), Record{Rule: "member of x", Revision: 7, Targets: []Target{{Action: "save", Kind: "snapshot", Name: "n"}}}, nil)
	log.RecordOperation(request(t), Record{Decision: Unknown}, errors.New("the leader went away"))
	log.RecordEvent("the state was replaced")
	got := records(t, dir)
	require.Len(t, got, 3)
	for _, r := range got[:2] {
		require.Equal(t, "bob", r.Who.Name)
		require.Equal(t, "id-1", r.Who.Token)
		require.Equal(t, "192.0.2.7:4000", r.From)
	}
	require.Equal(t, Allowed, got[0].Decision)
	require.Equal(t, "member of x", got[0].Rule)
	require.EqualValues(t, 7, got[0].Revision)
	require.Equal(t, []Target{{Action: "save", Kind: "snapshot", Name: "n"}}, got[0].Targets)
	require.Equal(t, Unknown, got[1].Decision)
	require.Equal(t, "it failed: the leader went away", got[1].Message)
	require.Equal(t, Noted, got[2].Decision)
	require.Equal(t, serverItself, got[2].Who)
	require.Equal(t, "the state was replaced", got[2].Message)
}

// A batch that is received in messages is recorded with all that they are about,
// and a unary method that is served as a stream is left to Unary.
func TestDenialsOfBatchesAreRecorded(t *testing.T) {
	dir := t.TempDir()
	log := open(t, config(dir))
	denied := rpcerr.New(rpcerr.Denied, "NO", "no")
	messages := []*meridianv1.ApplyRequest{
		{RequestId: "r", Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: "a"}}},
		{Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: "b"}}},
	}
	batch := &grpc.StreamServerInfo{FullMethod: "/meridian.v1.S/Apply", IsClientStream: true}
	require.Equal(t, error(denied), log.Stream(nil, &grpctest.Call{Ctx: request(t)}, batch, func(_ any, s grpc.ServerStream) error {
		for _, m := range messages {
			require.NoError(t, s.RecvMsg(m))
		}
		return denied
	}))
	require.Equal(t, error(denied), log.Stream(nil, &grpctest.Call{Ctx: request(t)}, &grpc.StreamServerInfo{FullMethod: "/meridian.v1.S/Get"},
		func(any, grpc.ServerStream) error { return denied }))
	all := recordsOf(t, dir, chainDenied)
	require.Len(t, all, 1)
	require.Equal(t, "r", all[0].Request)
	require.Equal(t, []Target{{Action: "apply", Kind: "Mesh", Name: "a"}, {Action: "apply", Kind: "Mesh", Name: "b"}}, all[0].Targets)
}
