package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/history"
)

const (
	// dataKind is what clients write and zones are sent, and rollouts change.
	dataKind = resource.KindTrafficPermission
	// markerKind holds, per client, the id of its last write: so each commit says
	// which request made it. Zones are not sent it.
	markerKind = resource.Kind("GlobalSecret")
	dataKeys   = 12
)

// synced says which kinds zones are sent, by §1.3 and not by the table of kinds: what the product
// says of it is under test.
func synced(kind resource.Kind) bool { return kind != markerKind }

// meshKey is the mesh of everything that clients write.
var meshKey = resource.Key{Kind: "Mesh", Name: "default"}

func dataKey(n int) resource.Key {
	return resource.Key{Kind: dataKind, Mesh: "default", Name: fmt.Sprintf("k-%d", n)}
}

func markerKey(client int) resource.Key {
	return resource.Key{Kind: markerKind, Name: fmt.Sprintf("client-%d", client)}
}

// valueBefore and valueAfter are around a value, so that rollouts, which hold valid
// documents only, can write it.
const (
	valueBefore = `{"destinations":[{"match":{"v":"`
	valueAfter  = `"}}],"sources":[{"match":{"kuma.io/service":"*"}}]}`
)

// content is a value as it is stored.
func content(key resource.Key, value string) *resource.Resource {
	return resource.New(resource.Meta{Key: key}, nil, []byte(valueBefore+value+valueAfter))
}

// stateOf reads what content wrote; nil is absence.
func stateOf(r *resource.Resource) history.State {
	if r == nil {
		return history.State{}
	}
	m := r.Meta()
	value := strings.TrimSuffix(strings.TrimPrefix(string(r.Canonical()), valueBefore), valueAfter)
	if len(value) > 1<<10 { // a history keeps every state
		value = fmt.Sprintf("%x", sha256.Sum256([]byte(value)))
	}
	return history.State{Version: m.Version, Revision: m.Revision, Value: value}
}

// client writes and reads.
type client struct {
	w    *world
	id   int
	rng  *rand.Rand
	next int
	// at is the server it talks to while that answers.
	at *server
	// known are the versions it last saw.
	known map[resource.Key]uint64
}

func newClient(w *world, id int) *client {
	return &client{w: w, id: id, rng: w.random(fmt.Sprintf("client %d", id)), known: map[resource.Key]uint64{}}
}

// run works until the world's clients are told to stop: bursts of operations,
// with pauses of think on average between them.
func (c *client) run(ctx context.Context, think time.Duration) {
	for {
		pause := time.Duration(c.rng.ExpFloat64() * float64(think))
		for range 1 + c.rng.IntN(9) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			c.act(ctx)
			pause = time.Duration(c.rng.ExpFloat64() * float64(c.w.plan.times(60*time.Millisecond)))
		}
	}
}

func (c *client) act(ctx context.Context) {
	key := dataKey(c.rng.IntN(dataKeys))
	switch roll := c.rng.IntN(100); {
	case roll < 30:
		c.read(ctx, key)
	case roll < 42:
		c.write(ctx, history.Delete, key)
	case roll < 47:
		c.rollback(ctx)
	case roll < 49:
		c.rollOut(ctx)
	default:
		c.write(ctx, history.Put, key)
	}
}

// pick chooses a server, mostly the one before.
func (c *client) pick() *process {
	if c.at == nil || c.at.isFormer() || c.rng.IntN(8) == 0 {
		members := c.w.members()
		c.at = members[c.rng.IntN(len(members))]
	}
	return c.at.process()
}

// patience is how long a client tries before it gives up on an operation.
const patience = 15 * time.Second

// write writes a key, with every attempt under one request id.
func (c *client) write(ctx context.Context, kind history.Kind, key resource.Key) {
	c.next++
	id := fmt.Sprintf("c%d-%d", c.id, c.next)
	txn := store.Txn{RequestID: id, Ops: []store.Op{store.Put(content(markerKey(c.id), id))}}
	op := history.Op{Client: c.id, Kind: kind, Key: key, Request: id}
	if kind == history.Put {
		op.Value = id
		txn.Ops = append(txn.Ops, store.Put(content(key, id)))
	} else {
		txn.Ops = append(txn.Ops, store.Delete(key))
	}
	if c.rng.IntN(4) == 0 {
		version := c.known[key]
		op.If = &version
		txn.Preconditions = []store.Precondition{{Key: key, Version: version}}
	}
	record := c.w.rec.Call(op)
	c.attempts(ctx, record, txn)
}

