package raftnet

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Endpoint is the transport that raft uses. It notes who has answered this server
// as their leader, and when they were asked: raft's own VerifyLeader counts an
// answer to a heartbeat that was sent before the question, and the answer of a
// server without a vote. A leader that was stopped for a while finds such answers
// waiting for it and would take them for proof that it still leads.
//
// It also keeps messages from raft: all, while a new server waits to be added to a
// cluster (see Hold), and those that a Screen or inbound answers.
// And it finds servers that have moved (see addresses), and tells raft what leaders have
// said beside their messages (see Committed).
type Endpoint struct {
	Transport
	addresses *addresses
	// complete adds the data of entries that come without.
	complete func(*raft.Log) (*raft.Log, error)
	// onDisk returns up to where this server's log is on disk, at most a given index.
	onDisk func(index uint64) uint64
	// campaigning says whether this server campaigns in a term, electionTimeout how
	// long an election may last, standBack for how long it is not this server's turn to
	// ask for votes.
	campaigning                func(term uint64) bool
	electionTimeout, standBack func() time.Duration
	// replicating says whether this server leads in a term a cluster that has a member
	// at an address.
	replicating func(term uint64, id raft.ServerID, at raft.ServerAddress) bool
	// asked counts the reads that want proof.
	asked atomic.Uint64

	mu sync.Mutex
	// confirmed is the newest confirmation of each server.
	confirmed map[raft.ServerID]confirmation
	// changed wakes when there is a new one.
	changed Signal
	// taken is how far each server has taken this one's log, takenMore wakes when that
	// is further.
	taken     map[raft.ServerID]position
	takenMore Signal
	// committed is what leaders have said beside their messages (see Committed): an entry
	// and a term. committedMore has a value when it is new.
	committed     position
	committedMore chan struct{}

	// consumer replaces the transport's. held is closed by Release, nil without
	// Hold; done is closed when raft has ended.
	consumer    chan raft.RPC
	held, done  chan struct{}
	releaseOnce sync.Once
	forwarding  sync.WaitGroup
}

// confirmation is proof that a server followed this one.
type confirmation struct {
	// term is the term it followed in; asked the number of reads that had begun
	// when the message left that it answered.
	term, asked uint64
}

// position is an entry of the log up to which a server has what its leader of a term
// has.
type position struct{ term, index uint64 }

// NewEndpoint returns the transport for raft. hint returns an address at which a
// server may be, "" when there is none.
func NewEndpoint(t Transport, hint func(name string) string) *Endpoint {
	return &Endpoint{
		Transport: t, addresses: newAddresses(hint), confirmed: map[raft.ServerID]confirmation{}, taken: map[raft.ServerID]position{},
		complete:    func(entry *raft.Log) (*raft.Log, error) { return entry, nil },
		onDisk:      func(index uint64) uint64 { return index },
		campaigning: func(uint64) bool { return false }, electionTimeout: func() time.Duration { return 0 }, standBack: func() time.Duration { return 0 },
		replicating:   func(uint64, raft.ServerID, raft.ServerAddress) bool { return false },
		committedMore: make(chan struct{}, 1),
		consumer:      make(chan raft.RPC), done: make(chan struct{}),
	}
}

// Start passes messages to raft, which is about to run, as far as screen lets
// them through.
func (w *Endpoint) Start(screen Screen) {
	w.forwarding.Go((&inbound{endpoint: w, screen: screen}).run)
}

// AppendEntries sends entries or a heartbeat. That the answer carries the term
// of the request is what proves something: a server that knows of a later one
// says so.
func (w *Endpoint) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	asked := w.asked.Load()
	args = w.cautious(args)
	send := func(message *raft.AppendEntriesRequest) error {
		return w.addresses.reach(id, target, func(at raft.ServerAddress) error { return w.Transport.AppendEntries(id, at, message, resp) })
	}
	if !isHeartbeat(args) {
		send = w.insist(id, target, resp, send)
	}
	err := w.inParts(args, resp, send)
	if err == nil && resp.Term == args.Term {
		w.note(id, confirmation{term: args.Term, asked: asked})
		w.noteTaken(id, args, resp)
	}
	return err
}

func (w *Endpoint) note(id raft.ServerID, p confirmation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.confirmed[id]; before.term > p.term || before.term == p.term && before.asked > p.asked {
		return // an answer that was overtaken
	}
	w.confirmed[id] = p
	w.changed.Wake()
}

// noteTaken notes how far a server has taken the log, as it answered to a message of
// this term. Raft's own count follows, and cannot be read from outside.
func (w *Endpoint) noteTaken(id raft.ServerID, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	if !resp.Success || resp.Term != args.Term {
		return
	}
	at := position{args.Term, args.PrevLogEntry}
	if n := len(args.Entries); n > 0 {
		at.index = args.Entries[n-1].Index
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before := w.taken[id]; before.term > at.term || before.term == at.term && before.index >= at.index {
		return
	}
	w.taken[id] = at
	w.takenMore.Wake()
}

// HasTaken reports whether a server has told this one, which leads in a term, that it
// has the log up to an index.
func (w *Endpoint) HasTaken(id raft.ServerID, term, index uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.taken[id]
	return at.term == term && at.index >= index
}

// TakenMore returns a channel that is closed when a server has taken more of the log.
func (w *Endpoint) TakenMore() <-chan struct{} { return w.takenMore.Wait() }

// Changed returns a channel that is closed by the next confirmation.
func (w *Endpoint) Changed() <-chan struct{} { return w.changed.Wait() }

// AddressOf returns where a server is reached instead of at its address in the
// log, false when it is reached there.
func (w *Endpoint) AddressOf(id raft.ServerID) (raft.ServerAddress, bool) {
	return w.addresses.find(id, "")
}

// BeginRead begins a read and returns its number.
func (w *Endpoint) BeginRead() uint64 { return w.asked.Add(1) }

// Confirmed reports whether a majority of the voters among servers has followed
// this server in a term since a read began.
func (w *Endpoint) Confirmed(self raft.ServerID, servers []raft.Server, term, read uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	voters, following := 0, 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == self || w.answeredLocked(s.ID, term, read) {
			following++
		}
	}
	return following > voters/2
}

// Answered reports whether a server has followed this one in a term since a read began.
func (w *Endpoint) Answered(id raft.ServerID, term, read uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answeredLocked(id, term, read)
}

func (w *Endpoint) answeredLocked(id raft.ServerID, term, read uint64) bool {
	p := w.confirmed[id]
	return p.term == term && p.asked >= read
}

// errNotMember is what a server that waits to be added answers.
var errNotMember = errors.New("this server is not a member yet")

// Hold keeps every message from raft until Release. A server whose disk was lost
// may still be a voter in the eyes of the others; it must neither vote nor
// confirm entries before they have taken its vote away, for it has forgotten
// what it promised. To be called before Start.
func (w *Endpoint) Hold() { w.held = make(chan struct{}) }

// Release lets messages through.
func (w *Endpoint) Release() {
	if w.held != nil {
		w.releaseOnce.Do(func() { close(w.held) })
	}
}

// Consumer returns the messages of others.
func (w *Endpoint) Consumer() <-chan raft.RPC { return w.consumer }

func (w *Endpoint) released() bool {
	if w.held == nil {
		return true
	}
	select {
	case <-w.held:
		return true
	default:
		return false
	}
}

// Stop ends what Start began. Raft must have ended, or never have begun.
func (w *Endpoint) Stop() {
	close(w.done)
	w.forwarding.Wait()
}
