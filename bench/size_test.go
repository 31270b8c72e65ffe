package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

const (
	// sizeMeshes are the meshes that the resources are in.
	sizeMeshes = 100
	// sizePatience bounds what is done with all resources at once.
	sizePatience = 20 * time.Minute
	// sizeSamples is how often a resource is read, or written, to know how long it takes.
	sizeSamples = 1000
	// sizeTurn is how many of these one server has before it is the other one's turn.
	sizeTurn = 100
)

// sizeKinds are a policy of each kind about one service, which each service has.
var sizeKinds = []struct{ kind, spec string }{
	{"TrafficPermission", `{"sources":[{"match":{"kuma.io/service":"%[2]s"}}],"destinations":[{"match":{"kuma.io/service":"%[1]s"}}]}`},
	{"Timeout", `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"%[1]s"}}],"conf":{"connectTimeout":"%[3]dms","tcp":{"idleTimeout":"1h"},"http":{"requestTimeout":"15s","idleTimeout":"30m"}}}`},
	{"Retry", `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"%[1]s"}}],"conf":{"http":{"numRetries":5,"perTryTimeout":"16ms","backOff":{"baseInterval":"20ms","maxInterval":"1s"},"retriableStatusCodes":[500,504]}}}`},
	{"MeshTrafficPermission", `{"targetRef":{"kind":"MeshService","name":"%[1]s"},"from":[{"targetRef":{"kind":"MeshService","name":"%[2]s"},"default":{"action":"Allow"}}]}`},
	{"MeshUpstreamTimeout", `{"targetRef":{"kind":"Mesh"},"to":[{"targetRef":{"kind":"MeshService","name":"%[1]s"},"default":{"connectTimeout":"5s","http":{"requestTimeout":"15s"}}}]}`},
	{"CircuitBreaker", `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"%[1]s"}}],"conf":{"interval":"5s","baseEjectionTime":"30s","maxEjectionPercent":20,"detectors":{"totalErrors":{"consecutive":20}}}}`},
}

// sized are n resources: meshes, and the policies of their services.
type sized struct{ meshes, each int }

func newSized(n int) sized {
	meshes := min(sizeMeshes, max(1, n/100))
	return sized{meshes, n/meshes - 1}
}

func (s sized) total() int { return s.meshes * (s.each + 1) }

// policy is one of them, in an edition of it.
func (s sized) policy(mesh, i, edition int) *meridianv1.Resource {
	service := i / len(sizeKinds)
	k := sizeKinds[i%len(sizeKinds)]
	name, peer := fmt.Sprintf("service-%05d", service), fmt.Sprintf("service-%05d", (7*service+1)%(s.each/len(sizeKinds)+1))
	return &meridianv1.Resource{
		Kind: k.kind, Mesh: fmt.Sprintf("mesh-%03d", mesh), Name: name,
		Spec: fmt.Appendf(nil, k.spec, name, peer, 5000+edition), // a spec says by their numbers which it takes
	}
}

// write writes them as files of one mesh each, and returns the bytes of their specs and
// names.
func (s sized) write(b *testing.B, dir string) (content int) {
	b.Helper()
	for mesh := range s.meshes {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("mesh-%03d.yaml", mesh)))
		require.NoError(b, err)
		out := bufio.NewWriter(file)
		fmt.Fprintf(out, "---\n{type: Mesh, name: mesh-%03d}\n", mesh)
		for i := range s.each {
			r := s.policy(mesh, i, 0)
			content += len(r.GetSpec()) + len(r.GetName())
			fmt.Fprintf(out, "---\n{type: %s, mesh: %s, name: %s, spec: %s}\n", r.GetKind(), r.GetMesh(), r.GetName(), r.GetSpec())
		}
		require.NoError(b, out.Flush())
		require.NoError(b, file.Close())
	}
	return content
}

