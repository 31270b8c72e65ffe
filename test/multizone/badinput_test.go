//go:build multizone

package multizone

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fails starts a server that must not come up, and returns its exit code and
// its one line of complaint.
func (p *process) fails() (int, string) {
	p.t.Helper()
	p.start()
	code := p.wait()
	require.NotZero(p.t, code, p.log.String())
	var complaints []string
	for _, line := range strings.Split(p.log.String(), "\n") {
		if strings.HasPrefix(line, "Error: ") {
			complaints = append(complaints, line)
		}
	}
	require.Len(p.t, complaints, 1, "one clear line:\n%s", p.log.String())
	require.NoFileExists(p.t, filepath.Join(p.dir, "addresses.json"))
	return code, complaints[0]
}

func TestServersThatCannotStart(t *testing.T) {
	global := newGlobal(t).start().ready()

	t.Run("port in use", func(t *testing.T) {
		p := newProcess(t, "meridian-global", "other", "--grpc-addr", global.addresses()["grpc"], "--http-addr", anyPort, "--raft-addr", anyPort, "--gossip-addr", anyPort)
		code, complaint := p.fails()
		require.Equal(t, 1, code)
		require.Contains(t, complaint, "--grpc-addr "+global.addresses()["grpc"]+": the port is in use")
		require.NoDirExists(t, p.dir, "a failed start leaves no trace")
	})
	t.Run("data directory in use", func(t *testing.T) {
		p := newGlobal(t)
		p.dir = global.dir
		p.start()
		require.NotZero(t, p.wait())
		require.Contains(t, p.log.String(), "in use by another process")
		global.must("zones")
	})
	t.Run("data directory that cannot be made", func(t *testing.T) {
		p := newGlobal(t)
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
		p.dir = filepath.Join(file, "data")
		_, complaint := p.fails()
		require.Contains(t, complaint, p.dir)
	})
	t.Run("a zone's data directory given to a global", func(t *testing.T) {
		zone := newProcess(t, "meridian-zone", "alone", "--name", "alone", "--grpc-addr", anyPort, "--http-addr", anyPort).start().ready()
		require.Zero(t, zone.stop())
		p := newGlobal(t)
		p.dir = zone.dir
		_, complaint := p.fails()
		require.Contains(t, complaint, zone.dir)
		zone.start().ready()
	})
	t.Run("a standalone zone's data directory given to a federated zone", func(t *testing.T) {
		zone := newProcess(t, "meridian-zone", "east", "--name", "east", "--grpc-addr", anyPort, "--http-addr", anyPort).start().ready()
		require.Zero(t, zone.stop())
		federated := newZone(t, global, "east")
		federated.dir = zone.dir
		_, complaint := federated.fails()
		require.Contains(t, complaint, "standalone")
	})
	t.Run("zone name that differs from its bundle", func(t *testing.T) {
		zone := newZone(t, global, "north")
		for i, arg := range zone.args {
			if arg == "--name" {
				zone.args[i+1] = "south"
			}
		}
		code, complaint := zone.fails()
		require.Equal(t, 2, code)
		require.Contains(t, complaint, "north")
		require.Contains(t, complaint, "south")
		require.NoDirExists(t, zone.dir)
	})
	t.Run("bundle that is something else", func(t *testing.T) {
		bundle := filepath.Join(t.TempDir(), "bundle")
		require.NoError(t, os.WriteFile(bundle, []byte("type: Mesh\nname: x\n"), 0o600))
		zone := newProcess(t, "meridian-zone", "east", "--name", "east", "--join-bundle", bundle)
		code, complaint := zone.fails()
		require.Equal(t, 2, code)
		require.Contains(t, complaint, bundle)
	})
	t.Run("flags", func(t *testing.T) {
		p := newGlobal(t, "--grpc-adr", "x")
		code, complaint := p.fails()
		require.Equal(t, 2, code)
		require.Contains(t, complaint, `did you mean "grpc-addr"?`)
	})
}

// A replica of one global must not be fed by another.
func TestZoneOfAnotherCluster(t *testing.T) {
	first := newGlobal(t).start().ready()
	zone := newZone(t, first, "east").start().ready()
	first.mustWith(timeout("t", "backend", "5s"), "apply", "-f", "-", "--wait=zones")
	require.Zero(t, zone.stop())

	second := newGlobal(t).start().ready()
	foreign := newZone(t, second, "east")
	foreign.dir = zone.dir
	foreign.start()
	foreign.await("a refusal", func() bool { return strings.Contains(foreign.log.String(), "another") })
	if foreign.running() {
		require.Len(t, items(t, foreign.must("get", "timeouts", "-o", "json")), 1, "the replica is untouched")
	}
}

