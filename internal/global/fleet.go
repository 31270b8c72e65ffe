package global

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	zonesync "meridian/internal/sync"
)

const (
	// surveyTimeout bounds how long another server may take to say what it knows
	// of zones.
	surveyTimeout = cluster.AnswerTimeout
	// silentTimeout is how long a question waits for a server that did not answer the
	// last survey: those that are down cost one surveyTimeout in all, not one for each
	// question. Run asks them with the whole surveyTimeout.
	silentTimeout = 100 * time.Millisecond
	// waitRound is how long one question lasts whether zones have applied a
	// revision.
	waitRound = time.Second
	// waitPause is how long a wait rests that has nothing to wait for but servers
	// and zones that are away.
	waitPause = 100 * time.Millisecond
	// silentGrace is after how long without an answer a server has no zones any
	// more: cut off from the others it lets them go within suspendAfter, and a
	// zone that hears nothing leaves within ten seconds.
	silentGrace = 15 * time.Second
	// probeInterval is how often a server looks which of the others can be asked.
	probeInterval = 5 * time.Second
)

// fleet knows the zones of the whole global: those connected to this server,
// and, by asking them, those connected to the others. Nothing it knows is kept:
// each question is answered by those who know now, and what cannot be asked is
// named.
//
// It is safe for concurrent use.
type fleet struct {
	zones *zonesync.Server
	// peers returns the other servers of the global.
	peers func() []peer

	log *slog.Logger

	// applied are the questions of the waits for zones.
	applied rounds[applied]

	mu sync.Mutex // guards what follows
	// silentSince are the servers that could not be asked, and since when.
	silentSince map[string]time.Time
	// diverging are the servers that were last found to hold something else than
	// this one.
	diverging []string
}

// peer is another server.
type peer struct {
	name string
	conn grpc.ClientConnInterface
}

func newFleet(zones *zonesync.Server, peers func() []peer, log *slog.Logger) *fleet {
	return &fleet{zones: zones, peers: peers, log: log, applied: rounds[applied]{first: waitPause, last: waitPause}, silentSince: map[string]time.Time{}}
}

// fleetStatus is what is known of the zones at one moment.
type fleetStatus struct {
	zones []zonesync.ZoneStatus
	// servers is the server to ask for each connected zone: the one with its most
	// advanced instance, of those that are not silent.
	servers map[resource.ZoneName]string
	// instances are those of each zone: the connected ones where there are any.
	instances map[resource.ZoneName][]zonesync.Instance
	// reports are what the other servers said.
	reports []zonesync.Report
	// silentServer are the servers that did not answer, by name.
	silent []silentServer
	// newest is the newest revision that changed anything for zones, and answered what zones
	// have said since that they hold.
	newest   resource.Revision
	answered *zoneRevisions
}

// zoneRevisions are revisions of zones. Nil keeps none.
type zoneRevisions struct {
	mu sync.Mutex
	of map[resource.ZoneName]resource.Revision
}

