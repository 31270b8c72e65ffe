//go:build multizone

package multizone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
	"meridian/internal/clientconfig"
	"meridian/internal/resource"
	zonesync "meridian/internal/sync"
	"meridian/test/history"
)

// torture is a cluster under attack: three servers of a global and two zones,
// every way between them through a link that can be disturbed.
type torture struct {
	t       *testing.T
	globals *globals
	zones   []*tortured
	// raft are the links before the servers' ports for each other, public those
	// before their ports for zones.
	raft, public map[*process]*link
	stopped      map[*process]bool
	// killing are the servers and zones that a fault has killed. Any other that does
	// not run has ended by itself.
	killing map[*process]bool
	// removed is a server that is no member any more. disks are the servers' own file
	// systems, nil without them.
	removed *process
	disks   []ownDisk
	slowed  bool // slowDisks is under way
	rec     *history.Recorder
	counts  map[string]int
}

// tortured is a zone under attack.
type tortured struct {
	*process
	witness *witness
}

// ownDisk is the file system of one server: what it writes waits from freeze to thaw.
type ownDisk struct {
	freeze func() error
	thaw   func()
}

// TestTorture attacks a cluster for a while, chosen by MERIDIAN_TORTURE_DURATION
// and MERIDIAN_TORTURE_SEED, and holds everything that its clients were told,
// and its servers and zones showed, against the promises of §7. The
// same seed draws the same faults and operations; what the operating system
// makes of them differs from run to run.
func TestTorture(t *testing.T) {
	duration, err := time.ParseDuration(setting("MERIDIAN_TORTURE_DURATION", "40s"))
	require.NoError(t, err)
	seed, err := strconv.ParseUint(setting("MERIDIAN_TORTURE_SEED", "1"), 0, 64)
	require.NoError(t, err)
	clients, err := strconv.Atoi(setting("MERIDIAN_TORTURE_CLIENTS", "12"))
	require.NoError(t, err)
	rest, err := time.ParseDuration(setting("MERIDIAN_TORTURE_REST", "0s"))
	require.NoError(t, err)
	x := newTorture(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	// The history begins with a commit that all have seen.
	first := x.globals.servers[0].connect()
	response, err := batch.Apply(ctx, first, &meridianv1.ApplyRequest{RequestId: "first", Resources: []*meridianv1.Resource{
		{Kind: watched, Mesh: "default", Name: "first", Spec: spec("900000001")},
	}})
	require.NoError(t, err)
	require.NoError(t, awaitZones(ctx, first, response.GetRevision()))
	base := resource.Revision(response.GetRevision())
	servers := map[string]*witness{}
	for _, p := range x.globals.servers {
		servers[p.name] = startWitness(ctx, x.rec, p.connect())
	}
	for _, z := range x.zones {
		z.witness = startWitness(ctx, x.rec, z.connect())
	}
	x.awaitWitnesses(servers, base)
	load := startWorkload(ctx, x.rec, x.connections(clients), seed)
	x.attack(seed, duration, rest)
	x.heal()
	load.halt()
	x.quiet(ctx, servers, load)

	seen, shown := map[string][]step{}, map[string][]step{}
	for name, w := range servers {
		seen[name] = w.halt()
	}
	for _, z := range x.zones {
		shown[z.name] = z.witness.halt()
	}
	h := x.rec.Finish(false)
	testify(h, base, seen, shown, &load.requests)
	x.judge(h, seed, duration)
	x.audited(h, base)
}

// audited holds the history against the audit logs: every write stands in that of
// the server that was asked for it, also when the server was killed before it
// could answer, and no log has a gap.
func (x *torture) audited(h *history.History, base resource.Revision) {
	x.t.Helper()
	type write struct {
		revision resource.Revision
		key      resource.Key
	}
	recorded := map[write]bool{}
	for _, p := range x.globals.servers {
		require.Zero(x.t, p.stop(), "%s", tail(p.log.String(), 20))
		for _, r := range p.audited() {
			for _, target := range r.Targets {
				key := resource.Key{Kind: resource.Kind(target.Kind), Mesh: resource.MeshName(target.Mesh), Name: target.Name}
				recorded[write{resource.Revision(r.Revision), key}] = true
			}
		}
	}
	var missing []write
	for _, e := range h.Source.Epochs() {
		for _, c := range h.Source.Between(e, base, 1<<62) {
			for _, change := range c.Changes {
				if w := (write{c.Revision, change.Key}); !recorded[w] {
					missing = append(missing, w)
				}
			}
		}
	}
	x.t.Logf("%d writes recorded by the audit logs, %d missing", len(recorded), len(missing))
	require.Empty(x.t, missing, "no audit log says who wrote these resources at these revisions")
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// newTorture starts three servers and two zones.
func newTorture(t *testing.T) *torture {
	t.Helper()
	x := &torture{
		t: t, globals: &globals{t: t}, raft: map[*process]*link{}, public: map[*process]*link{}, stopped: map[*process]bool{}, killing: map[*process]bool{},
		rec: history.NewRecorder(time.Now, zonesync.SyncedKinds), counts: map[string]int{},
	}
	if os.Getenv("MERIDIAN_TORTURE_DISKS") != "" {
		x.globals.prepare = func(p *process) {
			freeze, thaw := p.freezableOf(8 << 30)
			x.disks = append(x.disks, ownDisk{freeze, thaw})
		}
	}
	for i := range 3 {
		raft, grpc := freePort(t), freePort(t)
		inner, outer := newLink(t, raft), newLink(t, grpc)
		p := x.globals.grow(fmt.Sprintf("g%d", i+1), "--raft-addr", raft, "--advertise-raft-addr", inner.address(),
			"--grpc-addr", grpc, "--advertise-addr", outer.address())
		x.raft[p], x.public[p] = inner, outer
		x.introduce(p)
	}
	x.globals.awaitVoters(3)
	x.remove()
	for _, name := range []string{"east", "west"} {
		z := &tortured{process: newZone(t, x.globals.servers[0], name,
			"--grpc-addr", freePort(t), "--http-addr", freePort(t), "--learn-global-addrs=false")} // or it would go round the links
		x.zones = append(x.zones, z)
		z.reachThrough(x)
		z.start().ready()
	}
	for _, z := range x.zones {
		x.globals.servers[0].awaitState(z.name, "in-sync")
	}
	return x
}

// remove has a fourth server join and removes it. Its operator does not know, and
// starts it again whenever the fault is drawn.
func (x *torture) remove() {
	x.t.Helper()
	first := x.globals.servers[0]
	x.removed = newServer(x.t, first, "removed").start().ready()
	first.must("cluster", "remove", "removed", "--force")
	x.removed.await("it to learn that it was removed", func() bool { return !x.removed.running() })
	require.Contains(x.t, x.removed.log.String(), "removed")
}

// reachThrough has a zone know every server by its link.
func (z *tortured) reachThrough(x *torture) {
	z.t.Helper()
	for i, arg := range z.args {
		if arg != "--join-bundle" {
			continue
		}
		bundle, err := clientconfig.LoadZoneBundle(z.args[i+1])
		require.NoError(z.t, err)
		bundle.Addresses = nil
		for _, p := range x.globals.servers {
			bundle.Addresses = append(bundle.Addresses, x.public[p].address())
		}
		data, err := bundle.Encode()
		require.NoError(z.t, err)
		require.NoError(z.t, os.WriteFile(z.args[i+1], data, 0o600))
	}
}

// introduce tells the links which process a server is.
func (x *torture) introduce(p *process) {
	for _, l := range x.raft {
		l.caller(p.name, p.cmd.Process.Pid)
	}
	for _, other := range x.globals.servers {
		if l := x.raft[p]; l != nil && other.running() {
			l.caller(other.name, other.cmd.Process.Pid)
		}
	}
}

// connections are what a number of clients talk through: each has a connection
// to each server.
func (x *torture) connections(clients int) [][]*api {
	all := make([][]*api, clients)
	for i := range all {
		for _, p := range x.globals.servers {
			all[i] = append(all[i], p.connect())
		}
	}
	return all
}

// awaitWitnesses waits until every witness has seen a revision.
func (x *torture) awaitWitnesses(servers map[string]*witness, r resource.Revision) {
	x.t.Helper()
	all := slices.Collect(maps.Values(servers))
	for _, z := range x.zones {
		all = append(all, z.witness)
	}
	for _, w := range all {
		require.Eventually(x.t, func() bool { at, _ := w.last(); return at >= r }, patience, 20*time.Millisecond,
			"%s does not show revision %d", w.api.server, r)
	}
}

// attack draws faults and lets them overlap until the time is over, with a rest
// after each time that nothing was disturbed any more.
func (x *torture) attack(seed uint64, duration, rest time.Duration) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	type running struct {
		name string
		ends time.Time
		end  func()
	}
	var active []running
	var quiet time.Time // since when nothing is disturbed
	over := time.NewTimer(duration)
	defer over.Stop()
	for {
		now := time.Now()
		active = slices.DeleteFunc(active, func(r running) bool {
			if now.Before(r.ends) {
				return false
			}
			r.end()
			x.rec.Note("end of: %s", r.name)
			quiet = now
			return true
		})
		resting := len(active) == 0 && now.Sub(quiet) < rest
		if !resting && len(active) < 3 && (len(active) == 0 || random.IntN(3) == 0) {
			f := choose(random, x.disks != nil)
			hold := 100*time.Millisecond + time.Duration(random.Int64N(int64(f.hold)+1))
			what, end := f.begin(x, random)
			if end != nil {
				x.rec.Note("%s: %s", f.name, what)
				x.counts[f.name]++
				active = append(active, running{f.name, now.Add(hold), end})
			}
		}
		select {
		case <-time.After(time.Duration(100+random.IntN(900)) * time.Millisecond):
		case <-over.C:
			for _, r := range active {
				r.end()
			}
			return
		}
	}
}

// heal ends every fault and waits until the cluster is whole.
func (x *torture) heal() {
	x.t.Helper()
	for p := range x.stopped {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
	for _, links := range []map[*process]*link{x.raft, x.public} {
		for _, l := range links {
			l.heal()
		}
	}
	for _, d := range x.disks {
		d.thaw()
	}
	for _, p := range append(slices.Clone(x.globals.servers), x.zones[0].process, x.zones[1].process) {
		if !p.running() {
			if !x.killing[p] {
				x.t.Errorf("%s ended by itself:\n%s", p.name, tail(p.log.String(), 30))
			}
			x.begin(p)
		}
	}
	x.rec.Note("healed")
	for _, p := range x.globals.servers {
		p.ready()
	}
	x.globals.awaitVoters(len(x.globals.servers))
}

// quiet waits until all have everything, and reads every key once more
// through every server: nothing that was acknowledged may be missing then.
func (x *torture) quiet(ctx context.Context, servers map[string]*witness, load *workload) {
	x.t.Helper()
	at := x.globals.servers[0].connect()
	r, err := batch.Apply(ctx, at, &meridianv1.ApplyRequest{RequestId: "last", Resources: []*meridianv1.Resource{
		{Kind: watched, Mesh: "default", Name: "first", Spec: spec("900000002")},
	}})
	require.NoError(x.t, err, "after the cluster is whole again")
	require.NoError(x.t, awaitZones(ctx, at, r.GetRevision()))
	x.awaitWitnesses(servers, resource.Revision(r.GetRevision()))
	for _, z := range x.zones {
		x.globals.servers[0].awaitState(z.name, "in-sync")
	}
	random := rand.New(rand.NewPCG(load.seed, 1<<32)) //nolint:gosec // no secret
	for i := range keys {
		n := i % len(load.servers)
		load.run(ctx, n, i%len(load.servers[n]), random, history.Op{Client: len(load.servers), Kind: history.Read, Key: keyOf(keyName(i))})
	}
	want := exported(x.t, x.globals.servers[0])
	for _, p := range x.globals.servers[1:] {
		require.Equal(x.t, want, exported(x.t, p), "%s holds something else than %s", p.name, x.globals.servers[0].name)
	}
	for _, z := range x.zones {
		require.Equal(x.t, want, exported(x.t, z.process), "zone %s holds something else than the global", z.name)
	}
	for _, p := range append(slices.Clone(x.globals.servers), x.zones[0].process, x.zones[1].process) {
		if strings.Contains(p.log.String(), "panic:") {
			x.t.Errorf("%s panicked:\n%s", p.name, tail(p.log.String(), 60))
		}
	}
}

// exported is every resource of the workload as a server holds it.
func exported(t *testing.T, p *process) []string {
	t.Helper()
	stream, err := p.connect().List(t.Context(), &meridianv1.ListRequest{Kinds: []string{watched}, Consistency: meridianv1.Consistency_CONSISTENCY_STALE})
	require.NoError(t, err)
	var all []string
	for {
		part, err := stream.Recv()
		if err == io.EOF { //nolint:errorlint // as gRPC documents it
			return all
		}
		require.NoError(t, err)
		for _, r := range part.GetResources() {
			data, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
			require.NoError(t, err)
			all = append(all, string(data))
		}
	}
}

// An orderly stop takes no longer when no other server answers.
func TestStopOfAnIsolatedLeader(t *testing.T) {
	t.Parallel()
	x := newTorture(t)
	leader := x.leading()
	_, _ = x.isolated(leader, trouble{dropRequests: true, dropResponses: true})
	require.Zero(t, leader.stop(), "%s", tail(leader.log.String(), 20))
}

// judge holds the history against the promises and sums the run up.
func (x *torture) judge(h *history.History, seed uint64, duration time.Duration) {
	x.t.Helper()
	var violations []history.Violation
	for _, p := range history.Promises() {
		if p.Name != "history" { // the watch does not tell what a commit follows
			violations = append(violations, p.Check(h)...)
		}
	}
	violations = append(violations, history.Linearizable(h, 2*time.Minute)...)
	counts := h.Count()
	injected := 0
	for _, n := range x.counts {
		injected += n
	}
	x.t.Logf("seed %d, %s: %d faults, %d writes and %d linearizable reads acknowledged, %d refused, %d of unknown outcome, %d commits, %d sightings in zones, %d violations",
		seed, duration, injected, counts.Acknowledged, counts.Reads, counts.Refused, counts.Unknown, counts.Commits, counts.Sightings, len(violations))
	for _, name := range slices.Sorted(maps.Keys(x.counts)) {
		x.t.Logf("%6d %s", x.counts[name], name)
	}
	if len(violations) > 0 {
		var report bytes.Buffer
		history.Report(&report, h, violations, 60)
		x.t.Errorf("seed %d:\n%s", seed, report.String())
		if dir := os.Getenv("MERIDIAN_TORTURE_REPORT"); dir != "" {
			paths, err := history.Visualize(h, dir)
			x.t.Logf("drawn: %v (%v)", paths, err)
			var all bytes.Buffer
			for _, op := range h.Ops {
				_, _ = fmt.Fprintln(&all, op)
			}
			require.NoError(x.t, os.WriteFile(filepath.Join(dir, "operations.txt"), all.Bytes(), 0o600))
		}
	}
}

// metric reads one of a server's metrics.
func (p *process) metric(name string) (float64, bool) {
	data, err := os.ReadFile(filepath.Join(p.dir, "addresses.json"))
	var a map[string]string
	if err != nil || json.Unmarshal(data, &a) != nil {
		return 0, false
	}
	client := http.Client{Timeout: time.Second}
	response, err := client.Get("http://" + a["http"] + "/metrics") //nolint:noctx // bounded by the client
	if err != nil {
		return 0, false
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return value, err == nil
		}
	}
	return 0, false
}

// awaitZones returns when every enabled zone has applied a revision.
func awaitZones(ctx context.Context, at meridianv1.AdminServiceClient, revision uint64) error {
	stream, err := at.WaitForZones(ctx, &meridianv1.WaitForZonesRequest{Revision: revision})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