// BenchmarkSize writes BENCH_SIZE resources to a global with a zone by one command, and
// looks at what they cost: memory, restarts, reading, writing, a snapshot. What should not
// depend on their number is compared with a global that has 1,000.
func BenchmarkSize(b *testing.B) {
	system(b)
	procfs(b)
	n, err := strconv.Atoi(os.Getenv("BENCH_SIZE"))
	if err != nil || n < 1000 {
		b.Skip("BENCH_SIZE=1000000 has it run with so many resources: it takes some minutes and 6 GB of memory")
	}
	all := newSized(n)
	input := b.TempDir()
	content := all.write(b, input)
	g := startGlobal(b, b.TempDir())
	bundle := g.bundle(b, "east", g.grpcAddr)
	dir := b.TempDir()
	z := startZone(b, bundle, dir)
	z.await(b, connected, 0)

	few := newSized(1000)
	smallInput := b.TempDir()
	few.write(b, smallInput)
	small := startGlobal(b, b.TempDir())
	// With a zone, too: it shares processors and disk with the global.
	startZone(b, small.bundle(b, "east", small.grpcAddr), b.TempDir()).await(b, connected, 0)
	small.meridian(b, "apply", "-f", smallInput, "--in-batches", "--wait=zones")

	for b.Loop() {
		began := time.Now()
		peak := g.meridian(b, "apply", "-f", input, "--in-batches", "--wait=zones", "-o", "name")
		report(b, "applied-s", time.Since(began).Seconds())
		report(b, "command-MB", peak)
		<-time.After(rest)
		perPolicy := func(p *process) float64 {
			return (p.memory(b, "RssAnon")*1e6 - float64(content)) / float64(all.total())
		}
		report(b, "global-MB", g.memory(b, "VmRSS"))
		report(b, "zone-MB", z.memory(b, "VmRSS"))
		report(b, "global-peak-MB", g.memory(b, "VmHWM"))
		report(b, "zone-peak-MB", z.memory(b, "VmHWM"))
		target(b, "global-B/policy", perPolicy(g.process), 1500)
		target(b, "zone-B/policy", perPolicy(z.process), 1500)

		gets, fewGets := inTurns(
			func(i int) time.Duration { return g.readOne(b, all, i) },
			func(i int) time.Duration { return small.readOne(b, few, i) })
		report(b, "get-p50-ms", gets.p50())
		target(b, "get-p50/1k", gets.p50()/fewGets.p50(), 1.2)
		pages := g.pages(b)
		report(b, "page-p50-ms", pages.p50())
		report(b, "page-max-ms", pages.worst())
		writes, fewWrites := inTurns(
			func(i int) time.Duration { return g.writeOne(b, all, i) },
			func(i int) time.Duration { return small.writeOne(b, few, i) })
		report(b, "write-p50-ms", writes.p50())
		report(b, "write-p99-ms", writes.p99())
		target(b, "write-p50/1k", writes.p50()/fewWrites.p50(), 1.2)
		g.snapshotWhileWriting(b, all)

		<-time.After(rest)
		z.kill()
		z = startZone(b, bundle, dir)
		target(b, "zone-restart-ms", milliseconds(z.ready(b).at.Sub(z.started)), 10_000)
		require.Equal(b, all.total(), z.api.counts(b))
		g.kill()
		*g = *startGlobal(b, g.dir)
		target(b, "global-restart-ms", milliseconds(g.ready(b).at.Sub(g.started)), 10_000)
		require.Equal(b, all.total(), g.api.counts(b))
		<-time.After(rest)
		report(b, "global-restarted-MB", g.memory(b, "RssAnon"))
		report(b, "zone-restarted-MB", z.memory(b, "RssAnon"))
		report(b, "global-restart-peak-MB", g.memory(b, "VmHWM"))
		report(b, "zone-restart-peak-MB", z.memory(b, "VmHWM"))
	}
}

// meridian runs the command with the global's context, and returns the most memory that it had,
// in MB.
func (g *global) meridian(b *testing.B, args ...string) float64 {
	b.Helper()
	command, err := g.command(b.Context(), args...)
	require.NoError(b, err)
	require.NoError(b, command.Run(), "%v", args)
	usage, ok := command.ProcessState.SysUsage().(*syscall.Rusage)
	require.True(b, ok)
	return float64(usage.Maxrss) * 1024 / 1e6
}

