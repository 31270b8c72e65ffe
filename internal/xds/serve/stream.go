package serve

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

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
	// stock clients receive messages of up to 4 MiB.
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

	// Names is the whole subscription, in the variant state of the world.
	Names []string

	// Subscribe, Unsubscribe and Initial (versions that the client has, by name) are
	// those of the incremental variant.
	Subscribe, Unsubscribe []string
	Initial                map[string]string
}

// Response is what a client is sent.
type Response struct {
	Type xds.Type
	// Nonce cannot be guessed: who repeats it has read the response.
	Nonce   string
	Version string
	// Resources are everything that the client is to have of clusters and listeners in
	// the variant state of the world; otherwise those that changed.
	Resources []*xds.Resource
	// Removed are names that do not exist, in the incremental variant.
	Removed []string
}

// Bytes returns how many bytes the resources and names of a response have.
func (r *Response) Bytes() int {
	n := 0
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
	cfg   Config
	set   *xds.Set
	types [len(xds.Types)]typeState
	now   time.Time // of the last Next
	wake  time.Time
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
	// owed are sent with the first response, also to a client that brings them along: what
	// refers to them was sent before it asked.
	owed map[string]struct{}

	// What status reports. waiting is that of the last plan.
	sent, accepted bool
	waiting        bool
	detail         string
	synced         resource.Revision
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
	// maybe is what the client may have instead: it was in a response that was rejected,
	// of which clients take on what is valid. nil when there is no doubt.
	maybe *xds.Resource
	// introduced is what held introduces; zero when it does not.
	introduced introduced
	// none is the assignment that says that a name has no endpoints, once made.
	none *xds.Resource
	// unused is since when nothing has referred to a cluster that is to go.
	unused time.Time
}

