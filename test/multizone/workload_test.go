//go:build multizone

package multizone

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/resource"
	"meridian/test/history"
)

const (
	// keys is how many resources the clients write to, in turn.
	keys = 256
	// attemptTimeout bounds one attempt at one server, giveUp all attempts of an
	// operation together: what is not answered by then stays unknown.
	attemptTimeout = 3 * time.Second
	giveUp         = 90 * time.Second
)

// workload is a number of clients that write and read while a cluster is under
// attack, and remember what they were told.
type workload struct {
	rec     *history.Recorder
	servers [][]*api // per client, one connection to each server
	seed    uint64

	values    atomic.Int64
	requests  sync.Map // request id by value
	clients   sync.WaitGroup
	stop      context.CancelFunc
	completed atomic.Int64
}

// startWorkload starts clients that run until halt.
func startWorkload(ctx context.Context, rec *history.Recorder, servers [][]*api, seed uint64) *workload {
	ctx, stop := context.WithCancel(ctx)
	w := &workload{rec: rec, servers: servers, seed: seed, stop: stop}
	for i := range servers {
		w.clients.Go(func() { w.client(ctx, i) })
	}
	return w
}

// halt ends the clients; what they have begun they finish.
func (w *workload) halt() {
	w.stop()
	w.clients.Wait()
}

func keyName(i int) string { return fmt.Sprintf("key-%03d", i) }

func keyOf(name string) resource.Key {
	return resource.Key{Kind: "Timeout", Mesh: "default", Name: name}
}

// spec is a policy whose content is a value.
func spec(value string) []byte {
	return fmt.Appendf(nil, `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}],"conf":{"connectTimeout":"%sms"}}`, value)
}

// valueOf is the value in a policy.
func valueOf(spec []byte) string {
	var s struct {
		Conf struct {
			ConnectTimeout string `json:"connectTimeout"`
		} `json:"conf"`
	}
	if json.Unmarshal(spec, &s) != nil {
		return string(spec)
	}
	d, err := time.ParseDuration(s.Conf.ConnectTimeout)
	if err != nil {
		return s.Conf.ConnectTimeout
	}
	return fmt.Sprint(d.Milliseconds())
}

// client makes one operation after the other. As a rule it begins with the server
// that answered the last one, as the command does, and now and then with any: that
// one may be gone, cut off, or wrongly consider itself the leader.
func (w *workload) client(ctx context.Context, n int) {
	random := rand.New(rand.NewPCG(w.seed, uint64(n))) //nolint:gosec // no secret
	answered := random.IntN(len(w.servers[n]))
	for i := 0; ctx.Err() == nil; i++ {
		op := history.Op{Client: n, Kind: history.Read, Key: keyOf(keyName(random.IntN(keys)))}
		switch p := random.IntN(100); {
		case p < 60:
			op.Kind = history.Put
		case p < 68:
			op.Kind = history.Delete
		}
		if op.Kind == history.Put {
			op.Value = fmt.Sprint(w.values.Add(1))
			if random.IntN(8) == 0 {
				version := uint64(random.IntN(12))
				op.If = &version
			}
		}
		if op.Kind != history.Read {
			op.Request = fmt.Sprintf("c%d-%x-%d", n, w.seed, i)
		}
		if random.IntN(8) == 0 {
			answered = random.IntN(len(w.servers[n]))
		}
		answered = w.run(ctx, n, answered, random, op)
	}
}

// run makes one operation, at one server after another under one request id,
// until it is answered. It returns the server that was asked last.
func (w *workload) run(ctx context.Context, n, first int, random *rand.Rand, op history.Op) (last int) {
	if op.Kind == history.Put {
		w.requests.Store(op.Value, op.Request)
	}
	call := w.rec.Call(op)
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUp)
	defer cancel()
	for attempt := 0; ; attempt++ {
		last = (first + attempt) % len(w.servers[n])
		server := w.servers[n][last]
		answer, err := w.attempt(patience, server, &op)
		if err == nil {
			w.rec.Return(call, func(o *history.Op) { o.Server = server.server; answer(o) })
			w.completed.Add(1)
			return last
		}
		if patience.Err() != nil || attempt > 0 && ctx.Err() != nil && op.Kind == history.Read {
			w.rec.Return(call, func(o *history.Op) { o.Server, o.Err = server.server, err.Error() })
			return last
		}
		pause := time.NewTimer(time.Duration(10+random.IntN(40)) * time.Millisecond)
		<-pause.C
	}
}

// attempt asks one server. An error says that it is not known what became of
// the request, or that nothing did.
func (w *workload) attempt(ctx context.Context, server *api, op *history.Op) (answer func(*history.Op), err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	key := &meridianv1.ResourceKey{Kind: string(op.Key.Kind), Mesh: string(op.Key.Mesh), Name: op.Key.Name}
	switch op.Kind {
	case history.Put:
		var r *meridianv1.ApplyResponse
		r, err = batch.Apply(ctx, server, &meridianv1.ApplyRequest{RequestId: op.Request, IfVersions: ifVersion(key, op.If), Resources: []*meridianv1.Resource{
			{Kind: key.Kind, Mesh: key.Mesh, Name: key.Name, Spec: spec(op.Value)},
		}})
		answer = func(o *history.Op) {
			o.Outcome, o.Revision = history.Done, resource.Revision(r.GetRevision())
			o.State = history.State{Version: r.GetResults()[0].GetVersion(), Revision: o.Revision, Value: o.Value}
		}
	case history.Delete:
		var r *meridianv1.DeleteResponse
		r, err = batch.Delete(ctx, server, &meridianv1.DeleteRequest{RequestId: op.Request, Keys: []*meridianv1.ResourceKey{key}})
		answer = func(o *history.Op) { o.Outcome, o.Revision = history.Done, resource.Revision(r.GetRevision()) }
	default:
		var r *meridianv1.GetResponse
		r, err = server.Get(ctx, &meridianv1.GetRequest{Key: key})
		answer = func(o *history.Op) { o.Outcome, o.State = history.Done, stateOf(r.GetResource()) }
	}
	switch status.Code(err) {
	case codes.OK:
		return answer, nil
	case codes.NotFound:
		if op.Kind == history.Read {
			return func(o *history.Op) { o.Outcome = history.Done }, nil
		}
		return refusedBy(err), nil
	case codes.FailedPrecondition, codes.Aborted, codes.AlreadyExists:
		if op.If != nil && strings.Contains(err.Error(), "version") {
			return func(o *history.Op) { o.Outcome = history.Conflict }, nil
		}
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return refusedBy(err), nil
	}
	return nil, err
}

func refusedBy(err error) func(*history.Op) {
	return func(o *history.Op) { o.Outcome, o.Err = history.Refused, err.Error() }
}

func stateOf(r *meridianv1.Resource) history.State {
	return history.State{Version: r.GetVersion(), Revision: resource.Revision(r.GetRevision()), Value: valueOf(r.GetSpec())}
}

// ifVersion is the condition of an operation, which it may not have.
func ifVersion(key *meridianv1.ResourceKey, version *uint64) []*meridianv1.VersionCondition {
	if version == nil {
		return nil
	}
	return []*meridianv1.VersionCondition{{Key: key, Version: *version}}
}
