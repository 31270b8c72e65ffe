//go:build multizone

package multizone

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/history"
)

// watched is the one kind that the workload writes.
const watched = "Timeout"

// epoch stands for the only history of a run: none of its faults begins another.
var epoch = store.Epoch{ClusterID: "run", Incarnation: 1, Random: 1}

// step is one thing that a server showed to its watcher.
type step struct {
	at             history.Time
	prev, revision resource.Revision
	changes        []history.Change
	// whole says that changes are the whole state.
	whole bool
}

// witness watches the resources of the workload on one server, through its
// restarts, and remembers what it was shown.
type witness struct {
	api   *api
	rec   *history.Recorder
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu    sync.Mutex // guards steps
	steps []step
}

func startWitness(ctx context.Context, rec *history.Recorder, server *api) *witness {
	ctx, stop := context.WithCancel(ctx)
	w := &witness{api: server, rec: rec, stop: stop}
	w.ended.Go(func() { w.run(ctx) })
	return w
}

// halt ends the watch and returns what was seen.
func (w *witness) halt() []step {
	w.stop()
	w.ended.Wait()
	return w.steps
}

// last is the newest revision seen.
func (w *witness) last() (at resource.Revision, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.steps) == 0 {
		return 0, false
	}
	return w.steps[len(w.steps)-1].revision, true
}

func (w *witness) add(s step) {
	s.at = w.rec.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, s)
}

