//go:build multizone

package multizone

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A zone that drains takes no dataplanes over its own restart without the global, until
// it is enabled again.
func TestAZoneIsDrained(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	newZone(t, global, "west").start().ready()
	global.awaitState("east", "in-sync")
	global.awaitState("west", "in-sync")
	east.mustWith(webDataplane, "apply", "-f", "-")

	global.mustWith("type: Zone\nname: east\nlabels: {meridian.io/draining: \"true\"}\n", "apply", "-f", "-")
	global.awaitState("east", "draining")
	global.await("the zone to say what is left", func() bool {
		return global.must("zones", "-o", "jsonpath={.items[0].drain.applied}") == "1\n"
	})
	east.must("delete", "dataplane", "web-1")
	r := global.command("zones", "drain", "east", "--timeout", "60s")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stderr, "Zone east is drained")
	r = global.command("zones", "drain", "west")
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stderr, "no other zone is connected that takes dataplanes")

	require.Zero(t, global.stop())
	east.kill()
	east.start().ready()
	r = east.commandWith(webDataplane, "apply", "-f", "-")
	require.Equal(t, 2, r.code, r.stderr)
	require.Contains(t, r.stderr, `zone "east" is draining`)
	global.start().ready()
	global.awaitState("east", "draining")
	global.must("zones", "enable", "east")
	east.await("it to take dataplanes", func() bool {
		r := east.commandWith(webDataplane, "apply", "-f", "-")
		require.True(t, r.code == 0 || strings.Contains(r.stderr, "is draining"), r.stderr)
		return r.code == 0
	})
	global.awaitState("east", "in-sync")
}