// attempts proposes until the outcome is known or the client gives up.
func (c *client) attempts(ctx context.Context, record *history.Op, txn store.Txn) {
	began := time.Now()
	unknown := false
	limit := c.w.plan.times(time.Duration(1+c.rng.IntN(8)) * time.Second)
	for {
		server, result, err := c.propose(ctx, txn, limit)
		var conflict *store.ConflictError
		switch {
		case err == nil:
			c.w.rec.Return(record, func(op *history.Op) {
				op.Server, op.Outcome, op.Revision = server, history.Done, result.Revision
				if op.Kind == history.Put {
					op.State = history.State{Version: result.Results[1].Version, Revision: result.Revision, Value: op.Value}
				}
				c.known[op.Key] = op.State.Version
			})
			return
		case errors.As(err, &conflict):
			c.w.rec.Return(record, func(op *history.Op) {
				op.Server, op.Outcome, op.Err = server, history.Conflict, err.Error()
				if unknown { // an earlier attempt may still be on its way
					op.Outcome = history.Unknown
				}
			})
			c.known[record.Key] = conflict.Have
			return
		case isHeld(err) && !unknown: // until a rollout is over
			c.w.rec.Return(record, func(op *history.Op) { op.Server, op.Outcome, op.Err = server, history.Refused, err.Error() })
			return
		case surelyNothing(err):
		default:
			unknown = true
		}
		if ctx.Err() != nil || time.Since(began) > c.w.plan.times(patience) || unknown && c.rng.IntN(6) == 0 || !c.w.pause(c.w.plan.times(time.Duration(c.rng.IntN(200))*time.Millisecond)) {
			c.w.rec.Return(record, func(op *history.Op) {
				op.Server, op.Outcome, op.Err = server, history.Refused, err.Error()
				if unknown {
					op.Outcome = history.Unknown
				}
			})
			return
		}
		c.at = nil
	}
}

// decisions is how often a rollback is decided on what has changed meanwhile.
const decisions = 5

// rollback makes what zones are sent what it was at an earlier revision, as the product
// does: decided on one state, refused if that has changed by then, and decided again.
func (c *client) rollback(ctx context.Context) {
	p := c.pick()
	if p == nil {
		c.at = nil
		return
	}
	then := p.recall(c.rng)
	if then == nil {
		return
	}
	if _, ok := then.Get(meshKey); !ok {
		return // before there was anything to go back to
	}
	c.next++
	id := fmt.Sprintf("c%d-%d", c.id, c.next)
	record := c.w.rec.Call(history.Op{Client: c.id, Kind: history.Rollback, Request: id, To: then.Revision(), ToEpoch: then.Epoch()})
	limit := c.w.plan.times(time.Duration(1+c.rng.IntN(8)) * time.Second)
	outcome, server := history.Refused, p.s.name
	var result store.Result
	var err error
	for range decisions {
		server, result, err = c.decide(ctx, id, then.Revision(), then.Epoch(), limit)
		if err == nil {
			outcome = history.Done
			break
		}
		var changed *store.ChangedError
		if errors.As(err, &changed) {
			continue
		}
		if isHeld(err) && outcome == history.Refused {
			break
		}
		if !surelyNothing(err) && !errors.Is(err, errNotDecided) {
			outcome = history.Unknown
		}
		c.at = nil
	}
	c.w.rec.Return(record, func(op *history.Op) {
		op.Server, op.Outcome, op.Revision = server, outcome, result.Revision
		if err != nil {
			op.Err = err.Error()
		}
	})
}

var errNotDecided = errors.New("the state to go back to cannot be read")

// decide makes one attempt at a rollback.
func (c *client) decide(ctx context.Context, id string, to resource.Revision, epoch store.Epoch, limit time.Duration) (string, store.Result, error) {
	p := c.pick()
	if p == nil {
		return c.at.name, store.Result{}, errDown
	}
	now := p.store.View()
	then, err := p.store.StateAt(to)
	if err != nil {
		return p.s.name, store.Result{}, fmt.Errorf("%w: %w", errNotDecided, err)
	}
	if then.Epoch() != epoch {
		return p.s.name, store.Result{}, errNotDecided // the global was recovered without it
	}
	since := now.Changed()
	txn := store.Txn{RequestID: id, UnchangedSince: &since, Ops: []store.Op{store.Put(content(markerKey(c.id), id))}}
	for r := range then.List(dataKind, "") {
		stored, there := now.Get(r.Key())
		if !there || !bytes.Equal(stored.Canonical(), r.Canonical()) {
			txn.Ops = append(txn.Ops, store.Put(r))
		}
	}
	for r := range now.List(dataKind, "") {
		if _, there := then.Get(r.Key()); !there {
			txn.Ops = append(txn.Ops, store.Delete(r.Key()))
		}
	}
	return p.propose(ctx, txn, limit)
}

