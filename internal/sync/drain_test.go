package zonesync

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
)

// drainer is a zone that can drain.
type drainer struct {
	mu   sync.Mutex
	told []bool
	left uint64
}

func (d *drainer) order(draining bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told = append(d.told, draining)
	return nil
}

func (d *drainer) state() Draining {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.told) == 0 || !d.told[len(d.told)-1] {
		return Draining{}
	}
	return Draining{Begun: true, Dataplanes: d.left, Applied: 1}
}

func (d *drainer) orders() []bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]bool(nil), d.told...)
}

// A zone is told whether it is to drain when it connects and when that changes, once
// each, and says how far it is.
func TestAZoneIsToldToDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var drain atomic.Bool
		c.server.cfg.Draining = func(zone resource.ZoneName) bool { return zone == "east" && drain.Load() }
		d := &drainer{left: 7}
		options := func(_ *ReplicaConfig, cc *ClientConfig) { cc.Drain, cc.Draining = d.order, d.state }
		dir := t.TempDir()
		z := c.zone("east", dir, options)
		c.write(put(policyKey("a"), `{}`))
		c.synced(z)
		<-time.After(3 * time.Second)
		require.Equal(t, []bool{false}, d.orders())
		require.True(t, c.state("east").CanDrain)
		require.Equal(t, Draining{}, c.state("east").Draining)

		drain.Store(true)
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []bool{false, true}, d.orders())
		require.Equal(t, Draining{Begun: true, Dataplanes: 7, Applied: 1}, c.state("east").Draining)
		require.Equal(t, ZoneInSync, c.state("east").State)

		z.stop()
		synctest.Wait()
		require.Equal(t, Draining{}, c.state("east").Draining, "what a zone that is away has is not known")
		drain.Store(false)
		z = c.zone("east", dir, options)
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []bool{false, true, false}, d.orders())
		require.Equal(t, Draining{}, c.state("east").Draining)
		z.stop()
		c.stop()
	})
}

// A zone of a release that cannot drain is told nothing, and shown as such.
func TestAZoneThatCannotDrain(t *testing.T) {
	old := Instance{Connected: true}
	able := Instance{Connected: true, Drains: true, Draining: Draining{Begun: true, Dataplanes: 2}}
	ofZone := func(all, applied uint64) Instance {
		return Instance{Connected: true, Drains: true, Draining: Draining{Begun: true, Dataplanes: all, Applied: applied, OfZone: true}}
	}
	for name, c := range map[string]struct {
		instances []Instance
		want      Draining
		can       bool
	}{
		"none":                 {nil, Draining{}, true},
		"one":                  {[]Instance{able}, able.Draining, true},
		"two":                  {[]Instance{able, able}, Draining{Begun: true, Dataplanes: 4}, true},
		"of one zone":          {[]Instance{ofZone(3, 0), ofZone(2, 1), able}, Draining{Begun: true, Dataplanes: 5, Applied: 1}, true},
		"one has yet to begin": {[]Instance{able, {Connected: true, Drains: true}}, Draining{}, true},
		"one cannot":           {[]Instance{able, old}, Draining{}, false},
		"away":                 {[]Instance{{Drains: true, Draining: able.Draining}}, Draining{}, true},
	} {
		sum, can := sumDraining(c.instances)
		require.Equal(t, c.want, sum, name)
		require.Equal(t, c.can, can, name)
	}
	require.Equal(t, Draining{Begun: true, Dataplanes: maxDataplanes, Applied: maxDataplanes},
		drainingOf(&syncv1.Ack{Draining: true, Dataplanes: 1 << 63, DataplanesApplied: 1 << 63}), "a zone that lies cannot overflow a sum")
	require.Equal(t, Draining{}, drainingOf(&syncv1.Ack{Dataplanes: 3}))
	require.False(t, canDrain(&syncv1.Hello{Features: []string{"other"}}))

	yes := true
	told := &conn{server: &Server{cfg: ServerConfig{Draining: func(resource.ZoneName) bool { return true }}}}
	require.Nil(t, told.drainLocked())
	told.drains = true
	require.True(t, told.drainLocked().GetDrain().GetDraining())
	require.Equal(t, &yes, told.toldDraining)
	require.Nil(t, told.drainLocked())
}

// A zone says how many servers it has, so that one that is away is not forgotten: by the
// membership of the zone, until it is removed there.
func TestAZoneSaysHowManyServersItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var servers atomic.Int32
		servers.Store(3)
		options := func(_ *ReplicaConfig, cc *ClientConfig) { cc.ServersOfZone = func() int { return int(servers.Load()) } }
		one := c.zone("east", t.TempDir(), options)
		two := c.zone("east", t.TempDir(), options)
		alone := c.zone("west", t.TempDir())
		c.write(put(policyKey("a"), `{}`))
		for _, z := range []*zone{one, two, alone} {
			c.synced(z)
		}
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Len(t, c.state("east").Instances, 2)
		require.Equal(t, 3, c.state("east").ServersOfZone)
		require.Zero(t, c.state("west").ServersOfZone)
		two.stop()
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Len(t, c.state("east").Instances, 1)
		require.Equal(t, 3, c.state("east").ServersOfZone)
		servers.Store(1) // the others were removed
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, c.state("east").ServersOfZone)
		one.stop()
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Zero(t, c.state("east").ServersOfZone)
		alone.stop()
		c.stop()
	})
}
