package zonesync

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Instance is what one server knows of one replica of a zone, which is connected
// to it or was last.
type Instance struct {
	Zone resource.ZoneName
	ID   string
	// Server is the one that knows it, as ServerConfig.Name.
	Server string
	// Lease rises with every connection of the instance, to whichever server: of
	// two servers, the one with the higher lease had the later contact.
	Lease     uint64
	Connected bool
	// Quiet is the time since the last contact with it. It is an age and not a time,
	// since the clocks of servers differ.
	Quiet time.Duration
	// Epoch and Revision are what it has acknowledged, Lag the synced changes after that, as
	// far as the server has them; zero while it may put off their acknowledgement.
	Epoch     store.Epoch
	Revision  resource.Revision
	Lag       uint64
	LastError string
	// Version is the release that it runs, Authorities those by which it verifies
	// servers (pki.Digest).
	Version, Authorities string
	// Quarantined is what it could not accept, by key.
	Quarantined []Quarantined
	// ServersOfZone is how many servers its zone has, as it says; 0: it does not.
	ServersOfZone int
	// Drains says that it can be told to drain, Draining how far it has.
	Drains   bool
	Draining Draining
	// Applied says, in an answer of Await, that it holds what was waited for.
	Applied bool
}

// Silent reports whether the instance has sent nothing for so long that it
// may not answer a question.
func (i Instance) Silent() bool { return i.Quiet >= silentAfter }

// Report is what one server knows of the zones that are or were connected to
// it.
type Report struct {
	// Server is the one that reports, as ServerConfig.Name.
	Server string
	// Epoch is the server's, Newest the newest revision in it that changed
	// anything synced, as far as the server has come.
	Epoch  store.Epoch
	Newest resource.Revision
	// Changed is the revision of the newest batch that changed anything at all
	// there, and Digest that of everything as of then: servers that have come
	// equally far have equal digests.
	Changed resource.Revision
	Digest  store.Digest
	// Reached says, in an answer of Await, that the server itself has applied
	// the revision waited for; Late names the zones that had yet to apply it when
	// of the last contact.
	Reached   bool
	Late      []resource.ZoneName
	Instances []Instance
	// Address is where zones reach the server; empty while it serves none, or is of a
	// release that does not say.
	Address string
}

// newer reports whether a has come further than b.
func (a Report) newer(b Report) bool {
	return cmp.Or(cmp.Compare(a.Epoch.Incarnation, b.Epoch.Incarnation), cmp.Compare(a.Newest, b.Newest)) > 0
}

// Report returns what this server knows of zones.
func (s *Server) Report() Report {
	at, v := s.feed.position(), s.cfg.Store.View()
	r := Report{Server: s.cfg.Name, Epoch: at.epoch, Newest: at.last, Instances: s.instances(time.Now(), nil)}
	if v.Epoch() == at.epoch {
		r.Changed, r.Digest = v.Changed(), v.DigestOf(nil)
	}
	if _, err := s.rechecked(); err == nil {
		r.Address = s.cfg.Address
	}
	return r
}

// Differs reports whether another server holds something else than this one as
// of the same revision of the same history, which must never be. It is known
// only of revisions that this server still remembers.
func (s *Server) Differs(other Report) bool {
	v, err := s.cfg.Store.ViewAt(other.Changed)
	return err == nil && other.Changed != 0 && v.Changed() == other.Changed && v.Epoch() == other.Epoch && v.DigestOf(nil) != other.Digest
}

// instances returns what the registry holds, in order of zones and instances.
// applied, unless nil, decides what an instance's Applied says.
func (s *Server) instances(now time.Time, applied func(*instance) bool) []Instance {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Instance
	for _, zone := range slices.Sorted(maps.Keys(r.zones)) {
		for _, id := range slices.Sorted(maps.Keys(r.zones[zone])) {
			in := r.zones[zone][id]
			out = append(out, Instance{
				Zone: zone, ID: id, Server: s.cfg.Name, Lease: in.lease, Connected: in.conn != nil, Quiet: now.Sub(in.lastSeen),
				Epoch: in.epoch, Revision: in.acked, Lag: s.lag(in.acked, in.epoch, in.lastSeen, now), LastError: in.problem(),
				Version: in.version, Authorities: in.authorities, Drains: in.drains, Draining: in.draining, ServersOfZone: int(in.serversOfZone),
				Quarantined: slices.SortedFunc(maps.Values(in.quarantined), func(a, b Quarantined) int { return a.Key.Compare(b.Key) }),
				Applied:     applied != nil && applied(in),
			})
		}
	}
	return out
}

