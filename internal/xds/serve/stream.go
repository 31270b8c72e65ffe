package serve

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

const (
	// MaxNames bounds the names that one stream subscribes to, per type.
	MaxNames = 10_000
	// MaxNameBytes bounds one of them.
	MaxNameBytes = 1024
	// MaxBytes bounds all names that one stream has subscribed to or brought along.
	MaxBytes = 1 << 20
	// maxResponseBytes is where a response ends that may be followed by another:
	// stock clients receive messages of up to 4 MiB. One with everything: maxWorldBytes.
	maxResponseBytes = 2 << 20
	// maxDetailBytes bounds what is kept of a client's reason for a rejection.
	maxDetailBytes = 1024
	// wildcard is the name that stands for every resource of a type.
	wildcard = "*"
)

// ErrTooManyNames means that a client asks for more than it may, in names or bytes.
var ErrTooManyNames = errors.New("too many names")

// Request is what a client sends.
type Request struct {
	Type xds.Type
	// Nonce is that of the response that this answers; empty if none.
	Nonce string
	// Rejected: the answer is a NACK, and Detail its reason.
	Rejected bool
	Detail   string

	// Names is the whole subscription, in the variant state of the world, and Version that
	// of the last response that the client accepted, also over an earlier stream.
	Names   []string
	Version string

	// Subscribe, Unsubscribe and Initial (versions that the client has, by name) are
	// those of the incremental variant.
	Subscribe, Unsubscribe []string
	Initial                map[string]string
}

// Response is what a client is sent.
type Response struct {
	Type xds.Type
	// Nonce cannot be guessed: who repeats it has read the response.
	Nonce string
	// Version is a hash of the content, and what the client is to bring along to its next
	// stream.
	Version string
	// Resources are everything that the client is to have of clusters and listeners in
	// the variant state of the world; otherwise those that changed.
	Resources []*xds.Resource
	// Removed are names that do not exist, in the incremental variant.
	Removed []string
}

// Bytes returns how many bytes the resources, names and version of a response have.
func (r *Response) Bytes() int {
	n := len(r.Version)
	for _, sent := range r.Resources {
		n += len(sent.Body)
	}
	for _, name := range r.Removed {
		n += len(name)
	}
	return n
}

// Config is how a stream behaves.
type Config struct {
	// Delta selects the incremental variant.
	Delta bool
	// Drain is how long a cluster stays after the last reference to it has gone.
	Drain time.Duration
	// Memory is what the proxy has rejected; required.
	Memory *Memory
}

// Stream is one client's stream. It is not safe for concurrent use.
type Stream struct {
	cfg Config
	set *xds.Set
	// targets counts the sets so far.
	targets uint64
	types   [len(xds.Types)]typeState
	now     time.Time // of the last Next
	begun   time.Time // of the first one
	wake    time.Time
	// answered: the client has answered a response.
	answered bool
	// anew: every cluster that is to go drains from the next time on that none needs it.
	anew bool
	// used is what each type refers to, as far as this Next has asked; nil outside.
	used [len(xds.Types)]*usage
}

// typeState is where the client stands with one type.
type typeState struct {
	asked    bool // a request has come
	wildcard bool
	named    bool // names have been given: no names mean none from then on
	names    map[string]struct{}
	// bytes is how many the names have, brought how many those had that the client brought
	// along.
	bytes, brought int
	entries        map[string]*entry
	out            *unanswered
	// due: the client waits for an answer, though there may be nothing to say.
	due bool
	// suspects were in a response that was rejected, and are sent one by one.
	suspects map[string]struct{}
	// withheld are not sent, since there is no space for them in a response; by name, as
	// the last plan found it.
	withheld map[string]Withheld
	// owed are sent with the first response, also to a client that brings them along: what
	// refers to them was sent before it asked.
	owed map[string]struct{}

	// What status reports. waiting is that of the last plan.
	sent, accepted bool
	waiting        bool
	detail         string
	version        string // of the last response that the client accepted
	synced         resource.Revision
	taken          uint64 // the target that it has
}