func (g *global) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := programs.Path("meridian")
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, path, append(args, "--timeout", sizePatience.String())...)
	command.Env = append(os.Environ(), "MERIDIAN_CONFIG="+filepath.Join(g.dir, "admin.yaml"))
	command.Stderr = os.Stderr
	return command, nil
}

// inTurns takes samples of two servers, some of one and then some of the other: what else
// happens on the machine is felt by both.
func inTurns(first, second func(i int) time.Duration) (ofFirst, ofSecond samples) {
	for i := 0; i < sizeSamples; i += sizeTurn {
		for k := range sizeTurn {
			ofFirst.add(first(i + k))
		}
		for k := range sizeTurn {
			ofSecond.add(second(i + k))
		}
	}
	return ofFirst, ofSecond
}

// readOne reads a resource.
func (g *global) readOne(b *testing.B, of sized, i int) time.Duration {
	b.Helper()
	r := of.policy(i%of.meshes, i*7919%of.each, 0) // 7919 is prime: from everywhere
	began := time.Now()
	_, err := g.api.Get(b.Context(), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: r.GetKind(), Mesh: r.GetMesh(), Name: r.GetName()}})
	took := time.Since(began)
	require.NoError(b, err)
	return took
}

// pages reads all resources of a kind by pages.
func (g *global) pages(b *testing.B) (times samples) {
	b.Helper()
	page := ""
	for first := true; first || page != ""; first = false {
		began := time.Now()
		_, page = g.api.page(b, &meridianv1.ListRequest{Kinds: []string{sizeKinds[0].kind}, PageToken: page})
		times.add(time.Since(began))
	}
	return times
}

// page reads one page.
func (c *client) page(b *testing.B, req *meridianv1.ListRequest) (n int, next string) {
	b.Helper()
	stream, err := c.List(b.Context(), req)
	require.NoError(b, err)
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return n, next
		}
		require.NoError(b, err)
		n += len(part.GetResources())
		next = part.GetNextPageToken()
	}
}

// counts are the policies and meshes of a server, without the mesh that it begins with.
func (c *client) counts(b *testing.B) (n int) {
	b.Helper()
	kinds := []string{"Mesh"}
	for _, k := range sizeKinds {
		kinds = append(kinds, k.kind)
	}
	page := ""
	for first := true; first || page != ""; first = false {
		var more int
		more, page = c.page(b, &meridianv1.ListRequest{Kinds: kinds, Consistency: meridianv1.Consistency_CONSISTENCY_STALE, PageToken: page})
		n += more
	}
	_, err := c.Get(b.Context(), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: "default"}})
	if err == nil {
		n--
	}
	return n
}

// sizeEditions counts what was written, so that every write is one.
var sizeEditions atomic.Int64

// writeOne changes the timeouts of a service.
func (g *global) writeOne(b *testing.B, of sized, i int) time.Duration {
	b.Helper()
	at := i * 7919 % (of.each / len(sizeKinds))
	r := of.policy(i%of.meshes, at*len(sizeKinds)+1, int(sizeEditions.Add(1)))
	began := time.Now()
	g.api.write(b, r, false)
	return time.Since(began)
}

// snapshotWhileWriting saves a snapshot while one client writes without a pause.
func (g *global) snapshotWhileWriting(b *testing.B, of sized) {
	b.Helper()
	command, err := g.command(b.Context(), "cluster", "snapshot", "save", filepath.Join(b.TempDir(), "snapshot"))
	require.NoError(b, err)
	var saved time.Duration
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		err := command.Run()
		saved = time.Since(began)
		done <- err
	}()
	var times samples
	for i := 0; ; i++ {
		select {
		case err := <-done:
			require.NoError(b, err)
			report(b, "snapshot-s", saved.Seconds())
			report(b, "snapshot-write-p50-ms", times.p50())
			target(b, "snapshot-write-max-ms", times.worst(), 100)
			return
		default:
			times.add(g.writeOne(b, of, i))
		}
	}
}
