//go:build multizone

package multizone

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mounted has a server keep its data on a file system of its own, of which dir
// is the mount point.
func (p *process) mounted(mount ...string) (dir string) {
	p.t.Helper()
	if os.Geteuid() != 0 {
		p.t.Skip("needs the superuser, who may mount file systems")
	}
	dir = filepath.Join(p.t.TempDir(), "disk")
	require.NoError(p.t, os.Mkdir(dir, 0o755))
	out, err := exec.Command("mount", append(mount, dir)...).CombinedOutput()
	if err != nil {
		p.t.Skipf("mount %s: %v: %s", strings.Join(mount, " "), err, out)
	}
	p.t.Cleanup(func() {
		if p.running() {
			p.kill()
		}
		out, err := exec.Command("umount", dir).CombinedOutput()
		require.NoError(p.t, err, "%s", out)
	})
	p.dir = filepath.Join(dir, p.name)
	return dir
}

// small has a server keep its data on a file system of that size.
func (p *process) small(size string) (dir string) {
	p.t.Helper()
	return p.mounted("-t", "tmpfs", "-o", "size="+size, "tmpfs")
}

// fill leaves about so many bytes on a file system. The returned function gives
// the rest back.
func fill(t *testing.T, dir string, leave int) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	require.NoError(t, err)
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	require.ErrorContains(t, err, "no space left")
	info, err := file.Stat()
	require.NoError(t, err)
	require.NoError(t, file.Truncate(max(0, info.Size()-int64(leave))))
	require.NoError(t, file.Close())
	return func() { require.NoError(t, os.Remove(path)) }
}

// mesh is the document of a mesh.
func mesh(name string) string { return "type: Mesh\nname: " + name + "\n" }

// catchesUp waits until a server shows the same meshes as another.
func (p *process) catchesUp(with *process) {
	p.t.Helper()
	p.await("it to catch up", func() bool {
		r := p.command("get", "meshes", "-o", "name")
		return r.code == 0 && r.stdout == with.meshes()
	})
}

// ended waits until a process has ended by itself and returns its exit code. The
// list of addresses that it leaves behind is removed.
func (p *process) ended() int {
	p.t.Helper()
	code := p.wait()
	if err := os.Remove(filepath.Join(p.dir, "addresses.json")); err != nil {
		require.ErrorIs(p.t, err, os.ErrNotExist)
	}
	return code
}

// TestFullDisk: a global of one server whose disk fills up continues to serve reads
// and reports why it takes no writes; with no space at all it stays up; and it takes
// writes again, without a restart, when there is space. A restart on a full disk
// loses nothing.
func TestFullDisk(t *testing.T) {
	t.Parallel() // they mostly wait
	p := newGlobal(t)
	disk := p.small("24m") // of which 1.2 MiB are kept free
	p.start().ready()
	p.mustWith(mesh("first"), "apply", "-f", "-")
	meshes := ""
	refused := func() {
		t.Helper()
		p.await("it to notice", func() bool { return strings.Contains(p.readyz(t), "[!] disk: ") })
		var last result
		p.await("writes to be refused", func() bool {
			last = p.commandWith(mesh("refused"), "apply", "-f", "-", "--timeout", "1s")
			return last.code != 0 && strings.Contains(last.stderr, "nearly full")
		})
		require.Equal(t, 5, last.code, last.stderr)
		require.Contains(t, last.stderr, p.dir)
		require.Contains(t, last.stderr, "free some space")
		meshes = p.meshes() // reads continue
		require.Contains(t, meshes, "Mesh/first")
		require.Contains(t, p.readyz(t), "[!] disk: the disk of ")
		require.Contains(t, p.log.String(), "the disk is nearly full: this server takes no writes until space is freed")
		require.Contains(t, p.scrape(), "meridian_disk_low 1\n")
	}
	free := fill(t, disk, 512<<10)
	refused()
	free()
	p.await("writes to be taken again", func() bool { return p.commandWith(mesh("second"), "apply", "-f", "-").code == 0 })
	p.await("it to say so", func() bool { return strings.Contains(p.log.String(), "the disk has free space again") })

	free = fill(t, disk, 0)
	refused()
	require.True(t, p.running())
	p.kill()
	p.start()
	p.await("it to say why it does not start, or to have started", func() bool {
		return !p.running() && strings.Contains(p.log.String(), "no space left") || strings.Contains(p.log.String(), "nearly full")
	})
	free()
	p.await("it to be ready, or to have ended", func() bool { return p.hasAddresses() || !p.running() })
	if !p.running() {
		require.Equal(t, 1, p.ended())
		p.start()
	}
	p.ready()
	require.Equal(t, meshes, p.meshes())
	p.mustWith(mesh("third"), "apply", "-f", "-")
	require.Zero(t, p.stop())
}