// entry is where the client stands with one resource.
type entry struct {
	// held is what the client has, as far as it said so; nil for nothing. A version
	// that a client brought along and that is not known here has no body.
	held *xds.Resource
	// told: the client has been answered about this name.
	told bool
	// force: it is sent although nothing changed.
	force bool
	// again: held is what the client had when an earlier stream ended; it is sent once
	// more if it is to have it.
	again bool
	// brought: the client had something under the name when it connected, and it is not
	// known what.
	brought bool
	// maybe is what the client may have instead: it was in a response that was rejected,
	// of which clients take on what is valid. nil when there is no doubt.
	maybe *xds.Resource
	// variant is how held names clusters that it does not send calls to.
	variant variant
	// awaits is since when the client's clusters hold up its routes; zero when they do not.
	awaits time.Time
	// refused is the version that the client is to have, of which it refused a variant.
	refused string
	// none is the assignment that says that a name has no endpoints, once made.
	none *xds.Resource
	// unused is since when nothing has referred to a cluster that is to go.
	unused time.Time
}

// unanswered is a response that the client has not answered.
type unanswered struct {
	nonce   string
	version string
	changes []change
	// sent are the names of the changes that are no removals.
	sent map[string]struct{}
	// since is when it was made.
	since time.Time
}

// sends reports whether the response has a resource of a name.
func (u *unanswered) sends(name string) bool {
	_, sent := u.sent[name]
	return sent
}

type change struct {
	name  string
	entry *entry // the client may have ended that subscription since, and begun another
	to    *xds.Resource
	// target is what the client is to have when to is a variant of routes on the way to
	// it, and variant how; nil when to is that itself.
	target  *xds.Resource
	variant variant
}

// introduces reports whether the change introduces the clusters of other routes.
func (c *change) introduces() bool { return c.target != nil && c.variant.base != c.target }

// New returns the stream of a client that has just connected. It sends nothing
// before the first SetTarget.
func New(cfg Config) *Stream {
	s := &Stream{cfg: cfg}
	for i := range s.types {
		s.types[i].names, s.types[i].entries = map[string]struct{}{}, map[string]*entry{}
	}
	return s
}

// SetTarget gives the set of resources that the proxy is to have from now on.
func (s *Stream) SetTarget(set *xds.Set) {
	s.set = set
	s.targets++
	s.cfg.Memory.retain(set)
	for i := range s.types {
		s.dropAll(xds.Type(i))
	}
	for name, e := range s.types[xds.Cluster].entries {
		if set.Get(xds.Ref{Type: xds.Cluster, Name: name}) != nil {
			e.unused = time.Time{} // it is used again
		}
	}
}

// Answers reports whether a request answers the last response of its type.
func (s *Stream) Answers(r Request) bool {
	out := s.types[r.Type].out
	return out != nil && out.nonce == r.Nonce
}

// Handle takes a request. An error ends the stream: ErrTooManyNames.
func (s *Stream) Handle(r Request) error {
	t := &s.types[r.Type]
	if out := t.out; s.Answers(r) {
		t.out, s.answered = nil, true
		if r.Rejected {
			s.reject(r.Type, out, r.Detail)
		} else {
			s.accept(r.Type, out)
		}
	}
	if err := checkNames(r); err != nil {
		return err
	}
	if s.cfg.Delta {
		s.subscribeDelta(r.Type, r)
	} else {
		s.subscribe(r.Type, r.Names)
		if !t.asked {
			s.resume(r.Type, r.Version)
		}
	}
	names := len(t.names)
	if !t.asked { // it brings names along, too
		names = len(t.entries)
	}
	if !t.asked {
		t.brought = bytesOf(r.Initial)
	}
	t.asked = true
	if names > MaxNames {
		return fmt.Errorf("%w: %d of %s, more than %d", ErrTooManyNames, names, r.Type, MaxNames)
	}
	t.bytes = bytesOf(t.names)
	total := 0
	for i := range s.types { // what a client brings along, it commonly subscribes to
		total += max(s.types[i].bytes, s.types[i].brought)
	}
	if total > MaxBytes {
		return fmt.Errorf("%w: they have %d bytes, more than %d", ErrTooManyNames, total, MaxBytes)
	}
	return nil
}