// note keeps the revision that an answer of a zone is of, 0 where it does not say.
func (z *zoneRevisions) note(zone resource.ZoneName, at resource.Revision) {
	if z == nil || at == 0 {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if before, known := z.of[zone]; !known || at < before {
		z.of[zone] = at
	}
}

// before reports whether an answer of a zone was older than a revision, and of which it was.
func (z *zoneRevisions) before(zone resource.ZoneName, revision resource.Revision) (at resource.Revision, older bool) {
	if z == nil {
		return 0, false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	at, known := z.of[zone]
	return at, known && at < revision
}

// silentServer is a server that did not answer.
type silentServer struct {
	name  string
	since time.Time
	err   error
}

// connected names the zones that can be asked, in order.
func (c fleetStatus) connected() []resource.ZoneName { return slices.Sorted(maps.Keys(c.servers)) }

// notes says what the survey may lack.
func (c fleetStatus) notes() []string {
	notes := make([]string, len(c.silent))
	for i, u := range c.silent {
		notes[i] = fmt.Sprintf("server %s could not be asked for its zones: %s", u.name, cluster.DescribeError(u.err))
	}
	return notes
}

// absent returns the servers that were not asked, and the enabled zones that an
// answer about all zones lacks or shows as they were before. A zone that has answered has
// said what it holds; it may be in sync by what it has acknowledged (see zonesync.Instance).
func (c fleetStatus) absent() []answer.Absence {
	var absent []answer.Absence
	for _, u := range c.silent {
		absent = append(absent, answer.Absence{Server: u.name, Reason: cluster.DescribeError(u.err)})
	}
	for _, z := range c.zones {
		_, connected := c.servers[z.Name]
		at, behind := c.answered.before(z.Name, c.newest)
		switch {
		case z.State == stateDisabled:
		case !connected:
			absent = append(absent, answer.Absence{Zone: z.Name, Reason: string(z.State)})
		case z.State != zonesync.ZoneInSync:
			absent = append(absent, answer.Absence{Zone: z.Name, Reason: fmt.Sprintf("%s, at revision %d", z.State, z.Revision)})
		case behind:
			absent = append(absent, answer.Absence{Zone: z.Name, Reason: fmt.Sprintf("%s, at revision %d", zonesync.ZoneLagging, at)})
		}
	}
	return absent
}

// absentWith is absent with zones that failed to answer, each zone named once.
func (c fleetStatus) absentWith(failed []answer.Absence) []answer.Absence {
	named := func(a answer.Absence) bool {
		return a.Zone != "" && slices.ContainsFunc(failed, func(f answer.Absence) bool { return f.Zone == a.Zone })
	}
	return append(slices.DeleteFunc(c.absent(), named), failed...)
}

// only returns the one zone that there is: no other one is enabled, and no server
// may know of another.
func (c fleetStatus) only() (resource.ZoneName, bool) {
	var enabled []resource.ZoneName
	for _, z := range c.zones {
		if z.State != stateDisabled {
			enabled = append(enabled, z.Name)
		}
	}
	if len(enabled) != 1 || len(c.silent) > 0 {
		return "", false
	}
	return enabled[0], true
}

// survey asks every other server at the same time, and remembers which of them
// did not answer. timeout is how long each may take.
func (d *fleet) survey(ctx context.Context, timeout func(server string) time.Duration, ask func(context.Context, peerv1.ZoneServiceClient, *peerv1.Page) (*peerv1.ZoneReport, error)) ([]zonesync.Report, []silentServer) {
	peers := d.peers()
	reports := make([]zonesync.Report, len(peers))
	errs := make([]error, len(peers))
	var asking sync.WaitGroup
	for i, p := range peers {
		asking.Go(func() {
			asked, cancel := context.WithTimeout(ctx, timeout(p.name))
			defer cancel()
			reports[i], errs[i] = allPages(func(page *peerv1.Page) (*peerv1.ZoneReport, error) {
				return ask(asked, peerv1.NewZoneServiceClient(p.conn), page)
			})
		})
	}
	asking.Wait()
	var answers []zonesync.Report
	var silent []silentServer
	for i, p := range peers {
		if errs[i] == nil {
			answers = append(answers, reports[i])
		} else {
			silent = append(silent, silentServer{name: p.name, err: errs[i]})
		}
	}
	// A caller that goes away says nothing about the others.
	d.trackSilent(silent, ctx.Err() == nil)
	return answers, silent
}

// trackSilent remembers, unless it is not to learn, who did not answer, and fills in
// since when.
func (d *fleet) trackSilent(silent []silentServer, learn bool) {
	slices.SortFunc(silent, func(a, b silentServer) int { return strings.Compare(a.name, b.name) })
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	lost := map[string]time.Time{} // of the members of the moment
	for i, u := range silent {
		since, known := d.silentSince[u.name]
		if !known {
			since = now
		}
		silent[i].since, lost[u.name] = since, since
	}
	if learn {
		d.silentSince = lost
	}
}

// Status asks every server what it knows of zones. A server that did not answer the
// last time has little time to do so now.
func (d *fleet) Status(ctx context.Context) fleetStatus {
	d.mu.Lock()
	known := maps.Clone(d.silentSince)
	d.mu.Unlock()
	reports, silent := d.reports(ctx, false, func(server string) time.Duration {
		if _, late := known[server]; late {
			return silentTimeout
		}
		return surveyTimeout
	})
	return d.status(reports, silent)
}

// reports asks the other servers what they know of zones; when it is brief, without what
// these could not accept.
func (d *fleet) reports(ctx context.Context, brief bool, timeout func(server string) time.Duration) ([]zonesync.Report, []silentServer) {
	reports, silent := d.survey(ctx, timeout, func(ctx context.Context, c peerv1.ZoneServiceClient, page *peerv1.Page) (*peerv1.ZoneReport, error) {
		r, err := c.Zones(ctx, &peerv1.ZonesRequest{Page: page, Brief: brief})
		return r.GetReport(), err
	})
	d.checkDivergence(reports)
	return reports, silent
}

// status is what this server knows of zones, and others say of them.
func (d *fleet) status(reports []zonesync.Report, silent []silentServer) fleetStatus {
	c := fleetStatus{zones: d.zones.Zones(reports...), servers: map[resource.ZoneName]string{}, reports: reports, silent: silent}
	own := d.zones.Report()
	c.newest, c.answered = own.Newest, &zoneRevisions{of: map[resource.ZoneName]resource.Revision{}}
	for _, r := range reports {
		c.newest = max(c.newest, r.Newest)
	}
	c.instances = zonesync.Merge(append(reports, own)...)
	for zone, instances := range c.instances {
		best := slices.MaxFunc(instances, func(a, b zonesync.Instance) int {
			if a.Silent() != b.Silent() {
				return cmp.Compare(b.Quiet, a.Quiet)
			}
			return cmp.Compare(a.Revision, b.Revision)
		})
		if best.Connected {
			c.servers[zone] = best.Server
		}
	}
	return c
}

// checkDivergence looks whether the other servers hold what this one holds: all of them
// have applied the same log, so anything else means that one of them is broken.
func (d *fleet) checkDivergence(reports []zonesync.Report) {
	var differing []string
	for _, r := range reports {
		if d.zones.Differs(r) {
			differing = append(differing, r.Server)
		}
	}
	d.mu.Lock()
	news := !slices.Equal(differing, d.diverging)
	d.diverging = differing
	d.mu.Unlock()
	if news && len(differing) > 0 {
		d.log.Error("servers hold different state at the same revision: the one that differs from the majority has to be set up anew; see docs/operations/divergence.md", "differing", differing)
	}
}

// unreachable returns the servers that could not be asked last.
func (d *fleet) unreachable() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.silentSince))
}

