package audit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"meridian/internal/authn"
	"meridian/internal/resource"
	"meridian/internal/store"
)

const (
	// maxUnknownOutcomes is how many writes of unknown outcome are remembered, in case
	// they turn out to have been written.
	maxUnknownOutcomes = 1024
	// settleLimit bounds how long a snapshot waits for records.
	settleLimit = 5 * time.Second
)

// Node is where a server's writes go. *consensus.Node implements it.
type Node interface {
	Propose(ctx context.Context, txn store.Txn) (store.Result, error)
	Read(ctx context.Context) (resource.Revision, error)
}

// Writer is a Node that records all writes that go through it.
//
// A batch is recorded once it is known to be written, before its caller is
// answered. When a server is killed in between, its audit log lacks the write, and
// a write of unknown outcome may turn out to have taken effect. For both, the
// content of the record travels with the batch as a note, and when the batch is
// applied, also after a restart, a missing record is written.
type Writer struct {
	Node
	log *Log
	// unknown is the error that says that the outcome of a write is unknown.
	unknown error
	server  string
	now     func() time.Time
	run     uint64

	mu sync.Mutex // guards all below
	// attempts are the batches that were proposed and not recorded, by number.
	attempts        map[uint64]*attempt
	last            uint64   // the last number
	unknownOutcomes []uint64 // attempts of unknown outcome, oldest first
	// ended is closed and replaced whenever an attempt ends.
	ended chan struct{}
	// early are batches of earlier runs that came before Open.
	early []earlyBatch
}

// attempt is a batch that is not recorded, or not as what it turned out to be.
type attempt struct {
	asked asking
	// result is what became of it, once it was applied here: it is not changed by
	// further tries under the same id.
	result *store.Result
	// unknownOutcome says that its caller was answered that the outcome is unknown.
	unknownOutcome bool
}

type earlyBatch struct {
	asked  asking
	result store.Result
}

// NewWriter returns the Writer of a server, whose Applied and Settle can be used
// at once, and the rest after Open. unknown is the node's error for a write that
// may or may not have taken effect.
func NewWriter(server string, now func() time.Time, unknown error) *Writer {
	return &Writer{unknown: unknown, server: server, now: now, run: rand.Uint64(), attempts: map[uint64]*attempt{}, ended: make(chan struct{})}
}

// Open says where the Writer writes, and where it records that.
func (w *Writer) Open(node Node, log *Log) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Node, w.log = node, log
	for _, b := range w.early {
		w.foundLocked(b)
	}
	w.early = nil
}

