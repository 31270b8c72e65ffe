//go:build multizone

package multizone

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// fault is a way to hurt a cluster. It returns what ends it, nil when it had no
// effect; between the two the cluster may be as broken as it likes.
type fault struct {
	name string
	// weight is how often it is chosen, of all weights together; hold is the
	// longest it lasts.
	weight int
	hold   time.Duration
	begin  func(*torture, *rand.Rand) (what string, end func())
}

// slowDisks is a fault of servers with file systems of their own.
const slowDisks = "slow disks of all servers"

// faults are the ways in which servers, zones and the network fail while what is on
// their disks stays. What happens to that has scenarios of its own.
var faults = []fault{
	{"kill the leader", 6, 2 * time.Second, func(x *torture, _ *rand.Rand) (string, func()) { return x.killed(x.leading()) }},
	{"kill a server", 4, 3 * time.Second, func(x *torture, r *rand.Rand) (string, func()) { return x.killed(x.server(r)) }},
	{"kill all servers", 1, time.Second, (*torture).killAll},
	{"restart a server", 3, 0, func(x *torture, r *rand.Rand) (string, func()) { return x.restart(x.server(r)) }},
	{"pause the leader", 4, 5 * time.Second, func(x *torture, _ *rand.Rand) (string, func()) { return x.paused(x.leading()) }},
	{"pause a server", 3, 5 * time.Second, func(x *torture, r *rand.Rand) (string, func()) { return x.paused(x.server(r)) }},
	{"pause all servers", 2, 8 * time.Second, (*torture).pauseAll},
	{"start a removed server", 3, 4 * time.Second, (*torture).startRemoved},
	{slowDisks, 4, 6 * time.Second, (*torture).slowDisks},
	{"isolate the leader", 4, 4 * time.Second, func(x *torture, _ *rand.Rand) (string, func()) { return x.isolated(x.leading(), trouble{cut: true}) }},
	{"cut between two servers", 4, 4 * time.Second, (*torture).cutPair},
	{"one direction", 4, 4 * time.Second, (*torture).oneWay},
	{"silence around a server", 3, 3 * time.Second, func(x *torture, r *rand.Rand) (string, func()) {
		return x.isolated(x.server(r), trouble{dropRequests: true, dropResponses: true})
	}},
	{"slow network", 3, 4 * time.Second, (*torture).slow},
	{"flapping link", 2, 3 * time.Second, (*torture).flapping},
	{"transfer leadership", 4, 0, (*torture).transfer},
	{"kill a zone", 4, time.Second, func(x *torture, r *rand.Rand) (string, func()) {
		return x.killed(x.zones[r.IntN(len(x.zones))].process)
	}},
	{"pause a zone", 2, 3 * time.Second, func(x *torture, r *rand.Rand) (string, func()) {
		return x.paused(x.zones[r.IntN(len(x.zones))].process)
	}},
	{"cut zones off a server", 4, 3 * time.Second, (*torture).cutZones},
}

// choose draws a fault by weight.
func choose(r *rand.Rand, disks bool) fault {
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	for {
		at := r.IntN(total)
		for _, f := range faults {
			if at -= f.weight; at >= 0 {
				continue
			}
			if f.name != slowDisks || disks {
				return f
			}
			break
		}
	}
}

// server draws a server.
func (x *torture) server(r *rand.Rand) *process {
	return x.globals.servers[r.IntN(len(x.globals.servers))]
}

// leading returns the server that says of itself that it leads, or any that
// runs, or the first.
func (x *torture) leading() *process {
	for _, p := range x.globals.servers {
		if value, ok := p.metric("meridian_leader"); ok && value == 1 {
			return p
		}
	}
	return x.globals.servers[0]
}

func nothing() {}

// killed ends a process without warning, for a while.
func (x *torture) killed(p *process) (string, func()) {
	if x.stopped[p] || !p.running() {
		return "", nil
	}
	x.killing[p] = true
	p.kill()
	return p.name, func() {
		if !p.running() {
			x.begin(p)
		}
	}
}

func (x *torture) killAll(_ *rand.Rand) (string, func()) {
	var ends []func()
	for _, p := range x.globals.servers {
		if _, end := x.killed(p); end != nil {
			ends = append(ends, end)
		}
	}
	if len(ends) == 0 {
		return "", nil
	}
	return "", func() {
		for _, end := range ends {
			end()
		}
	}
}

// restart stops a server in an orderly way and starts it again.
func (x *torture) restart(p *process) (string, func()) {
	if x.stopped[p] || !p.running() {
		return "", nil
	}
	// One that was stopped before it had a chance to listen ends as any program.
	x.killing[p] = true
	if code := p.stop(); code != 0 && p.log.String() != "" {
		x.t.Errorf("%s ended with code %d on SIGTERM:\n%s", p.name, code, tail(p.log.String(), 30))
	}
	x.begin(p)
	return p.name, nothing
}

// begin starts a process again and tells the links its new number.
func (x *torture) begin(p *process) {
	_ = os.Remove(filepath.Join(p.dir, "addresses.json"))
	delete(x.killing, p)
	p.start()
	x.introduce(p)
}

// paused stops a process and resumes it.
func (x *torture) paused(p *process) (string, func()) {
	if x.stopped[p] || !p.running() {
		return "", nil
	}
	x.stopped[p] = true
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	return p.name, func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		delete(x.stopped, p)
	}
}