func TestCommandFailures(t *testing.T) {
	global := newGlobal(t).start().ready()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	huge := filepath.Join(dir, "huge.yaml")
	f, err := os.Create(huge)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(100<<20))
	require.NoError(t, f.Close())

	good := timeout("good", "backend", "5s")
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown kind":                {[]string{"apply", "-f", write("kind.yaml", good+"---\ntype: TrafficLgo\nmesh: default\nname: x\n")}, 2, "TrafficLog"},
		"unknown field":               {[]string{"apply", "-f", write("field.yaml", good+"---\n"+strings.Replace(timeout("x", "b", "5s"), "connectTimeout", "conectTimeout", 1))}, 2, "connectTimeout"},
		"wrong type":                  {[]string{"apply", "-f", write("type.yaml", good+"---\n"+timeout("x", "b", "{a: b}"))}, 2, "conf.connectTimeout"},
		"bad duration":                {[]string{"apply", "-f", write("duration.yaml", good+"---\n"+timeout("x", "b", "soon"))}, 2, "conf.connectTimeout"},
		"unknown mesh":                {[]string{"apply", "-f", write("mesh.yaml", strings.Replace(good, "mesh: default", "mesh: nowhere", 1))}, 2, "nowhere"},
		"two documents, one identity": {[]string{"apply", "-f", write("twice.yaml", good+"---\n"+good)}, 2, "good"},
		"selector without tags":       {[]string{"apply", "-f", write("selector.yaml", strings.Replace(good, "{kuma.io/service: '*'}", "{}", 1))}, 2, "sources[0].match"},
		"name of 300 characters":      {[]string{"apply", "-f", write("name.yaml", timeout(strings.Repeat("n", 300), "b", "5s"))}, 2, "253"},
		"100 MB":                      {[]string{"apply", "-f", huge}, 2, "huge.yaml"},
		"not YAML":                    {[]string{"apply", "-f", write("not.yaml", "a: [b\n\tc")}, 2, "not.yaml"},
		"directory without policies":  {[]string{"apply", "-f", filepath.Join(dir, "empty")}, 2, "empty"},
		"file that is not there":      {[]string{"apply", "-f", filepath.Join(dir, "none.yaml")}, 2, "none.yaml"},
		"a zone's kind":               {[]string{"apply", "-f", write("dp.yaml", webDataplane)}, 2, "zone"},
		"stale version":               {[]string{"apply", "-f", write("good.yaml", good), "--if-version", "7"}, 3, "version"},
		"missing resource":            {[]string{"get", "timeout", "nothing"}, 1, "nothing"},
		"unknown type":                {[]string{"get", "timeoutz"}, 2, "Timeout"},
		"unknown flag":                {[]string{"get", "--outptu", "json"}, 2, "outptu"},
		"no such zone":                {[]string{"inspect", "dataplane", "web-1", "--zone", "mars"}, 1, "mars"},
		"mesh still in use":           {[]string{"delete", "mesh", "default"}, 0, ""},
	}
	before := global.must("export", "-o", "yaml")
	for name, tt := range tests {
		if tt.code == 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := global.command(tt.args...)
			require.Equal(t, tt.code, r.code, "%s%s", r.stdout, r.stderr)
			require.True(t, strings.HasPrefix(r.stderr, "Error: "), r.stderr)
			require.Contains(t, r.stderr, tt.want)
			require.Empty(t, r.stdout)
		})
	}
	require.Equal(t, before, global.must("export", "-o", "yaml"), "what was refused left no trace")

	t.Run("mesh still in use", func(t *testing.T) {
		global.mustWith(good, "apply", "-f", "-")
		r := global.command("delete", "mesh", "default")
		require.Equal(t, 3, r.code, r.stderr)
		require.Contains(t, r.stderr, "good")
	})
	t.Run("wrong CA", func(t *testing.T) {
		other := newGlobal(t).start().ready()
		context, err := os.ReadFile(filepath.Join(other.dir, "admin.yaml"))
		require.NoError(t, err)
		mixed := strings.ReplaceAll(string(context), other.addresses()["grpc"], global.addresses()["grpc"])
		r := meridian(t, write("mixed.yaml", mixed), "", "zones")
		require.Equal(t, 5, r.code, r.stderr)
		require.Contains(t, r.stderr, "CA")
	})
	t.Run("token of another user", func(t *testing.T) {
		other := newGlobal(t).start().ready()
		r := meridian(t, filepath.Join(global.dir, "admin.yaml"), "", "zones", "--token", tokenOf(t, other))
		require.Equal(t, 4, r.code, "an invalid token is refused, not ignored, from loopback too: %s", r.stderr)
	})
	t.Run("global unreachable", func(t *testing.T) {
		gone := newGlobal(t).start().ready()
		address := gone.addresses()["grpc"]
		require.Zero(t, gone.stop())
		r := meridian(t, filepath.Join(gone.dir, "admin.yaml"), "", "zones", "--timeout", "2s")
		require.Equal(t, 5, r.code, r.stderr)
		require.Contains(t, r.stderr, address)
	})
}

// tokenOf reads the admin token, as §6.6 says an admin can.
func tokenOf(t *testing.T, p *process) string {
	t.Helper()
	secret := items(t, fmt.Sprintf(`{"items":[%s]}`, p.must("get", "globalsecret", "admin-user-token", "-o", "json")))[0]
	return decodeBase64(t, secret["data"].(string))
}
