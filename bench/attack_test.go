//go:build linux

package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
)

const (
	// knownTime is for how long the requests of a known caller are measured at a time,
	// and attackRounds how often, in turn without and under attack. An attack begins
	// with all that the limits let through at once; after a second or two it has what
	// they let through each second.
	knownTime    = 5 * time.Second
	attackRounds = 3
	// attackers are the addresses that attack, each with as many connections at a
	// time as there are kinds of attack.
	attackers = 8
	// flood is how many calls an attacker makes on a connection, as far as the server
	// lets it.
	flood = 3000
)

// BenchmarkUnderAttack measures what a known caller has of a global that clients
// without credentials attack from eight addresses, as fast as they can, and what the
// global needs for it. The attackers run on the same machine with the least priority,
// so that what is felt is the work of the global, not theirs.
func BenchmarkUnderAttack(b *testing.B) {
	system(b)
	procfs(b)
	g, spared := attackedGlobal(b), attackedGlobal(b)
	var quiet, attacked samples
	var quietCPU, attackCPU, quietTime, attackTime time.Duration
	var made attack
	quietMB, edition := 0.0, 0
	for b.Loop() {
		for range attackRounds {
			cpu, began := g.processor(b), time.Now()
			g.known(b, &quiet, &edition, always)
			quietCPU, quietTime = quietCPU+g.processor(b)-cpu, quietTime+time.Since(began)
			quietMB = max(quietMB, g.memory(b, "VmRSS"))

			stop := made.begin(b, g)
			cpu, began = g.processor(b), time.Now()
			g.known(b, &attacked, &edition, always)
			attackCPU, attackTime = attackCPU+g.processor(b)-cpu, attackTime+time.Since(began)
			stop()
		}
	}
	report(b, "quiet-p50-ms", quiet.p50())
	report(b, "quiet-p99-ms", quiet.p99())
	report(b, "attacked-p50-ms", attacked.p50())
	report(b, "attacked-p99-ms", attacked.p99())
	target(b, "p99-attacked/quiet", attacked.p99()/quiet.p99(), 3)
	report(b, "quiet-cpu-%", 100*float64(quietCPU)/float64(quietTime))
	report(b, "attacked-cpu-%", 100*float64(attackCPU)/float64(attackTime))
	report(b, "quiet-MB", quietMB)
	report(b, "attacked-peak-MB", g.memory(b, "VmHWM"))
	// Most of that is what the requests of the known caller leave behind: as many are
	// sent to a global that is not attacked.
	var unattacked samples
	sent, again := edition, 0
	for again < sent {
		spared.known(b, &unattacked, &again, sent)
	}
	report(b, "unattacked-peak-MB", spared.memory(b, "VmHWM"))
	<-time.After(rest)
	report(b, "rested-MB", g.memory(b, "VmRSS"))
	report(b, "unattacked-rested-MB", spared.memory(b, "VmRSS"))
	report(b, "rested-anonymous-MB", g.memory(b, "RssAnon"))
	report(b, "unattacked-rested-anonymous-MB", spared.memory(b, "RssAnon"))
	report(b, "known-requests", float64(sent))
	report(b, "connections/s", float64(made.Connections.Load())/attackTime.Seconds())
	report(b, "calls/s", float64(made.Calls.Load())/attackTime.Seconds())
	require.Positive(b, made.Calls.Load(), "nothing attacked")
}

// attackedGlobal starts a global whose callers need credentials.
func attackedGlobal(b *testing.B) *global {
	b.Helper()
	g := startGlobal(b, b.TempDir(), "--localhost-is-admin=false", "--default-access=restricted")
	g.api.apply(b, policies(few))
	return g
}

// always is a number of requests that is not reached.
const always = math.MaxInt

// known makes the requests of a known caller, one after the other, for knownTime or
// until there have been so many in all: every fifth writes a policy, the others read
// one.
func (g *global) known(b *testing.B, times *samples, edition *int, most int) {
	b.Helper()
	for i, end := 0, time.Now().Add(knownTime); *edition < most && time.Now().Before(end); i++ {
		*edition++
		p := policy(i%few, *edition)
		began := time.Now()
		if i%5 == 0 {
			g.api.write(b, p, false)
		} else {
			_, err := g.api.Get(b.Context(), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: p.GetKind(), Mesh: p.GetMesh(), Name: p.GetName()}})
			require.NoError(b, err)
		}
		times.add(time.Since(began))
	}
}

// attack counts what attackers do.
type attack struct{ Connections, Calls atomic.Int64 }

// Variables of the environment of a process that attacks.
const (
	attackAddr, attackCA, attackCounts = "BENCH_ATTACK_ADDR", "BENCH_ATTACK_CA", "BENCH_ATTACK_COUNTS"
)