// TestFullDiskOfALeader: a leader whose disk fills up transfers leadership to a
// server with free space; no write fails.
func TestFullDiskOfALeader(t *testing.T) {
	t.Parallel() // they mostly wait
	a := newProcess(t, "meridian-global", "a", loopback("a")...)
	disk := a.small("48m")
	a.start().ready()
	b := newServer(t, a, "b").start().ready()
	c := newServer(t, a, "c").start().ready()
	a.awaitVoters("a", "b", "c")
	b.await("the first to lead", func() bool {
		return b.command("cluster", "transfer-leadership", "a").code == 0 && b.leader(a, b, c) == a
	})
	free := fill(t, disk, 512<<10)
	b.await("another to lead", func() bool { return b.leader(a, b, c) != a })
	for i := range 5 {
		c.mustWith(mesh(fmt.Sprint("m", i)), "apply", "-f", "-")
	}
	free()
	require.True(t, a.running())
	a.catchesUp(c)
}

// freezable has a server keep its data on a real file system that the returned
// functions stop, so that whatever writes hangs, and are resumed.
func (p *process) freezable() (freeze, thaw func()) {
	p.t.Helper()
	stop, thaw := p.freezableOf(64 << 20)
	return func() {
		p.t.Helper()
		if err := stop(); err != nil {
			p.t.Skip(err)
		}
	}, thaw
}

// freezableOf is freezable with a file system of so many bytes.
func (p *process) freezableOf(size int64) (freeze func() error, thaw func()) {
	p.t.Helper()
	if os.Geteuid() != 0 {
		p.t.Skip("needs the superuser, who may mount file systems")
	}
	image := filepath.Join(p.t.TempDir(), "image")
	require.NoError(p.t, os.WriteFile(image, nil, 0o600))
	require.NoError(p.t, os.Truncate(image, size))
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		p.t.Skipf("mkfs.ext4: %v: %s", err, out)
	}
	disk := p.mounted("-o", "loop", image)
	thaw = func() { _ = exec.Command("fsfreeze", "-u", disk).Run() }
	p.t.Cleanup(thaw)
	return func() error {
		if out, err := exec.Command("fsfreeze", "-f", disk).CombinedOutput(); err != nil {
			return fmt.Errorf("fsfreeze: %w: %s", err, out)
		}
		return nil
	}, thaw
}

// TestHungDisk: a leader whose disk hangs ends at once, without waiting for it,
// and reports why; the others continue.
func TestHungDisk(t *testing.T) {
	t.Parallel() // they mostly wait
	a := newProcess(t, "meridian-global", "a", loopback("a")...)
	freeze, thaw := a.freezable()
	a.start().ready()
	b := newServer(t, a, "b").start().ready()
	c := newServer(t, a, "c").start().ready()
	a.awaitVoters("a", "b", "c")
	b.await("the first to lead", func() bool {
		return b.command("cluster", "transfer-leadership", "a").code == 0 && b.leader(a, b, c) == a
	})
	freeze()
	began := time.Now()
	b.await("a write to be taken", func() bool { return b.commandWith(mesh("during"), "apply", "-f", "-").code == 0 })
	t.Logf("a write was taken %s after the disk began to hang", time.Since(began).Round(10*time.Millisecond))
	require.NotEqual(t, a, c.leader(b, c))
	thaw()
	require.Equal(t, 1, a.ended())
	require.Contains(t, a.log.String(), "the disk hangs: a write to the log does not finish")
	require.Contains(t, a.log.String(), "the other servers continue without this one")
	a.start().ready()
	a.catchesUp(c)
}