// diverged returns the servers that were last found to hold something else than
// this one.
func (d *fleet) diverged() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.diverging
}

// Ask puts a question to a zone, through the server that the zone is connected
// to. Errors are those of zonesync.Server.Ask.
func (d *fleet) Ask(ctx context.Context, zone resource.ZoneName, server string, question []byte) ([]byte, error) {
	for _, p := range d.peers() {
		if p.name == server {
			return forward(ctx, p, &peerv1.AskRequest{Zone: string(zone), Question: question})
		}
	}
	return d.zones.Ask(ctx, zone, question)
}

// AskAudit is Ask for a question about the zone's audit log.
func (d *fleet) AskAudit(ctx context.Context, zone resource.ZoneName, server string, question []byte) ([]byte, error) {
	for _, p := range d.peers() {
		if p.name == server {
			return forward(ctx, p, &peerv1.AskRequest{Zone: string(zone), Audit: question})
		}
	}
	return d.zones.AskAudit(ctx, zone, question)
}

// forward asks a zone through another server, which answers for its own zones
// only.
func forward(ctx context.Context, p peer, request *peerv1.AskRequest) ([]byte, error) {
	zone := request.GetZone()
	answer, err := peerv1.NewZoneServiceClient(p.conn).Ask(ctx, request)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("%w: its server %s cannot be asked: %s", zonesync.ErrZoneOffline, p.name, cluster.DescribeError(err))
	case answer.GetOffline():
		return nil, fmt.Errorf("%w: %s", zonesync.ErrZoneOffline, zone)
	case answer.GetBusy():
		return nil, fmt.Errorf("%w: %s", zonesync.ErrZoneBusy, zone)
	case answer.GetSilent():
		return nil, fmt.Errorf("%w: %s", zonesync.ErrZoneSilent, zone)
	case answer.GetCode() != 0:
		return nil, status.Error(codes.Code(answer.GetCode()), answer.GetError())
	}
	return answer.GetAnswer(), nil
}

// zoneWait is a wait for zones to apply a revision.
type zoneWait struct {
	revision resource.Revision
	// enabled returns the zones that may connect: no other is waited for.
	enabled func() []resource.ZoneName
	// all has every enabled zone be waited for; otherwise only those that are
	// connected at some time.
	all bool
	// progress receives the zones that are waited for, whenever these or their
	// states change. Its error ends the wait.
	progress func([]zonesync.ZoneStatus) error
}