// Zones returns what is known of every zone that has connected to this server,
// or to one of those whose reports are given, by name.
func (s *Server) Zones(others ...Report) []ZoneStatus {
	own := s.Report()
	newest, now := own, time.Now()
	for _, r := range others {
		if r.newer(newest) {
			newest = r
		}
	}
	all := append([]Report{own}, others...)
	for i, r := range all {
		all[i].Instances = s.recount(r, own, newest, now)
	}
	merged := Merge(all...)
	out := make([]ZoneStatus, 0, len(merged))
	for _, zone := range slices.Sorted(maps.Keys(merged)) {
		out = append(out, summary(zone, merged[zone], now))
	}
	return out
}

// recount returns the instances of a report. A server that is behind others counts too few
// changes: they are counted here instead, where this server has come further, or else at
// least known to be there.
func (s *Server) recount(r, own, newest Report, now time.Time) []Instance {
	out, counted := slices.Clone(r.Instances), r
	if own.newer(r) {
		counted = own
	}
	for i := range out {
		in := &out[i]
		if own.newer(r) {
			in.Lag = s.lag(in.Revision, in.Epoch, now.Add(-in.Quiet), now)
		}
		if in.Lag == 0 && (in.Epoch != newest.Epoch || newest.newer(counted) && in.Revision < newest.Newest) {
			in.Lag = 1
		}
	}
	return out
}

// withheldFor is how old a change is that counts as lag in any case: in the time before, a
// zone far away may not have received it, applied it and acknowledged it after others.
const withheldFor = time.Second

// lag counts the synced changes after a revision that a zone acknowledged last, at a time.
// It is zero, too, while the zone keeps up with changes that are made one after the other,
// and may put their acknowledgement off: what would otherwise count is how often it
// acknowledges.
func (s *Server) lag(r resource.Revision, epoch store.Epoch, last, now time.Time) uint64 {
	if s.feed.withheld(r, epoch, last, now) {
		return 0
	}
	return s.feed.lag(r, epoch)
}

// Merge puts together what several servers know: of an instance that more than
// one of them knows, the report with the latest contact; of a zone that is
// connected, only the instances that are. Instances are in order.
func Merge(reports ...Report) map[resource.ZoneName][]Instance {
	type replica struct {
		zone resource.ZoneName
		id   string
	}
	last := map[replica]Instance{}
	connected := map[resource.ZoneName]bool{}
	for _, r := range reports {
		for _, in := range r.Instances {
			key := replica{in.Zone, in.ID}
			if known, ok := last[key]; !ok || later(in, known) {
				last[key] = in
			}
		}
	}
	for key, in := range last {
		connected[key.zone] = connected[key.zone] || in.Connected
	}
	out := map[resource.ZoneName][]Instance{}
	for key, in := range last {
		if in.Connected || !connected[key.zone] {
			out[key.zone] = append(out[key.zone], in)
		}
	}
	for _, instances := range out {
		slices.SortFunc(instances, func(a, b Instance) int { return strings.Compare(a.ID, b.ID) })
	}
	return out
}

// later reports whether a says more recent things of an instance than b.
func later(a, b Instance) bool {
	switch {
	case a.Lease != b.Lease:
		return a.Lease > b.Lease
	case a.Connected != b.Connected:
		return a.Connected
	}
	return a.Quiet < b.Quiet
}

// summary sums the instances of a zone up: either all of them are connected, or
// none is.
func summary(zone resource.ZoneName, instances []Instance, now time.Time) ZoneStatus {
	out := ZoneStatus{Name: zone, State: ZoneOffline}
	quarantined := map[resource.Key]Quarantined{}
	silent, differ := false, false
	for i, in := range instances {
		if in.Connected {
			out.Instances = append(out.Instances, in.ID)
			if !slices.Contains(out.Servers, in.Server) {
				out.Servers = append(out.Servers, in.Server)
			}
			if in.Version != "" && !slices.Contains(out.Versions, in.Version) {
				out.Versions = append(out.Versions, in.Version)
			}
			if len(out.Instances) == 1 {
				out.Authorities = in.Authorities
			} else if out.Authorities != in.Authorities {
				differ = true
			}
			silent = silent || in.Quiet > staleAfter
			out.ServersOfZone = max(out.ServersOfZone, in.ServersOfZone)
		}
		if seen := now.Add(-in.Quiet); seen.After(out.LastSeen) {
			out.LastSeen = seen
		}
		out.LastError = max(out.LastError, in.LastError)
		for _, q := range in.Quarantined {
			quarantined[q.Key] = q
		}
		out.Lag = max(out.Lag, in.Lag)
		if i == 0 || in.Revision < out.Revision {
			out.Revision = in.Revision
		}
	}
	out.Quarantined = slices.SortedFunc(maps.Values(quarantined), func(a, b Quarantined) int { return a.Key.Compare(b.Key) })
	slices.Sort(out.Versions)
	out.Draining, out.CanDrain = sumDraining(instances)
	if differ {
		out.Authorities = ""
	}
	switch {
	case len(out.Instances) == 0:
	case silent:
		out.State = ZoneStale
	case out.Lag > 0:
		out.State = ZoneLagging
	default:
		out.State = ZoneInSync
	}
	return out
}