// TestHungDiskOfOne: a global of one server whose disk hangs says so, serves what
// it has, and continues when the disk does.
func TestHungDiskOfOne(t *testing.T) {
	t.Parallel() // they mostly wait
	p := newGlobal(t)
	freeze, thaw := p.freezable()
	p.start().ready()
	require.Contains(t, p.scrape(), "meridian_disk_stalled_seconds 0\n")
	freeze()
	require.NotZero(t, p.commandWith(mesh("during"), "apply", "-f", "-", "--timeout", "1s").code)
	p.await("it to notice", func() bool {
		return strings.Contains(p.readyz(t), "[-] disk: the disk hangs: nothing was written to "+p.dir)
	})
	require.Regexp(t, `(?m)^meridian_disk_stalled_seconds [1-9]`, p.scrape())
	require.Contains(t, p.must("get", "meshes", "-o", "name", "--consistency", "stale"), "Mesh/default")
	thaw()
	p.await("it to be ready again", func() bool { return strings.HasSuffix(p.readyz(t), "ok\n") })
	require.Contains(t, p.scrape(), "meridian_disk_stalled_seconds 0\n")
	p.mustWith(mesh("after"), "apply", "-f", "-")
	require.Contains(t, p.meshes(), "Mesh/during", "it was on its way")
	require.Zero(t, p.stop())
}

// damage flips one bit wherever a text stands in a file.
func damage(t *testing.T, path, text string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	found := 0
	for at := 0; ; found++ {
		i := bytes.Index(data[at:], []byte(text))
		if i < 0 {
			break
		}
		at += i
		_, err := file.WriteAt([]byte{data[at] ^ 1}, int64(at))
		require.NoError(t, err)
		at += len(text)
	}
	require.Positive(t, found, "%s holds no %q", path, text)
}

// TestDamagedLog: a server whose log is damaged says so and ends, alone or beside
// others, sends nothing of the damage to them, and comes back as its message says. So does
// one whose journal is, which has the last entries of a server that was killed.
func TestDamagedLog(t *testing.T) {
	t.Parallel() // they mostly wait
	a := newProcess(t, "meridian-global", "a", loopback("a")...).start().ready()
	log, journal := filepath.Join("raft", "log.db"), filepath.Join("raft", "journal")
	a.mustWith(mesh("peculiar"), "apply", "-f", "-")
	require.Zero(t, a.stop())
	pristine, err := os.ReadFile(filepath.Join(a.dir, log))
	require.NoError(t, err)
	damage(t, filepath.Join(a.dir, log), "peculiar")
	a.start()
	require.Equal(t, 1, a.ended())
	require.Contains(t, a.log.String(), "checksum mismatch in entry")
	require.Contains(t, a.log.String(), log)
	require.Contains(t, a.log.String(), "meridian cluster snapshot restore")
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, log), pristine, 0o600))
	a.start().ready()

	b := newServer(t, a, "b").start().ready()
	c := newServer(t, a, "c").start().ready()
	a.awaitVoters("a", "b", "c")
	leader := b.leader(a, b, c)
	others := slices.DeleteFunc([]*process{a, b, c}, func(p *process) bool { return p == leader })
	away, stays := others[0], others[1]
	away.kill()
	stays.mustWith(mesh("uncommon"), "apply", "-f", "-")
	damage(t, filepath.Join(leader.dir, journal), "uncommon")
	away.start().ready() // what it lacks is sent from the leader's memory, where it is whole
	away.catchesUp(stays)
	if leader.running() {
		leader.kill()
	}
	leader.start()
	require.Equal(t, 1, leader.ended())
	require.Contains(t, leader.log.String(), "checksum mismatch in the sector")
	require.Contains(t, leader.log.String(), journal)
	require.Contains(t, leader.log.String(), "generate server-token")
	away.await("the others to continue", func() bool { return away.commandWith(mesh("later"), "apply", "-f", "-").code == 0 })
	away.catchesUp(stays)

	// It comes back as its message says.
	if slices.Contains(leader.args, "--join-bundle") {
		leader.withoutBundle()
	}
	require.NoError(t, os.RemoveAll(leader.dir))
	leader.args = append(leader.args, "--join-bundle", stays.serverBundle())
	leader.start().ready()
	leader.catchesUp(stays)
}

