package sim

import (
	"fmt"
	"os"
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
}

// simulate runs a world for some virtual time and checks its history.
func simulate(t *testing.T, seed uint64, p plan, run func(*world) (faults int)) outcome {
	t.Helper()
	var out outcome
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed, discard)
		if os.Getenv("SIM_TRACE") != "" {
			w.trace()
		}
		defer w.end()
		require.NoError(t, w.begin(p))
		out.faults = run(w)
		w.heal()
		w.liveness()
		w.settle()
		out.virtual = w.rec.Now()
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
	t.Logf("%s: %s of virtual time, %d faults: %+v", how, o.virtual.Round(time.Second), o.faults, c)
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

// TestQuiet: without faults everything is as promised.
func TestQuiet(t *testing.T) {
	o := simulate(t, 1, plan{servers: number("SIM_SERVERS", 3), zones: 2, clients: 4, watchers: 2, think: time.Second}, func(w *world) int {
		w.pause(time.Duration(number("SIM_MINUTES", 3)) * time.Minute)
		return 0
	})
	o.require(t, "TestQuiet")
}

// profile is a kind of weather.
type profile struct {
	name   string
	plan   plan
	faults []fault
}

func profiles() []profile {
	busy := plan{servers: number("SIM_SERVERS", 3), zones: 2, clients: 4, watchers: 2, think: 4 * time.Second}
	return []profile{
		{"network", busy, networkFaults},
		{"machines", busy, machineFaults},
		{"disks", busy, diskFaults},
		{"members", busy, memberFaults},
		{"zones", busy, zoneFaults},
		{"restores", busy, slices.Concat(historyFaults, zoneFaults)},
		{"everything", busy, slices.Concat(networkFaults, machineFaults, diskFaults, memberFaults, zoneFaults, historyFaults)},
	}
}

// TestSimulation runs each kind of weather from fixed seeds.
func TestSimulation(t *testing.T) {
	seed := uint64(number("SIM_SEED", 1))
	minutes := number("SIM_MINUTES", 4)
	for _, p := range profiles() {
		t.Run(p.name, func(t *testing.T) {
			o := simulate(t, seed, p.plan, func(w *world) int {
				return w.disturb(time.Duration(minutes)*time.Minute, p.faults)
			})
			o.require(t, fmt.Sprintf("SIM_SEED=%d SIM_MINUTES=%d go test ./test/sim -run TestSimulation/%s", seed, minutes, p.name))
		})
	}
}
