package sim

import (
	"math/rand/v2"
	"time"
)

// zoneFaults are faults of zones and their links.
var zoneFaults = []fault{
	{"crash a zone", 3, zoneCrash},
	{"crash a zone between persisting and acknowledging", 4, zoneCrashUnacknowledged},
	{"cut a zone off", 4, zoneCut},
	{"nothing reaches a zone", 3, zoneStalls},
	{"a zone that does not read", 2, zoneDoesNotRead},
	{"a slow zone", 2, zoneSlow},
	{"a zone's disk is full", 2, zoneDiskFull},
	{"a zone's disk fails to sync", 2, zoneDiskUnsynced},
	{"a zone's disk hangs", 2, zoneDiskHangs},
	{"a bit of a zone's disk flips", 3, zoneBitFlips},
	{"a zone gets a new disk", 1, zoneNewDisk},
}

// anyZone returns a zone, nil if there is none.
func (w *world) anyZone(rng *rand.Rand) *zone {
	zones := w.followers()
	if len(zones) == 0 {
		return nil
	}
	return zones[rng.IntN(len(zones))]
}

// onZone makes a fault of a zone.
func onZone(w *world, rng *rand.Rand, what string, begin func(*zone), end func(*zone)) (func(), bool) {
	z := w.anyZone(rng)
	if z == nil {
		return nil, false
	}
	w.rec.Note("zone %s: %s", z.name, what)
	begin(z)
	return func() {
		w.rec.Note("zone %s: no more: %s", z.name, what)
		end(z)
	}, true
}

func zoneCrash(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "crashed", (*zone).crash, (*zone).start)
}

func zoneCrashUnacknowledged(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "crashes after its next write", func(z *zone) {
		z.disk.crashAfterWrite(func() { w.running.Go(z.crash) })
	}, func(z *zone) {
		z.disk.crashAfterWrite(nil)
		z.start()
	})
}

func zoneCut(w *world, rng *rand.Rand) (func(), bool) {
	each := func(z *zone, do func(a, b string)) {
		for _, s := range w.members() {
			do(s.name, z.name)
		}
	}
	return onZone(w, rng, "cut off",
		func(z *zone) { each(z, w.zoneNet.CutBoth) },
		func(z *zone) { each(z, w.zoneNet.Heal) })
}

// zoneStalls lets nothing through to a zone, which continues to send.
func zoneStalls(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "hears nothing", func(z *zone) {
		for _, s := range w.members() {
			w.zoneNet.Cut(s.name, z.name)
		}
	}, func(z *zone) {
		for _, s := range w.members() {
			w.zoneNet.Heal(s.name, z.name)
		}
	})
}

// zoneDoesNotRead: the connection is as it should be, and its window fills.
func zoneDoesNotRead(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "does not read", (*zone).stopReading, (*zone).read)
}

func zoneSlow(w *world, rng *rand.Rand) (func(), bool) {
	by := time.Duration(10+rng.IntN(2000)) * time.Millisecond
	set := func(by time.Duration) func(*zone) {
		return func(z *zone) {
			for _, s := range w.members() {
				w.zoneNet.Delay(s.name, z.name, by)
				w.zoneNet.Delay(z.name, s.name, by)
			}
		}
	}
	return onZone(w, rng, "slower by "+by.String(), set(by), set(0))
}

func zoneDiskFull(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "disk full", func(z *zone) { z.disk.setFull(true) }, func(z *zone) { z.disk.setFull(false) })
}

// zoneDiskUnsynced has writes fail after they are visible. A machine that loses
// power meanwhile loses them.
func zoneDiskUnsynced(w *world, rng *rand.Rand) (func(), bool) {
	power := rng.IntN(2) == 0
	return onZone(w, rng, "syncs fail", func(z *zone) { z.disk.setUnsynced(true) }, func(z *zone) {
		if power {
			z.crash()
		}
		z.disk.setUnsynced(false)
		if power {
			z.start()
		}
	})
}

func zoneDiskHangs(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "disk hangs", func(z *zone) { z.disk.hang() }, func(z *zone) { z.disk.resume() })
}

func zoneBitFlips(w *world, rng *rand.Rand) (func(), bool) {
	n, bit := rng.IntN(1000), rng.IntN(1<<16)
	return onZone(w, rng, "a bit flips", func(z *zone) {
		z.crash()
		z.disk.flip(n, bit)
	}, (*zone).start)
}

func zoneNewDisk(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "a new disk", func(z *zone) {
		z.crash()
		z.mu.Lock()
		z.disk = newStorage()
		z.disks++
		z.mu.Unlock()
	}, (*zone).start)
}
