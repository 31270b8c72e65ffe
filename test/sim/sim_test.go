package sim

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/test/history"
)

// outcome is what a simulation leaves.
type outcome struct {
	history    *history.History
	violations []history.Violation
	virtual    time.Duration
	faults     int
	// term is the newest of the servers: it counts the elections.
	term uint64
}

// simulate runs a world for some virtual time and checks its history.
func simulate(t *testing.T, seed uint64, p plan, run func(*world) (faults int)) outcome {
	t.Helper()
	var out outcome
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, p, discard)
		if os.Getenv("SIM_TRACE") != "" {
			w.trace()
		}
		defer w.end()
		require.NoError(t, w.begin())
		out.faults = run(w)
		w.heal()
		w.liveness()
		w.settle()
		out.virtual = w.rec.Now()
		for _, s := range w.servers {
			if p := s.process(); p != nil {
				out.term = max(out.term, p.node.Status().Term)
			}
		}
		w.end()
		out.history, out.violations = w.rec.Finish(true), w.violations
	})
	// In real time, which the search for an order is bounded by.
	out.violations = append(out.violations, history.Check(out.history)...)
	out.violations = append(out.violations, history.Linearizable(out.history, time.Minute)...)
	return out
}

// require fails the test with everything that is known about a violation.
func (o outcome) require(t *testing.T, how string) {
	t.Helper()
	c := o.history.Count()
	t.Logf("%s: %s of virtual time, %d faults, term %d: %+v", how, o.virtual.Round(time.Second), o.faults, o.term, c)
	if len(o.violations) == 0 {
		return
	}
	var report strings.Builder
	history.Report(&report, o.history, o.violations, 60)
	if dir := os.Getenv("SIM_PAGES"); dir != "" {
		pages, err := history.Visualize(o.history, dir)
		fmt.Fprintln(&report, "pages:", pages, err)
	}
	t.Errorf("%s broke promises; the same faults again: %s\n%s", how, how, report.String())
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// profile is a named set of faults.
type profile struct {
	name   string
	faults []fault
}

func profiles() []profile {
	return []profile{
		{"network", networkFaults},
		{"machines", machineFaults},
		{"disks", diskFaults},
		{"members", memberFaults},
		{"zones", zoneFaults},
		{"restores", slices.Concat(historyFaults, zoneFaults)},
		{"everything", slices.Concat(networkFaults, machineFaults, diskFaults, memberFaults, zoneFaults, historyFaults)},
	}
}

// TestSimulation runs each fault profile from a seed, at the product's own
// timing.
func TestSimulation(t *testing.T) {
	busy := plan{servers: 3, zones: 2, clients: 4, watchers: 2, think: 6 * time.Second, slower: 1}
	seed, minutes := uint64(number("SIM_SEED", 1)), number("SIM_MINUTES", defaultMinutes)
	underEveryProfile(t, seed, busy, minutes, fmt.Sprintf("SIM_SEED=%d SIM_MINUTES=%d", seed, minutes))
}

// underEveryProfile disturbs a separate world for each fault profile, for some virtual
// minutes. settings is how the environment repeats it.
func underEveryProfile(t *testing.T, seed uint64, p plan, minutes int, settings string) {
	t.Helper()
	for _, profile := range profiles() {
		t.Run(profile.name, func(t *testing.T) {
			t.Parallel()
			simulate(t, seed, p, func(w *world) int {
				return w.disturb(time.Duration(minutes)*time.Minute, profile.faults)
			}).require(t, fmt.Sprintf("%s go test ./test/sim -run %s", settings, t.Name()))
		})
	}
}

// TestDays runs each fault profile for a long time. Everything but the zones is
// ten times slower, so that a day passes with ten times fewer messages between
// the faults.
func TestDays(t *testing.T) {
	minutes := number("SIM_LONG", 0)
	if minutes == 0 {
		t.Skip("SIM_LONG says for how many virtual minutes to run")
	}
	seed := uint64(number("SIM_SEED", 1))
	slow := plan{servers: 3, zones: 2, clients: 4, watchers: 2, think: 6 * time.Second, slower: 10}
	underEveryProfile(t, seed, slow, minutes, fmt.Sprintf("SIM_SEED=%d SIM_LONG=%d", seed, minutes))
}

// TestQuiet: without faults everything is as promised.
func TestQuiet(t *testing.T) {
	t.Parallel()
	light := plan{servers: 3, zones: 2, clients: 4, watchers: 2, think: time.Second, slower: 1}
	simulate(t, 1, light, func(w *world) int {
		w.pause(3 * time.Minute / shorter)
		return 0
	}).require(t, t.Name())
}

// TestMain collects garbage less often: worlds are short-lived and small.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
