package audit

import (
	"container/list"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"meridian/internal/authn"
)

// The chains of refusals: what one kind of caller causes displaces nothing of the
// others.
const (
	// chainDenied: by callers with a token, and by those of loopback.
	chainDenied = "denied"
	// chainKubernetes: by users that an API server of Kubernetes named.
	chainKubernetes = "kubernetes"
	// chainRefused: by callers without credentials, or with ones that do not hold.
	chainRefused = "refused"
)

// chainNames are the names of all chains. The first is that of writes.
var chainNames = []string{"", chainDenied, chainKubernetes, chainRefused}

// baseOf begins the names of a chain's files.
func baseOf(name string) string {
	if name == "" {
		return "audit"
	}
	return name
}

// chainOf is the chain that a record goes to.
func chainOf(r Record) string {
	switch {
	case r.Decision != Denied && r.Decision != Refused:
		return ""
	case r.Who.Source == string(authn.FromKubernetes):
		return chainKubernetes
	case r.Decision == Refused || r.Who.Source == string(authn.FromNothing):
		return chainRefused
	}
	return chainDenied
}

// Limits of what refusals of one chain take.
const (
	// refusalRate is how much of a file they take at most, in bytes per second, and
	// refusalBurst how much more after a time without any.
	refusalRate, refusalBurst = 2 << 10, 1 << 20
	// maxSlots is how many callers are told apart at a time; further ones share a slot
	// per reason.
	maxSlots = 4096
	// maxDistinct is how many different requests of a slot are written in full within
	// its window.
	maxDistinct = 16
	// maxWindow is the longest window of a slot, of one that is refused all the time.
	maxWindow = time.Minute
)

// identity is who is refused for what: it has a slot of its own, so that no caller hides
// behind the refusals of others.
type identity struct{ source, name, host, rule string }

func identityOf(chain string, r Record) identity {
	of := identity{source: r.Who.Source, name: r.Who.Name, rule: r.Rule}
	if chain == chainRefused {
		of.host = network(r.From)
	}
	return of
}

// network is the host of an address; of IPv6, where a client has as many as it likes,
// the network of 64 bits.
func network(from string) string {
	addr, err := netip.ParseAddrPort(from)
	if err != nil {
		return from
	}
	host := addr.Addr().Unmap()
	if host.Is6() {
		if prefix, err := host.Prefix(64); err == nil {
			return prefix.Masked().String()
		}
	}
	return host.String()
}

// slot counts the refusals of an identity.
type slot struct {
	of identity
	// last is the last refusal that was only counted, and count their number, within
	// a window that began at since.
	last  Record
	count uint64
	since time.Time
	// written are the requests that were written in full since then.
	written []string
	window  time.Duration
	shared  bool
}

// refusals writes refusals to a chain. Of each slot the first different requests are
// written in full, and the number of the others when its window ends, which lasts the
// longer the longer it continues.
type refusals struct {
	chain *chain

	mu    sync.Mutex // guards all below
	slots map[identity]*list.Element
	// order holds the slots; those whose windows began first are in front.
	order *list.List
	// space is how many bytes may be written, as of filled.
	space  float64
	filled time.Time
}

func newRefusals(c *chain) *refusals {
	return &refusals{chain: c, slots: map[identity]*list.Element{}, order: list.New(), space: refusalBurst, filled: c.now()}
}

// write writes a refusal, or counts it.
func (f *refusals) write(r Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.slotLocked(identityOf(f.chain.name, r))
	about := requestOf(r)
	if !slices.Contains(s.written, about) && len(s.written) < maxDistinct && f.hasSpaceLocked() {
		s.written = append(s.written, about)
		f.putLocked(r)
		return
	}
	s.count++
	s.last = r
}

// requestOf is what makes two requests of a caller equal.
func requestOf(r Record) string {
	about := []string{r.Method, fmt.Sprint(len(r.Targets))}
	if len(r.Targets) > 0 {
		t := r.Targets[0]
		about = append(about, t.Action, t.Kind, t.Mesh, t.Name)
	}
	return strings.Join(about, " ")
}

func (f *refusals) slotLocked(of identity) *slot {
	if found := f.slots[of]; found != nil {
		return found.Value.(*slot)
	}
	shared := len(f.slots) >= maxSlots
	if shared {
		of.name, of.host = "", ""
		if found := f.slots[of]; found != nil {
			return found.Value.(*slot)
		}
	}
	s := &slot{of: of, since: f.chain.now(), window: SyncEvery, shared: shared}
	f.slots[of] = f.order.PushBack(s)
	return s
}

// hasSpaceLocked reports whether a line may be written now.
func (f *refusals) hasSpaceLocked() bool {
	now := f.chain.now()
	if d := now.Sub(f.filled); d > 0 {
		f.space = min(f.space+d.Seconds()*refusalRate, refusalBurst)
	}
	f.filled = now
	return f.space > 0
}

func (f *refusals) putLocked(r Record) {
	_, size, _ := f.chain.write(r) // the chain reports and keeps what it cannot write
	f.space -= float64(size)
}

// flush writes the numbers of slots whose windows have ended, oldest first, as far as
// there is space; with all, of all.
func (f *refusals) flush(all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.chain.now()
	var next *list.Element
	for e := f.order.Front(); e != nil; e = next {
		next = e.Next()
		s := e.Value.(*slot)
		switch {
		case !all && now.Sub(s.since) < s.window:
			continue
		case s.count == 0:
			f.order.Remove(e)
			delete(f.slots, s.of)
			continue
		case !all && !f.hasSpaceLocked():
			return
		}
		f.putLocked(s.summary())
		s.count, s.last, s.written = 0, Record{}, nil
		s.since, s.window = now, min(2*s.window, maxWindow)
		f.order.MoveToBack(e)
	}
}

// summary is the record of what was only counted.
func (s *slot) summary() Record {
	r := s.last
	r.Repeated = s.count - 1 // the record itself is one of those that it stands for
	if s.count == 1 && !s.shared {
		return r
	}
	whom := fmt.Sprintf("%q", s.of.name)
	switch {
	case s.shared:
		whom = "callers that are too many to tell apart"
		r.Who, r.From = Who{Source: s.of.source}, ""
	case s.of.host != "":
		whom = s.of.host
	}
	times := "refusals"
	if s.count == 1 {
		times = "refusal"
	}
	r.Method, r.Targets, r.Request = "audit/refusals", nil, ""
	r.Message = fmt.Sprintf("%d more %s of %s for %s since %s", s.count, times, whom, s.of.rule, s.since.UTC().Format(time.RFC3339))
	return r
}