// pauseAll stops every server at about the same time, as a virtual machine that is
// moved does, for longer than a disk may hang.
func (x *torture) pauseAll(_ *rand.Rand) (string, func()) {
	var ends []func()
	for _, p := range x.globals.servers {
		if _, end := x.paused(p); end != nil {
			ends = append(ends, end)
		}
	}
	if len(ends) == 0 {
		return "", nil
	}
	return "", func() {
		for _, end := range ends {
			end()
		}
	}
}

// startRemoved starts the server that was removed, whose data still names the
// cluster.
func (x *torture) startRemoved(_ *rand.Rand) (string, func()) {
	if x.removed.running() {
		return "", nil
	}
	x.removed.start()
	return "", func() {
		if x.removed.running() {
			x.removed.kill()
		}
	}
}

// slowDisks makes whatever the servers write wait, for a time that is the same for
// all of them, again and again until it ends.
func (x *torture) slowDisks(r *rand.Rand) (string, func()) {
	wait := time.Duration(50+r.IntN(1951)) * time.Millisecond
	if x.slowed {
		return "", nil
	}
	x.slowed = true
	stop, stopped := make(chan struct{}), make(chan struct{})
	each := func(do func(ownDisk)) {
		var all sync.WaitGroup
		for _, d := range x.disks {
			all.Go(func() { do(d) })
		}
		all.Wait()
	}
	go func() {
		defer close(stopped)
		for {
			each(func(d ownDisk) {
				if err := d.freeze(); err != nil {
					x.t.Error(err)
				}
			})
			pause := time.NewTimer(wait)
			select {
			case <-pause.C:
			case <-stop:
			}
			each(func(d ownDisk) { d.thaw() })
			between := time.NewTimer(20 * time.Millisecond) // for one write each
			select {
			case <-between.C:
			case <-stop:
				return
			}
		}
	}()
	return "up to " + wait.String(), func() {
		close(stop)
		<-stopped
		x.slowed = false
	}
}

// isolated does something to every connection between a server and the others.
func (x *torture) isolated(p *process, how trouble) (string, func()) {
	set := func(how trouble) {
		for _, other := range x.globals.servers {
			if other != p {
				x.raft[p].disturb(other.name, how)
				x.raft[other].disturb(p.name, how)
			}
		}
	}
	set(how)
	return p.name, func() { set(trouble{}) }
}

// pair draws two servers.
func (x *torture) pair(r *rand.Rand) (a, b *process) {
	i := r.IntN(len(x.globals.servers))
	j := (i + 1 + r.IntN(len(x.globals.servers)-1)) % len(x.globals.servers)
	return x.globals.servers[i], x.globals.servers[j]
}

func (x *torture) cutPair(r *rand.Rand) (string, func()) {
	a, b := x.pair(r)
	x.raft[a].disturb(b.name, trouble{cut: true})
	x.raft[b].disturb(a.name, trouble{cut: true})
	return a.name + " and " + b.name, func() {
		x.raft[a].disturb(b.name, trouble{})
		x.raft[b].disturb(a.name, trouble{})
	}
}

// oneWay lets a server speak to another that it cannot hear, or that cannot hear
// it.
func (x *torture) oneWay(r *rand.Rand) (string, func()) {
	a, b := x.pair(r)
	how, what := trouble{dropRequests: true}, "receives nothing"
	if r.IntN(2) == 0 {
		how, what = trouble{dropResponses: true}, "sends nothing"
	}
	x.raft[a].disturb(b.name, how)
	return fmt.Sprintf("%s %s %s", a.name, what, b.name), func() { x.raft[a].disturb(b.name, trouble{}) }
}

func (x *torture) slow(r *rand.Rand) (string, func()) {
	how := trouble{delay: time.Duration(20+r.IntN(200)) * time.Millisecond}
	for _, l := range x.raft {
		l.disturb("", how)
	}
	return how.delay.String(), func() {
		for _, l := range x.raft {
			l.disturb("", trouble{})
		}
	}
}

// flapping cuts a link and joins it again, some times a second, until it ends.
func (x *torture) flapping(r *rand.Rand) (string, func()) {
	a, b := x.pair(r)
	stop, stopped := make(chan struct{}), make(chan struct{})
	every := time.Duration(50+r.IntN(300)) * time.Millisecond
	go func() {
		defer close(stopped)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for cut := true; ; cut = !cut {
			x.raft[a].disturb(b.name, trouble{cut: cut})
			select {
			case <-tick.C:
			case <-stop:
				x.raft[a].disturb(b.name, trouble{})
				return
			}
		}
	}()
	return fmt.Sprintf("%s to %s every %s", b.name, a.name, every), func() {
		close(stop)
		<-stopped
	}
}

func (x *torture) transfer(_ *rand.Rand) (string, func()) {
	p := x.leading()
	if x.stopped[p] || !p.running() {
		return "", nil
	}
	r := p.command("cluster", "transfer-leadership", "--timeout", "5s")
	return fmt.Sprintf("from %s: exit %d", p.name, r.code), nothing
}

// cutZones keeps every zone away from one server.
func (x *torture) cutZones(r *rand.Rand) (string, func()) {
	p := x.server(r)
	x.public[p].disturb("", trouble{cut: true})
	return p.name, func() { x.public[p].disturb("", trouble{}) }
}