func (w *witness) run(ctx context.Context) {
	begin := true
	for ctx.Err() == nil {
		err := w.follow(ctx, begin)
		// What is no longer remembered is taken as a whole; anything else is tried
		// again from where the watch was.
		_, any := w.last()
		begin = !any || status.Code(err) == codes.OutOfRange && !isFuture(err)
		pause := time.NewTimer(30 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

func isFuture(err error) bool {
	s, _ := status.FromError(err)
	for _, d := range s.Details() {
		if info, ok := d.(interface{ GetReason() string }); ok && info.GetReason() == "FUTURE_REVISION" {
			return true
		}
	}
	return false
}

func (w *witness) follow(ctx context.Context, begin bool) error {
	if begin {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	last, _ := w.last()
	from := uint64(last)
	stream, err := w.api.Watch(ctx, &meridianv1.WatchRequest{Kinds: []string{watched}, FromRevision: &from})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(response.GetChanges()) == 0 {
			continue
		}
		s := step{prev: last, revision: resource.Revision(response.GetRevision())}
		for _, c := range response.GetChanges() {
			change := history.Change{Key: keyOf(c.GetResource().GetName())}
			if c.GetOutcome() != meridianv1.Outcome_OUTCOME_DELETED {
				change.State = stateOf(c.GetResource())
			}
			s.changes = append(s.changes, change)
		}
		w.add(s)
		last = s.revision
	}
}

// list takes the whole state.
func (w *witness) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := w.api.List(ctx, &meridianv1.ListRequest{Kinds: []string{watched}, Consistency: meridianv1.Consistency_CONSISTENCY_STALE})
	if err != nil {
		return err
	}
	s := step{whole: true}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		s.revision = resource.Revision(part.GetRevision())
		for _, r := range part.GetResources() {
			s.changes = append(s.changes, history.Change{Key: keyOf(r.GetName()), State: stateOf(r)})
		}
	}
	s.prev, _ = w.last()
	w.add(s)
	return nil
}

// image is a state that is kept up to date change by change, and a sum over it
// that costs the same however large it is.
type image struct {
	states map[resource.Key]history.State
	hi, lo uint64
}

func newImage() *image { return &image{states: map[resource.Key]history.State{}} }

// take makes the changes of a step and returns what is gone by them.
func (m *image) take(s step) (gone []resource.Key) {
	changes := s.changes
	if s.whole {
		kept := map[resource.Key]bool{}
		for _, c := range changes {
			kept[c.Key] = true
		}
		for key := range m.states {
			if !kept[key] {
				changes = append(changes[:len(changes):len(changes)], history.Change{Key: key})
			}
		}
	}
	for _, c := range changes {
		if before, ok := m.states[c.Key]; ok {
			hi, lo := stateSum(c.Key, before)
			var borrow uint64
			m.lo, borrow = bits.Sub64(m.lo, lo, 0)
			m.hi, _ = bits.Sub64(m.hi, hi, borrow)
			delete(m.states, c.Key)
			if c.State.Version == 0 {
				gone = append(gone, c.Key)
			}
		}
		if c.State.Version != 0 {
			hi, lo := stateSum(c.Key, c.State)
			var carry uint64
			m.lo, carry = bits.Add64(m.lo, lo, 0)
			m.hi, _ = bits.Add64(m.hi, hi, carry)
			m.states[c.Key] = c.State
		}
	}
	return gone
}

func (m *image) sum() (out history.Image) {
	binary.BigEndian.PutUint64(out[:8], m.hi)
	binary.BigEndian.PutUint64(out[8:], m.lo)
	return out
}

func stateSum(key resource.Key, s history.State) (hi, lo uint64) {
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d/%d/%s", key.Mesh, key.Name, s.Version, s.Revision, s.Value))
	return binary.BigEndian.Uint64(h[:8]), binary.BigEndian.Uint64(h[8:16])
}

// testify puts what the witnesses of servers and zones saw into a history that
// begins with the state at base, which every witness has seen. Which request made
// a commit is known by the values that it wrote, and for a deletion by the key and the
// revision that its client was told.
func testify(h *history.History, base resource.Revision, servers, zones map[string][]step, requests *sync.Map) {
	type deletion struct {
		key      resource.Key
		revision resource.Revision
	}
	deletions := map[deletion]string{}
	h.Complete = true
	for _, op := range h.Ops {
		switch {
		case op.Kind == history.Delete && op.Outcome == history.Done:
			deletions[deletion{op.Key, op.Revision}] = op.Request
		case op.Kind == history.Delete && op.Outcome == history.Unknown:
			h.Complete = false // its commit would not be recognised
		}
	}
	unbroken := false
	for server, steps := range servers {
		state, whole := newImage(), 0
		for _, s := range steps {
			state.take(s)
			if len(h.Source.Epochs()) == 0 {
				h.Source.Add(&history.Commit{Epoch: epoch, Revision: base, Changes: s.changes, Whole: true, All: state.sum(), Synced: state.sum()})
			}
			c := &history.Commit{Epoch: epoch, Revision: s.revision, Prev: s.prev, Seen: s.at, Changes: s.changes, All: state.sum(), Synced: state.sum()}
			for _, ch := range s.changes {
				request, ok := requests.Load(ch.State.Value)
				if !ok && ch.State.Version == 0 {
					request, ok = deletions[deletion{ch.Key, s.revision}]
				}
				if id, _ := request.(string); ok {
					c.Requests = append(c.Requests, id)
				}
			}
			if !s.whole {
				h.Source.Add(c)
			}
			h.Observations = append(h.Observations, history.Observation{Server: server, At: s.at, Epoch: epoch, Revision: s.revision, All: c.All})
			h.Deliveries = append(h.Deliveries, history.Delivery{
				Watcher: server, Server: server, At: s.at, Epoch: epoch, Prev: s.prev, Revision: s.revision, Changes: s.changes, Whole: s.whole, All: c.All,
			})
			if s.whole {
				whole++
			}
		}
		unbroken = unbroken || whole == 1
	}
	h.Complete = h.Complete && unbroken
	for zone, steps := range zones {
		state := newImage()
		for _, s := range steps {
			gone := state.take(s)
			h.Sightings = append(h.Sightings, history.Sighting{
				Zone: zone, Disk: 1, At: s.at, Epoch: epoch, Revision: s.revision, Synced: state.sum(), Gone: gone,
			})
		}
	}
}
