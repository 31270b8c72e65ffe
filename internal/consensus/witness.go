package consensus

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// witness is the transport that raft uses. It notes who has answered this server
// as their leader, and when they were asked: raft's own VerifyLeader counts an
// answer to a heartbeat that was sent before the question, and the answer of a
// server without a vote. A leader that was stopped for a while finds such answers
// waiting for it and would take them for proof that it still leads.
//
// It also keeps raft from hearing what it must not: anything, while a new server
// waits to be taken into a cluster (see shut), and what Node.screen keeps back.
// And it finds servers that have moved (see whereabouts).
type witness struct {
	Transport
	whereabouts *whereabouts
	// asked counts the reads that want proof.
	asked atomic.Uint64

	mu sync.Mutex
	// heard is the newest proof of each server.
	heard map[raft.ServerID]proof
	// moved wakes when there is new proof.
	moved signal

	// consumer replaces the transport's. door is closed when this server is
	// admitted, nil when it has no need to be; done when raft has ended.
	consumer   chan raft.RPC
	door, done chan struct{}
	opened     sync.Once
	passing    sync.WaitGroup
	// screen looks at a message before raft does.
	screen func(raft.RPC) (raft.RPC, bool)
}

// proof is that a server followed this one.
type proof struct {
	// term is the term it followed in; asked the number of reads that had begun
	// when the message left that it answered.
	term, asked uint64
}

// newWitness returns the transport for raft. hint returns an address at which a
// server may be, "" when there is none.
func newWitness(t Transport, hint func(name string) string) *witness {
	return &witness{
		Transport: t, whereabouts: newWhereabouts(hint), heard: map[raft.ServerID]proof{},
		consumer: make(chan raft.RPC), done: make(chan struct{}),
	}
}

// begin passes messages to raft, which is about to run, as far as screen lets
// them through.
func (w *witness) begin(screen func(raft.RPC) (raft.RPC, bool)) {
	w.screen = screen
	w.passing.Go(w.pass)
}

// AppendEntries sends entries or a heartbeat. That the answer carries the term
// of the request is what proves something: a server that knows of a later one
// says so.
func (w *witness) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	asked := w.asked.Load()
	err := w.whereabouts.reach(id, target, func(at raft.ServerAddress) error { return w.Transport.AppendEntries(id, at, args, resp) })
	if err == nil && resp.Term == args.Term {
		w.note(id, proof{term: args.Term, asked: asked})
	}
	return err
}

func (w *witness) note(id raft.ServerID, p proof) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.heard[id]; before.term > p.term || before.term == p.term && before.asked > p.asked {
		return // an answer that was overtaken
	}
	w.heard[id] = p
	w.moved.wake()
}

// ask begins a read and returns its number.
func (w *witness) ask() uint64 { return w.asked.Add(1) }

// proved reports whether a majority of the voters among servers has followed
// this server in a term since a read began.
func (w *witness) proved(self raft.ServerID, servers []raft.Server, term, read uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	voters, following := 0, 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if p := w.heard[s.ID]; s.ID == self || p.term == term && p.asked >= read {
			following++
		}
	}
	return following > voters/2
}

// errNotAdmitted is what others hear of a server that waits for admission.
var errNotAdmitted = errors.New("this server is not a member yet")

// shut keeps every message from raft until admit. A server whose disk was lost
// may still be a voter in the eyes of the others; it must neither vote nor
// confirm entries before they have taken its vote away, for it has forgotten
// what it promised. To be called before begin.
func (w *witness) shut() { w.door = make(chan struct{}) }

// admit lets messages through.
func (w *witness) admit() {
	if w.door != nil {
		w.opened.Do(func() { close(w.door) })
	}
}

// Consumer returns the messages of others.
func (w *witness) Consumer() <-chan raft.RPC { return w.consumer }

// pass moves messages to raft, or refuses them, until done.
func (w *witness) pass() {
	for {
		select {
		case <-w.done:
			return
		case rpc := <-w.Transport.Consumer():
			if !w.admitted() {
				rpc.Respond(nil, errNotAdmitted)
				continue
			}
			rpc, forRaft := w.screen(rpc)
			if !forRaft {
				continue
			}
			select {
			case w.consumer <- rpc:
			case <-w.done:
				return
			}
		}
	}
}

func (w *witness) admitted() bool {
	if w.door == nil {
		return true
	}
	select {
	case <-w.door:
		return true
	default:
		return false
	}
}

// end stops pass. Raft must have ended, or never have begun.
func (w *witness) end() {
	close(w.done)
	w.passing.Wait()
}