// NotAppliedError means that the caller stopped waiting before every connected
// zone had applied a revision. The write itself stands.
type NotAppliedError struct {
	Revision resource.Revision
	// Zones are those that had not, sorted.
	Zones []resource.ZoneName
	// Unasked are the servers that could not say how their zones stand.
	Unasked []string
	// Cause is why the wait ended.
	Cause error
}

func (e *NotAppliedError) Error() string {
	if len(e.Zones) == 0 && len(e.Unasked) > 0 {
		return fmt.Sprintf("whether revision %d is applied is not known of the zones of %s, which have not answered", e.Revision, strings.Join(e.Unasked, ", "))
	}
	names := make([]string, len(e.Zones))
	for i, z := range e.Zones {
		names[i] = string(z)
	}
	text := fmt.Sprintf("revision %d is not applied yet in: %s", e.Revision, strings.Join(names, ", "))
	if len(e.Unasked) > 0 {
		text += "; nor is it known of the zones of " + strings.Join(e.Unasked, ", ") + ", which have not answered"
	}
	return text
}

func (e *NotAppliedError) Unwrap() error { return e.Cause }

// Await returns when this server has applied a revision, and so has every zone
// that was connected to it during the call; or when ctx ends: then the report
// says how far they have come.
func (s *Server) Await(ctx context.Context, rev resource.Revision) Report {
	var wait Wait
	for prompted := false; ; {
		feed, zones := s.feed.changed(), s.registry.changed()
		report, floor := s.reportAt(rev)
		report.Late = wait.Missing(report)
		if report.Reached && len(report.Late) == 0 {
			return report
		}
		if report.Reached && !prompted {
			prompted = true // one that connects later is sent a bookmark by then
			s.prompt(floor)
		}
		select {
		case <-feed:
		case <-zones:
		case <-s.ending:
			return report
		case <-ctx.Done():
			return report
		}
	}
}

// prompt has the zones that are connected to this server acknowledge a revision at once,
// unless they have.
func (s *Server) prompt(rev resource.Revision) {
	for _, c := range s.dispatcher.streams() {
		c.want(rev)
	}
}

// reportAt is a report that says who has applied a revision, once the feed has reached it:
// floor is what a replica then has that holds it.
func (s *Server) reportAt(rev resource.Revision) (r Report, floor resource.Revision) {
	if v := s.cfg.Store.View(); v.Revision() >= rev {
		rev = min(rev, v.Changed()) // nothing changed after that
	}
	floor, reached := s.feed.floor(rev)
	at := s.feed.position()
	return Report{
		Server: s.cfg.Name, Epoch: at.epoch, Newest: at.last, Reached: reached,
		Instances: s.instances(time.Now(), func(in *instance) bool {
			return reached && in.epoch == at.epoch && in.acked >= floor
		}),
	}, floor
}

// Wait follows, from report to report, which zones have yet to apply a revision.
// It does not wait for zones that are away all the time,
// unless they are expected; one that goes away while it is waited for is waited for until it is back, on whichever server.
// The zero value is ready to use.
type Wait struct{ awaited map[resource.ZoneName]bool }

// Expect has zones be waited for whether they are connected or not.
func (w *Wait) Expect(zones ...resource.ZoneName) {
	if w.awaited == nil {
		w.awaited = map[resource.ZoneName]bool{}
	}
	for _, zone := range zones {
		w.awaited[zone] = true
	}
}

// Missing returns the zones that have yet to apply the revision that the reports
// are about, in order. The reports are those of Await, of every server that can
// be asked.
func (w *Wait) Missing(reports ...Report) []resource.ZoneName {
	for _, r := range reports {
		w.Expect(r.Late...)
	}
	zones := Merge(reports...)
	for zone, instances := range zones {
		connected, applied := false, true
		for _, in := range instances {
			connected, applied = connected || in.Connected, applied && in.Applied
		}
		switch {
		case applied:
			delete(w.awaited, zone)
		case connected:
			w.Expect(zone)
		}
	}
	return slices.Sorted(maps.Keys(w.awaited))
}