// bytesOf returns how many bytes names have.
func bytesOf[V any](names map[string]V) int {
	n := 0
	for name := range names {
		n += len(name)
	}
	return n
}

func checkNames(r Request) error {
	if n := max(len(r.Names), len(r.Subscribe), len(r.Unsubscribe), len(r.Initial)); n > MaxNames {
		return fmt.Errorf("%w: %d of %s, more than %d", ErrTooManyNames, n, r.Type, MaxNames)
	}
	for _, names := range [][]string{r.Names, r.Subscribe, slices.Collect(maps.Keys(r.Initial))} {
		for _, name := range names {
			if len(name) > MaxNameBytes {
				return fmt.Errorf("%w: a name of %s has %d bytes, more than %d", ErrTooManyNames, r.Type, len(name), MaxNameBytes)
			}
		}
	}
	return nil
}

// accept notes that the client has what a response said.
func (s *Stream) accept(typ xds.Type, out *unanswered) {
	t := &s.types[typ]
	t.accepted, t.detail, t.version = true, "", out.version
	if s.full(typ) {
		for _, e := range t.entries {
			e.brought = false // it has what was in the response, and nothing else
		}
	}
	for _, c := range out.changes {
		if c.entry.variant = c.variant; !c.introduces() {
			c.entry.awaits = time.Time{}
		}
		s.released(c.entry)
		c.entry.held, c.entry.told, c.entry.maybe, c.entry.brought = c.to, true, nil, false
		s.resolved(typ, c)
	}
}

// resolved forgets what need not be remembered of a change that is over.
func (s *Stream) resolved(typ xds.Type, c change) {
	t := &s.types[typ]
	if now := t.entries[c.name]; now != c.entry {
		if now != nil && now.held == nil {
			now.maybe = c.to // it subscribed again before the response came
		}
		return
	}
	delete(t.suspects, c.name)
	if _, named := t.names[c.name]; c.to == nil && !named {
		delete(t.entries, c.name)
	}
	s.drop(typ, c.name)
}

// reject notes that the client did not take on all of what a response said.
func (s *Stream) reject(typ xds.Type, out *unanswered, detail string) {
	t := &s.types[typ]
	if len(detail) > maxDetailBytes {
		detail = strings.ToValidUTF8(detail[:maxDetailBytes], "")
	}
	t.detail = cmp.Or(detail, "no reason given")
	for _, c := range out.changes {
		c.entry.told = true
		switch {
		case c.to == nil: // a client cannot keep what is gone: this is not said again
			s.released(c.entry)
			c.entry.held, c.entry.maybe, c.entry.variant = nil, nil, variant{}
			s.resolved(typ, c)
		case t.entries[c.name] != c.entry:
			s.resolved(typ, c)
		case len(out.changes) > 1:
			if t.suspects == nil {
				t.suspects = map[string]struct{}{}
			}
			t.suspects[c.name], c.entry.maybe = struct{}{}, c.to
		case c.to == c.entry.none: // there is nothing else to send, nor to remember
			c.entry.held, c.entry.maybe = c.to, nil
			s.resolved(typ, c)
		default:
			c.entry.keep(c.to)
			s.resolved(typ, c)
			if c.target != nil {
				c.entry.refused = c.target.Version // it is sent that itself
				continue
			}
			if c.entry.has(c.to) { // as a variant, which stays
				c.entry.variant.delayed = false
				for spare := range c.entry.variant.spares {
					c.entry.variant.spares[spare] = s.now
				}
				continue
			}
			good := known(c.entry.live())
			if s.exists(typ, c.name) { // otherwise it is not sent again
				s.cfg.Memory.reject(Rejection{Resource: c.to, Detail: t.detail, good: good})
			}
		}
	}
}