// WaitApplied returns when zones have applied and persisted a revision: those
// that are waited for, on whichever server they are by then. A server that cannot
// be asked is waited for as long as it may still have zones; after that a note
// names it, as one does the enabled zones that were not waited for.
//
// Error: *zonesync.NotAppliedError when ctx ends first; else that of progress.
func (d *fleet) WaitApplied(ctx context.Context, w zoneWait) (notes []string, err error) {
	var awaited, every zonesync.Wait
	every.Expect(w.enabled()...)
	if w.all {
		awaited.Expect(w.enabled()...)
	}
	wait := d.applied.join(w.revision)
	defer wait.leave()
	late := &zonesync.NotAppliedError{Revision: w.revision}
	var told []string
	for asked := false; ; asked = true {
		now, ended := wait.next(ctx, func(ctx context.Context) applied { return d.await(ctx, w.revision) })
		late.Cause = ended
		switch {
		case ended != nil && asked && now.reports == nil:
			return nil, late
		case ended != nil && now.reports == nil:
			// Another wait was asking, and its answers are not there yet.
			var here zonesync.Wait
			late.Zones = here.Missing(d.zones.Await(ctx, w.revision))
			for _, p := range d.peers() {
				late.Unasked = append(late.Unasked, p.name)
			}
			return nil, late
		}
		enabled := w.enabled()
		disabled := func(z resource.ZoneName) bool { return !slices.Contains(enabled, z) }
		late.Zones = slices.DeleteFunc(awaited.Missing(now.reports...), disabled)
		offline := slices.DeleteFunc(every.Missing(now.reports...), disabled)
		late.Unasked = nil
		for _, u := range now.silent {
			if time.Since(u.since) < silentGrace {
				late.Unasked = append(late.Unasked, u.name)
			}
		}
		if len(late.Zones) == 0 && len(late.Unasked) == 0 && ended == nil {
			return append(unaskedNotes(now.silent, w.revision), offlineNotes(offline, w.revision)...), nil
		}
		if now := d.statuses(late.Zones, now.reports); !slices.Equal(told, states(now)) {
			told = states(now)
			if err := w.progress(now); err != nil {
				return nil, err
			}
		}
		if ended != nil {
			return nil, late
		}
	}
}

// statuses returns what is known of some zones, in their order.
func (d *fleet) statuses(zones []resource.ZoneName, reports []zonesync.Report) []zonesync.ZoneStatus {
	known := d.zones.Zones(reports...)
	out := make([]zonesync.ZoneStatus, len(zones))
	for i, zone := range zones {
		out[i] = zonesync.ZoneStatus{Name: zone, State: zonesync.ZoneOffline}
		if at := slices.IndexFunc(known, func(z zonesync.ZoneStatus) bool { return z.Name == zone }); at >= 0 {
			out[i] = known[at]
		}
	}
	return out
}

// states says in short how zones are.
func states(zones []zonesync.ZoneStatus) []string {
	out := make([]string, len(zones))
	for i, z := range zones {
		out[i] = string(z.Name) + " " + string(z.State)
	}
	return out
}

func unaskedNotes(silent []silentServer, rev resource.Revision) []string {
	var notes []string
	for _, u := range silent {
		notes = append(notes, fmt.Sprintf("server %s cannot be asked whether its zones have applied revision %d: %s", u.name, rev, cluster.DescribeError(u.err)))
	}
	return notes
}

func offlineNotes(zones []resource.ZoneName, rev resource.Revision) []string {
	var notes []string
	for _, zone := range zones {
		notes = append(notes, fmt.Sprintf("zone %s is offline and has yet to apply revision %d", zone, rev))
	}
	return notes
}

// applied is what servers say of their zones and a revision.
type applied struct {
	reports []zonesync.Report
	silent  []silentServer
}

// await asks every server, this one among them, whether its zones have applied a
// revision, and gives them a while for it.
func (d *fleet) await(ctx context.Context, rev resource.Revision) applied {
	round, cancel := context.WithTimeout(ctx, waitRound)
	defer cancel()
	own := make(chan zonesync.Report, 1)
	var asking sync.WaitGroup
	asking.Go(func() { own <- d.zones.Await(round, rev) })
	reports, silent := d.survey(ctx, func(string) time.Duration { return waitRound + surveyTimeout }, func(ctx context.Context, c peerv1.ZoneServiceClient, page *peerv1.Page) (*peerv1.ZoneReport, error) {
		patience := uint64(waitRound.Milliseconds())
		if page.GetAfterZone() != "" {
			patience = 0 // the first page has waited
		}
		r, err := c.WaitApplied(ctx, &peerv1.WaitAppliedRequest{Revision: uint64(rev), PatienceMs: patience, Page: page})
		return r.GetReport(), err
	})
	asking.Wait()
	return applied{append(reports, <-own), silent}
}

// Run looks after the other servers until ctx ends, so that it is known since
// when one of them cannot be asked, and zones are spread over all of them.
func (d *fleet) Run(ctx context.Context) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			reports, silent := d.reports(ctx, true, func(string) time.Duration { return surveyTimeout })
			d.zones.Balance(reports, len(silent) == 0, time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}