// surelyNothing says whether an error means that nothing was written. What the
// store itself refused is among it.
func surelyNothing(err error) bool {
	var missing *store.MeshMissingError
	return errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, consensus.ErrUnavailable) ||
		errors.Is(err, consensus.ErrClosed) || errors.Is(err, errDown) || errors.As(err, &missing) || isHeld(err)
}

// isHeld says whether a write was refused for a rollout that is not over.
func isHeld(err error) bool {
	var held *store.HeldError
	return errors.As(err, &held)
}

var errDown = errors.New("the server is down")

// propose makes one attempt at a server that the client picks.
func (c *client) propose(ctx context.Context, txn store.Txn, limit time.Duration) (string, store.Result, error) {
	p := c.pick()
	if p == nil {
		return c.at.name, store.Result{}, errDown
	}
	return p.propose(ctx, txn, limit)
}

// propose makes one attempt. A process that ends meanwhile has answered
// nothing, whatever it says.
func (p *process) propose(ctx context.Context, txn store.Txn, limit time.Duration) (string, store.Result, error) {
	within, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	result, err := p.node.Propose(within, txn)
	if p.ctx.Err() != nil {
		return p.s.name, store.Result{}, fmt.Errorf("the server died: %w", consensus.ErrUnknownOutcome)
	}
	return p.s.name, result, err
}

// read reads a key linearizably.
func (c *client) read(ctx context.Context, key resource.Key) {
	record := c.w.rec.Call(history.Op{Client: c.id, Kind: history.Read, Key: key})
	p := c.pick()
	var err error
	var state history.State
	server := c.at.name
	if p == nil {
		err = errDown
	} else {
		within, cancel := context.WithTimeout(p.ctx, c.w.plan.times(5*time.Second))
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		if _, err = p.node.Read(within); err == nil {
			r, _ := p.store.View().Get(key)
			state = stateOf(r)
			err = p.ctx.Err()
		}
	}
	if err != nil {
		c.at = nil
	} else {
		c.known[key] = state.Version
	}
	c.w.rec.Return(record, func(op *history.Op) {
		op.Server, op.Outcome, op.State = server, history.Done, state
		if err != nil {
			op.Outcome, op.Err = history.Refused, err.Error()
		}
	})
}

// watch follows the feed of one server after another, resuming where it was.
func (w *world) watch(ctx context.Context, name string) {
	rng := w.random(name)
	var epoch store.Epoch
	var rev resource.Revision
	for ctx.Err() == nil {
		members := w.members()
		p := members[rng.IntN(len(members))].process()
		if p == nil {
			w.pause(500 * time.Millisecond)
			continue
		}
		stay, cancel := context.WithTimeout(p.ctx, time.Duration(1+rng.IntN(60))*time.Second)
		stop := context.AfterFunc(ctx, cancel)
		epoch, rev = w.watchAt(stay, p, name, epoch, rev)
		stop()
		cancel()
	}
}

// watchAt follows one server until ctx ends, and returns where the watcher is.
func (w *world) watchAt(ctx context.Context, p *process, name string, epoch store.Epoch, rev resource.Revision) (store.Epoch, resource.Revision) {
	if p.store.Wait(ctx, rev) != nil {
		return epoch, rev
	}
	from, err := p.store.ViewAt(rev)
	if rev == 0 || err != nil || from.Epoch() != epoch {
		v := p.store.View()
		if v.Epoch().Incarnation < epoch.Incarnation || v.Epoch() == (store.Epoch{}) || v.Epoch() == epoch && v.Revision() < rev {
			w.pause(100 * time.Millisecond) // a server that is behind: go to another
			return epoch, rev
		}
		w.rec.Deliver(history.Delivery{
			Watcher: name, Server: p.s.name, Epoch: v.Epoch(), Prev: rev, Revision: v.Changed(),
			Whole: true, All: history.ImageOf(v.All(), nil),
		})
		epoch, rev, from = v.Epoch(), v.Changed(), v
	}
	feed := p.store.Follow(from)
	for {
		batches, err := feed.Next(ctx)
		if err != nil {
			return epoch, rev
		}
		for _, b := range batches {
			if b.Epoch != nil {
				epoch = *b.Epoch
			}
			w.rec.Deliver(history.Delivery{
				Watcher: name, Server: p.s.name, Epoch: epoch, Prev: rev, Revision: b.Revision, Changes: changesOf(b.Changes),
			})
			rev = b.Revision
		}
	}
}