// keep notes that the client rejected a version and keeps what it had. What it may have
// taken on of an earlier response stays in doubt, unless that was this version or it has
// just been sent the version to go back to.
func (e *entry) keep(rejected *xds.Resource) {
	if e.maybe != nil && (e.maybe.Version == rejected.Version || e.held != nil && e.held.Version == rejected.Version) {
		e.maybe = nil
	}
}

// known returns a resource of which more than the version is known.
func known(r *xds.Resource) *xds.Resource {
	if r == nil || r.Body == nil {
		return nil
	}
	return r
}

// target returns what the client is to have under a name, which for a version that
// it rejected is the one it has; nil for nothing, and for what is withheld. exists is
// false when the set has no such resource.
func (s *Stream) target(ref xds.Ref) (r *xds.Resource, exists bool) {
	if r, exists = s.best(ref); r != nil && s.types[ref.Type].withholds(r) {
		return nil, true
	}
	return r, exists
}

// best is target where there is space for everything.
func (s *Stream) best(ref xds.Ref) (r *xds.Resource, exists bool) {
	r = s.set.Get(ref)
	if r == nil {
		return nil, false
	}
	if e := s.types[ref.Type].entries[ref.Name]; e != nil && e.has(r) {
		return r, true // accepted here, whatever another client said
	}
	return s.cfg.Memory.best(r), true
}

// settled reports whether the client needs nothing more of a cluster before what
// refers to it. stuck means that it never will, as things stand.
func (s *Stream) settled(ref xds.Ref) (settled, stuck bool) {
	t := &s.types[ref.Type]
	if ref.Type == xds.Cluster && s.keepsClusters() {
		return true, false // it has what it asks for
	}
	if !t.asked || !s.subscribed(t, ref.Name) {
		return true, false // a client that follows references asks for it then
	}
	if t.out != nil && t.out.sends(ref.Name) {
		return false, false
	}
	target, exists := s.target(ref)
	e := t.entries[ref.Name]
	switch {
	case !exists || target == nil: // gone, rejected, or withheld
		held := e != nil && e.held != nil
		return held, !held
	}
	return e != nil && e.held != nil && e.held.Version == target.Version, false
}

// ready reports whether everything that a listener or route configuration needs is
// there.
func (s *Stream) ready(r *xds.Resource) (ready, stuck bool) {
	ready = true
	for _, used := range r.Uses {
		ok, never := true, false
		switch used.Type {
		case xds.Cluster:
			ok, never = s.settled(used)
		case xds.Route:
			if routes := s.set.Get(used); routes != nil {
				ok, never = s.ready(routes)
			}
		case xds.Endpoints, xds.Listener:
		}
		ready, stuck = ready && ok, stuck || never
	}
	return ready, stuck
}

// plan is what could be sent of one type.
type plan struct {
	changes []change
	// waiting: there is more, which waits for the client.
	waiting bool
}

// rejectedAny reports whether the client has rejected something of a type that it
// should have, or is not sent it for its size.
func (s *Stream) rejectedAny(typ xds.Type) bool {
	return len(s.rejections(typ)) > 0 || len(s.withheldOf(typ)) > 0
}

func (s *Stream) rejections(typ xds.Type) []Rejection {
	t := &s.types[typ]
	if s.set == nil || !t.asked {
		return nil
	}
	var found []Rejection
	for _, r := range s.set.Of(typ) {
		if !s.subscribed(t, r.Name) {
			continue
		}
		if e := t.entries[r.Name]; e != nil && e.has(r) {
			continue
		}
		if rejection, rejected := s.cfg.Memory.get(r); rejected {
			found = append(found, rejection)
		}
	}
	return found
}