// begin attacks a global, in a process of the least priority, until the function that
// it returns is called.
func (a *attack) begin(b *testing.B, g *global) (stop func()) {
	b.Helper()
	counts := filepath.Join(b.TempDir(), "counts")
	cmd := exec.Command("chrt", "--idle", "0", os.Args[0], "-test.run", "^TestAttacker$", "-test.timeout", "3m")
	cmd.Env = append(os.Environ(), attackAddr+"="+g.grpcAddr, attackCA+"="+filepath.Join(g.dir, "pki", "ca.pem"), attackCounts+"="+counts)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	_, err = bufio.NewReader(stdout).ReadString('\n') // it has begun
	require.NoError(b, err)
	return func() {
		require.NoError(b, stdin.Close())
		_, _ = io.Copy(io.Discard, stdout)
		require.NoError(b, cmd.Wait())
		var connections, calls int64
		text, err := os.ReadFile(counts)
		require.NoError(b, err)
		_, err = fmt.Sscan(string(text), &connections, &calls)
		require.NoError(b, err)
		a.Connections.Add(connections)
		a.Calls.Add(calls)
	}
}

// TestAttacker is the process that attacks for BenchmarkUnderAttack, until its
// standard input ends.
func TestAttacker(t *testing.T) {
	if os.Getenv(attackAddr) == "" {
		t.Skip("a process of BenchmarkUnderAttack")
	}
	pem, err := os.ReadFile(os.Getenv(attackCA))
	require.NoError(t, err)
	trust := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}
	require.True(t, trust.RootCAs.AppendCertsFromPEM(pem))
	batch, err := proto.Marshal(&meridianv1.ApplyRequest{RequestId: "x", Resources: []*meridianv1.Resource{{
		Kind: "MeshTrafficPermission", Mesh: "default", Name: "x", Spec: []byte(strings.Repeat(`{"a":[`, 8000)),
	}}})
	require.NoError(t, err)
	var a attack
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for i := range attackers {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}}
		for _, kind := range []func(c *attackConn){
			func(c *attackConn) { c.resets(&a) },
			func(c *attackConn) { c.forgeries(&a) },
			func(c *attackConn) { c.batches(&a, batch) },
			func(*attackConn) {}, // connections alone
		} {
			all.Go(func() {
				for ctx.Err() == nil {
					if c := openAttack(ctx, dialer, os.Getenv(attackAddr), trust); c != nil {
						a.Connections.Add(1)
						kind(c)
						c.close()
					}
				}
			})
		}
	}
	fmt.Println("attacking")
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	require.NoError(t, os.WriteFile(os.Getenv(attackCounts), fmt.Appendf(nil, "%d %d", a.Connections.Load(), a.Calls.Load()), 0o600))
}

// attackConn is a connection of an attacker.
type attackConn struct {
	conn   *tls.Conn
	frames *http2.Framer
	stop   func() bool
	read   chan struct{}
	stream uint32
}

// openAttack opens a connection, or returns nil where the server refuses it.
func openAttack(ctx context.Context, dialer *net.Dialer, addr string, trust *tls.Config) *attackConn {
	raw, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	c := &attackConn{conn: tls.Client(raw, trust), read: make(chan struct{}), stream: 1}
	c.stop = context.AfterFunc(ctx, func() { _ = raw.Close() })
	c.frames = http2.NewFramer(c.conn, nil)
	_, err = io.WriteString(c.conn, http2.ClientPreface)
	if err == nil {
		err = c.frames.WriteSettings()
	}
	if err != nil {
		c.stop()
		_ = raw.Close()
		return nil
	}
	go func() {
		defer close(c.read)
		_, _ = io.Copy(io.Discard, c.conn) // ends with the connection
	}()
	return c
}

func (c *attackConn) close() {
	c.stop()
	_ = c.conn.NetConn().Close()
	<-c.read
}

// call begins a call.
func (c *attackConn) call(method string, end bool, more ...hpack.HeaderField) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		f.Sensitive = true // each connection's table stays as it is
		if err := encoder.WriteField(f); err != nil {
			return err
		}
	}
	err := c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: block.Bytes(), EndStream: end, EndHeaders: true})
	c.stream += 2
	return err
}

// resets begins calls and gives them up.
func (c *attackConn) resets(a *attack) {
	for range flood {
		if c.call(meridianv1.AdminService_Get_FullMethodName, false) != nil || c.frames.WriteRSTStream(c.stream-2, http2.ErrCodeCancel) != nil {
			return
		}
		a.Calls.Add(1)
	}
}

// forgeries makes calls with tokens that no server has signed.
func (c *attackConn) forgeries(a *attack) {
	for i := range flood {
		token := hpack.HeaderField{Name: "authorization", Value: fmt.Sprintf("Bearer eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.e30.%d", i)}
		if c.call(meridianv1.AdminService_List_FullMethodName, true, token) != nil {
			return
		}
		a.Calls.Add(1)
	}
}

// batches sends batches that cost much to decode.
func (c *attackConn) batches(a *attack, batch []byte) {
	message := append([]byte{0, byte(len(batch) >> 24), byte(len(batch) >> 16), byte(len(batch) >> 8), byte(len(batch))}, batch...)
	for range flood {
		if c.call(meridianv1.AdminService_Apply_FullMethodName, false) != nil {
			return
		}
		for rest := message; len(rest) > 0; {
			n := min(len(rest), 16<<10)
			if c.frames.WriteData(c.stream-2, n == len(rest), rest[:n]) != nil {
				return
			}
			rest = rest[n:]
		}
		a.Calls.Add(1)
	}
}