// failingSyncs makes every fdatasync of a process fail until the returned function is
// called. What was written is in the file by then, and visible to whatever reads it.
func (p *process) failingSyncs() (end func()) {
	p.t.Helper()
	cmd := exec.Command("strace", "-f", "-q", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
		"-e", "inject=fdatasync,fsync:error=EIO", "-p", fmt.Sprint(p.cmd.Process.Pid))
	if err := cmd.Start(); err != nil {
		p.t.Skipf("strace: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var once sync.Once
	end = func() {
		once.Do(func() {
			_ = cmd.Process.Signal(syscall.SIGINT)
			<-ended
		})
	}
	p.t.Cleanup(end)
	p.await("strace to be attached", func() bool {
		select {
		case err := <-ended:
			ended <- err
			p.t.Skipf("strace ended: %v", err)
		default:
		}
		return p.traced()
	})
	return end
}

// traced says that every thread of a process has a tracer.
func (p *process) traced() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err == nil && strings.Contains(string(status), "TracerPid:\t0\n") {
			return false
		}
	}
	return true
}

// TestFailedSyncOfTheLog: fdatasync fails below the log's database, after what was
// written is visible in the file. The server ends, acknowledges nothing, and holds
// one state and no other when it is back.
func TestFailedSyncOfTheLog(t *testing.T) {
	t.Parallel()
	p := newGlobal(t).start().ready()
	p.mustWith(mesh("before"), "apply", "-f", "-")
	p.pin()
	end := p.failingSyncs()
	require.NotZero(t, p.commandWith(mesh("during"), "apply", "-f", "-", "--timeout", "5s").code)
	require.Equal(t, 1, p.ended())
	require.Contains(t, p.log.String(), "input/output error")
	end()
	p.start().ready()
	p.mustWith(mesh("after"), "apply", "-f", "-")
	held := p.meshes()
	require.Contains(t, held, "Mesh/before")
	require.Contains(t, held, "Mesh/after")
	p.kill()
	p.start().ready()
	require.Equal(t, held, p.meshes())
}

// TestFailedSyncOfAZone: the same below a zone's replica. The zone acknowledges
// nothing meanwhile, and what it serves then is what the global has, also after it was
// killed and the global is gone.
func TestFailedSyncOfAZone(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	zone := newZone(t, global, "east").start().ready()
	global.awaitState("east", "in-sync")
	zone.pin()
	at := global.zones()["east"].Revision
	end := zone.failingSyncs()
	global.mustWith(mesh("one")+"---\n"+mesh("two"), "apply", "-f", "-")
	zone.await("a write to fail", func() bool { return strings.Contains(zone.log.String(), "input/output error") })
	require.Equal(t, at, global.zones()["east"].Revision, "nothing is acknowledged that is not on the disk")
	end()
	global.awaitState("east", "in-sync")
	want := global.meshes()
	require.Contains(t, want, "Mesh/two")
	require.Equal(t, want, zone.meshes())
	zone.kill()
	global.kill()
	zone.start().ready()
	require.Equal(t, want, zone.meshes())
}