// Propose proposes a transaction and records it, unless it certainly was not
// written or changed nothing. Where records are required, it is not proposed while
// there is no way to record it, and the error may be that of a write whose record is
// not on disk yet.
func (w *Writer) Propose(ctx context.Context, txn store.Txn) (store.Result, error) {
	if err := w.log.Storable(); err != nil {
		return store.Result{}, err
	}
	number, a := w.begin(ctx, &txn)
	result, err := w.Node.Propose(ctx, txn)
	r := a.asked.record()
	switch {
	case err == nil:
		err = w.record(r, result)
	case errors.Is(err, w.unknown):
		applied := w.markUnknown(number, a)
		if applied == nil {
			r.Decision, r.Message, r.Targets = Unknown, err.Error(), attempted(txn)
			w.log.Write(r)
			return result, err
		}
		if failed := w.record(r, *applied); failed != nil {
			err = failed
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(number)
	return result, err
}

// begin gives a batch its note.
func (w *Writer) begin(ctx context.Context, txn *store.Txn) (number uint64, a *attempt) {
	a = &attempt{asked: asking{time: w.now().UTC(), who: serverItself, from: from(ctx), method: "server", request: clip(authn.CallerRequestID(txn.RequestID))}}
	if method, ok := grpc.Method(ctx); ok {
		a.asked.method = strings.TrimPrefix(method, "/")
	}
	if a.asked.from != "" {
		a.asked.who = whoIs(authn.PrincipalFrom(ctx))
	}
	a.asked.rule = clip(strings.Join(authn.Reasons(ctx), "; "))
	w.mu.Lock()
	w.last++
	number = w.last
	w.attempts[number] = a
	w.mu.Unlock()
	txn.Note = note{server: w.server, run: w.run, number: number, asked: a.asked}.encode()
	return number, a
}

// markUnknown marks the outcome of an attempt as unknown, or returns the outcome: the
// batch may have been applied here while its answer was awaited.
func (w *Writer) markUnknown(number uint64, a *attempt) (applied *store.Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.result != nil {
		return a.result
	}
	a.unknownOutcome = true
	w.unknownOutcomes = append(w.unknownOutcomes, number)
	if len(w.unknownOutcomes) > maxUnknownOutcomes {
		w.endLocked(w.unknownOutcomes[0])
	}
	return nil
}

// endLocked forgets an attempt.
func (w *Writer) endLocked(number uint64) {
	if w.attempts[number].unknownOutcome {
		w.unknownOutcomes = slices.DeleteFunc(w.unknownOutcomes, func(n uint64) bool { return n == number })
	}
	delete(w.attempts, number)
	close(w.ended)
	w.ended = make(chan struct{})
}

// record writes down what a batch changed, if anything.
func (w *Writer) record(r Record, result store.Result) error {
	if !complete(&r, result) {
		return nil
	}
	if err := w.log.store(r); err != nil && w.log.cfg.Required {
		return unrecorded(result.Revision, err)
	}
	return nil
}

// complete fills in what became of a batch, and reports whether there is anything
// to record.
func complete(r *Record, result store.Result) bool {
	r.Revision, r.Targets = uint64(result.Revision), written(result)
	return result.Err == nil && len(r.Targets) > 0
}

// Applied takes a note that came back with its batch: it is for
// consensus.Events.Applied. It does not wait for a disk.
func (w *Writer) Applied(data []byte, result store.Result) {
	if !isOf(data, w.server) {
		return
	}
	n := decodeNote(data)
	if n.server != w.server {
		return // it is damaged after the name, or names another one after it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.run != w.run {
		b := earlyBatch{n.asked, result}
		if w.log == nil {
			w.early = append(w.early, b)
			return
		}
		w.foundLocked(b)
		return
	}
	a := w.attempts[n.number]
	switch {
	case a == nil: // it is recorded
	case !a.unknownOutcome && a.result == nil:
		a.result = &result
	case a.unknownOutcome:
		w.endLocked(n.number)
		r := a.asked.record()
		r.Message = "its outcome was unknown at first"
		if !result.Duplicate && complete(&r, result) {
			w.log.later(r)
		}
	}
}

// foundLocked records a batch of an earlier run, unless that run did. One that had
// been written before is not a write.
func (w *Writer) foundLocked(b earlyBatch) {
	r := b.asked.record()
	if b.result.Duplicate || !complete(&r, b.result) || w.log.had(writeBy(r)) {
		return
	}
	r.Message = fmt.Sprintf("asked for at %s; the server stopped before it had recorded it", b.asked.time.Format(time.RFC3339))
	w.log.laterUnlessHad(r)
}

// Settle returns once everything that was applied up to a revision is recorded
// and on disk, or cannot be: it is for consensus.Events.Snapshotting, after which
// Applied does not hear of that again.
func (w *Writer) Settle(rev resource.Revision) {
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	for {
		w.mu.Lock()
		log, ended, open := w.log, w.ended, false
		for _, a := range w.attempts {
			open = open || a.result != nil && a.result.Revision <= rev
		}
		w.mu.Unlock()
		if !open {
			if log != nil {
				log.flush()
			}
			return
		}
		select {
		case <-ended:
		case <-limit.C:
			return
		}
	}
}

// written returns what a batch changed.
func written(result store.Result) []Target {
	var out []Target
	for _, op := range result.Results {
		t := Target{Kind: string(op.Key.Kind), Mesh: string(op.Key.Mesh), Name: op.Key.Name, Version: op.Version}
		switch op.Outcome {
		case store.Created:
			t.Action = "create"
		case store.Updated:
			t.Action = "update"
		case store.Deleted:
			t.Action = "delete"
		default:
			continue
		}
		out = append(out, t)
	}
	return out
}

// attempted returns what a batch would have changed.
func attempted(txn store.Txn) []Target {
	out := make([]Target, len(txn.Ops))
	for i, op := range txn.Ops {
		key, action := op.Key, "delete"
		if op.Resource != nil {
			key, action = op.Resource.Key(), "apply"
		}
		out[i] = Target{Action: action, Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name}
	}
	return out
}