// unanswered is a response that the client has not answered.
type unanswered struct {
	nonce   string
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
	// introduces is the resource that to makes way for; nil when to is what was to be
	// sent.
	introduces *xds.Resource
}

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
		t.out = nil
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
	t.accepted, t.detail = true, ""
	for _, c := range out.changes {
		if c.introduces == nil {
			c.entry.introduced = introduced{}
		} else if c.entry.introduced.base == nil {
			c.entry.introduced.base = c.entry.held
		}
		s.released(c.entry)
		c.entry.held, c.entry.told, c.entry.maybe = c.to, true, nil
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
			c.entry.held, c.entry.maybe = nil, nil
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
			if c.introduces != nil {
				continue // it is sent what was to follow
			}
			good := known(c.entry.held)
			if base := c.entry.introduced.base; base != nil {
				good = base
			}
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
// it rejected is the one it has; nil for nothing. exists is false when the set has
// no such resource.
func (s *Stream) target(ref xds.Ref) (r *xds.Resource, exists bool) {
	r = s.set.Get(ref)
	if r == nil {
		return nil, false
	}
	if e := s.types[ref.Type].entries[ref.Name]; e != nil && e.held != nil && e.held.Version == r.Version {
		return r, true // accepted here, whatever another client said
	}
	return s.cfg.Memory.best(r), true
}

// settled reports whether the client needs nothing more of a cluster before what
// refers to it. stuck means that it never will, as things stand.
func (s *Stream) settled(ref xds.Ref) (settled, stuck bool) {
	t := &s.types[ref.Type]
	if !t.asked || !s.subscribed(t, ref.Name) {
		return true, false // a client that follows references asks for it then
	}
	if t.out != nil && t.out.sends(ref.Name) {
		return false, false
	}
	target, exists := s.target(ref)
	e := t.entries[ref.Name]
	switch {
	case !exists || target == nil: // gone, or rejected
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

// Next returns the next response to send, if there is one at the moment. Call it
// again until there is none.
func (s *Stream) Next(now time.Time) (Response, bool) {
	s.now, s.wake = now, time.Time{}
	if s.set == nil {
		return Response{}, false
	}
	defer func() { s.used = [len(xds.Types)]*usage{} }()
	var plans [len(xds.Types)]plan
	pending := false
	for _, typ := range xds.Types {
		plans[typ] = s.upserts(typ)
		s.types[typ].waiting = plans[typ].waiting
		if typ == xds.Listener || typ == xds.Route {
			pending = pending || plans[typ].waiting || len(plans[typ].changes) > 0 || s.types[typ].out != nil
		}
	}
	for _, typ := range xds.Types {
		if r, ok := s.send(typ, plans[typ].changes); ok {
			return r, true
		}
	}
	pending = pending || s.types[xds.Cluster].out != nil
	for _, typ := range []xds.Type{xds.Listener, xds.Route, xds.Cluster, xds.Endpoints} {
		if r, ok := s.send(typ, s.removals(typ, pending, now)); ok {
			return r, true
		}
	}
	for _, typ := range xds.Types {
		t := &s.types[typ]
		if t.due && t.out == nil && !plans[typ].waiting {
			if r, ok := s.answer(typ); ok {
				return r, true
			}
		}
		if t.asked && t.out == nil && len(plans[typ].changes) == 0 && !plans[typ].waiting && !s.rejectedAny(typ) {
			t.synced = s.set.AsOf
		}
	}
	return Response{}, false
}

// Wake returns when Next may have something to send although nothing has happened;
// zero for never.
func (s *Stream) Wake() time.Time { return s.wake }

// wanted are the names of a type that the client is to be sent something about,
// in order.
func (s *Stream) wanted(typ xds.Type) []string {
	t := &s.types[typ]
	names := make([]string, 0, len(t.names))
	for name := range t.names {
		names = append(names, name)
	}
	if t.wildcard {
		for _, r := range s.set.Of(typ) {
			names = append(names, r.Name)
		}
		for name := range t.entries {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// upserts returns what the client has to be sent to have what it should.
func (s *Stream) upserts(typ xds.Type) plan {
	t := &s.types[typ]
	var p plan
	if !t.asked {
		return p
	}
	for _, name := range s.wanted(typ) {
		e := t.entries[name]
		target, exists := s.target(xds.Ref{Type: typ, Name: name})
		if !exists {
			target = s.absent(typ, name, e)
		}
		if target == nil {
			continue
		}
		if e != nil && e.held != nil && e.held.Version == target.Version {
			e.held = target // of what a client brought along, only the version was known
			if !e.force && e.maybe == nil {
				continue
			}
		}
		if typ == xds.Route {
			instead, wait := s.introduce(e, target)
			if wait {
				p.waiting = true
				continue
			}
			if instead != nil { // it sends to nothing that the client's routes do not
				p.changes, p.waiting = append(p.changes, change{name, e, instead, target}), true
				continue
			}
		}
		ready, stuck := s.ready(target)
		if !ready {
			p.waiting = p.waiting || !stuck
			continue
		}
		p.changes = append(p.changes, change{name: name, entry: e, to: target})
	}
	if len(t.suspects) == 0 {
		return p
	}
	for i, c := range p.changes {
		if _, suspect := t.suspects[c.name]; suspect {
			p.waiting = p.waiting || len(p.changes) > 1
			p.changes = p.changes[i : i+1]
			return p
		}
	}
	clear(t.suspects) // they are as they should be, or gone
	return p
}

// absent returns what the client is to have under a name that the set does not have:
// endpoints that are none, or again what it has until that is removed; nil for nothing.
func (s *Stream) absent(typ xds.Type, name string, e *entry) *xds.Resource {
	if e == nil {
		return nil
	}
	switch {
	case e.held != nil && typ == xds.Endpoints && s.inUse(xds.Ref{Type: typ, Name: name}, xds.Cluster) && (known(e.held) != nil || !e.force):
		// Requests may still go there, also to what it brought along, which is not known
		// here and can be repeated to no cluster that waits for it.
		return known(e.held)
	case typ != xds.Endpoints && known(e.held) != nil:
		return e.held
	case typ != xds.Endpoints:
		return nil
	case e.none == nil:
		r, err := xds.New(&endpointv3.ClusterLoadAssignment{ClusterName: name})
		if err != nil {
			return nil // the empty name
		}
		e.none = r
	}
	return e.none
}

// full reports whether each response of a type has everything.
func (s *Stream) full(typ xds.Type) bool { return !s.cfg.Delta && typ.Implied() }

// send makes the response with changes, unless there are none or the last one is
// unanswered.
func (s *Stream) send(typ xds.Type, changes []change) (Response, bool) {
	t := &s.types[typ]
	if len(changes) == 0 || t.out != nil {
		return Response{}, false
	}
	if !s.full(typ) {
		changes = bounded(changes)
	}
	if !s.cfg.Delta && typ == xds.Route {
		// This variant cannot say that routes are gone; nothing refers to them.
		s.used[typ] = nil
		changes = slices.DeleteFunc(changes, func(c change) bool {
			if c.to == nil {
				c.entry.held, c.entry.maybe = nil, nil
			}
			return c.to == nil
		})
		if len(changes) == 0 {
			return Response{}, false
		}
	}
	return s.respond(typ, changes), true
}

// bounded returns as many changes as fit into a response, at least one.
func bounded(changes []change) []change {
	size := 0
	for i, c := range changes {
		if c.to != nil {
			size += len(c.to.Body)
		}
		if size > maxResponseBytes && i > 0 {
			return changes[:i]
		}
	}
	return changes
}

// answer makes the response to a client that waits for one, though nothing that it
// asked for exists or differs.
func (s *Stream) answer(typ xds.Type) (Response, bool) {
	t := &s.types[typ]
	t.due = false
	for name := range t.names {
		if e := t.entries[name]; e != nil && s.set.Get(xds.Ref{Type: typ, Name: name}) == nil {
			e.told = true
		}
	}
	if !typ.Implied() || s.cfg.Delta && t.sent {
		return Response{}, false
	}
	return s.respond(typ, nil), true
}

// respond makes a response and notes it as unanswered.
func (s *Stream) respond(typ xds.Type, changes []change) Response {
	t := &s.types[typ]
	r := Response{Type: typ, Nonce: rand.Text()}
	sent := map[string]struct{}{}
	for i, c := range changes {
		if c.entry == nil {
			c.entry = &entry{}
			t.entries[c.name], changes[i].entry = c.entry, c.entry
		}
		c.entry.force = false
		if c.introduces != nil {
			c.entry.introduced.to, c.entry.introduced.since = c.introduces.Version, s.now
		}
		if c.to == nil {
			r.Removed = append(r.Removed, c.name)
			continue
		}
		r.Resources = append(r.Resources, c.to)
		sent[c.name] = struct{}{}
		s.resend(c.to)
	}
	if s.full(typ) {
		r.Resources, r.Removed = s.world(typ, changes), nil
	}
	r.Version = versionOf(r.Resources, r.Removed)
	t.out = &unanswered{nonce: r.Nonce, changes: changes, sent: sent, since: s.now}
	t.due, t.sent = false, true
	return r
}

// resend has what a cluster or listener refers to sent after it.
func (s *Stream) resend(r *xds.Resource) {
	for _, used := range r.Uses {
		if r.Type == xds.Cluster && used.Type == xds.Endpoints || r.Type == xds.Listener && used.Type == xds.Route {
			t := &s.types[used.Type]
			if e := t.entries[used.Name]; e != nil {
				e.force = true
			} else if s.cfg.Delta && !t.asked {
				if t.owed == nil {
					t.owed = map[string]struct{}{}
				}
				t.owed[used.Name] = struct{}{}
			}
		}
	}
}

// world returns everything that the client is to have of a type once it has taken
// on some changes.
func (s *Stream) world(typ xds.Type, changes []change) []*xds.Resource {
	t := &s.types[typ]
	have := make(map[string]*xds.Resource, len(t.entries))
	for name, e := range t.entries {
		if e.held != nil {
			have[name] = e.held
		}
	}
	for _, c := range changes {
		if c.to == nil {
			delete(have, c.name)
		} else {
			have[c.name] = c.to
		}
	}
	all := make([]*xds.Resource, 0, len(have))
	for _, name := range slices.Sorted(maps.Keys(have)) {
		all = append(all, have[name])
	}
	return all
}

// versionOf returns the version of a response: a hash of its content.
func versionOf(resources []*xds.Resource, removed []string) string {
	h := sha256.New()
	for _, r := range resources {
		fmt.Fprintf(h, "%q %q\n", r.Name, r.Version)
	}
	for _, name := range removed {
		fmt.Fprintf(h, "%q\n", name)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}

// rejectedAny reports whether the client has rejected something of a type that it
// should have.
func (s *Stream) rejectedAny(typ xds.Type) bool { return len(s.rejections(typ)) > 0 }

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
		if e := t.entries[r.Name]; e != nil && e.held != nil && e.held.Version == r.Version {
			continue
		}
		if rejection, rejected := s.cfg.Memory.get(r); rejected {
			found = append(found, rejection)
		}
	}
	return found
}
