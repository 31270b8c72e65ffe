//go:build multizone

package multizone

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

// read returns the value of a metric of a server, which has one.
func (p *process) read(name string) float64 {
	p.t.Helper()
	value, ok := p.metric(name)
	require.True(p.t, ok, "there is no %s", name)
	return value
}

func refusals(limit string) string {
	return fmt.Sprintf("meridian_limit_refusals_total{limit=%q}", limit)
}

// A connection on which calls are begun and reset without end is closed, long before
// the flood is over.
func TestAFloodOfResetsLosesItsConnection(t *testing.T) {
	const flood = 300_000
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	before := global.read("process_cpu_seconds_total")
	trust := global.trust()
	trust.ServerName = "127.0.0.1"
	raw := openMany(t, 1, global.addresses()["grpc"], func(net.Conn) error { return nil })[0]
	conn := tls.Client(raw, trust)
	out := bufio.NewWriterSize(conn, 16<<10)
	_, err := out.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(h2Settings, 0, 0, nil)...))
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn) // ends with the connection
		read <- err
	}()
	sent := 0
	call := callTo(meridianv1.AdminService_Get_FullMethodName)
	for i := uint32(0); err == nil && sent < flood; i++ {
		_, err = out.Write(slices.Concat(frame(h2Headers, h2EndHeaders, 2*i+1, call), frame(h2Reset, 0, 2*i+1, make([]byte, 4))))
		sent++
	}
	require.Error(t, err, "the server still reads after %d resets", sent)
	<-read
	require.InDelta(t, 1, global.read(refusals("aborted_calls")), 0)
	t.Logf("closed while %d resets were sent, after %.2f s of CPU", sent, global.read("process_cpu_seconds_total")-before)
	global.healthy("a flood of resets")
}

// Calls beyond those that a connection may have open are refused by HTTP/2 itself, which
// no limit counts. They cost the server little more than reading them, keep nothing, and
// leave other connections alone.
func TestAFloodOfRefusedStreamsCostsLittle(t *testing.T) {
	const open, flood = 256, 200_000
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	trust := global.trust()
	trust.ServerName = "127.0.0.1"
	conn := tls.Client(openMany(t, 1, global.addresses()["grpc"], func(net.Conn) error { return nil })[0], trust)
	out := bufio.NewWriterSize(conn, 16<<10)
	_, err := out.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(h2Settings, 0, 0, nil)...))
	require.NoError(t, err)
	var refused atomic.Int64
	read := make(chan struct{})
	go func() { // ends with the connection
		defer close(read)
		head := make([]byte, 9)
		for in := bufio.NewReader(conn); ; {
			if _, err := io.ReadFull(in, head); err != nil {
				return
			}
			payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
			if _, err := io.ReadFull(in, payload); err != nil {
				return
			}
			if head[3] == h2Reset && binary.BigEndian.Uint32(payload) == h2RefusedStream {
				refused.Add(1)
			}
		}
	}()
	call := callTo(meridianv1.AdminService_Get_FullMethodName)
	for i := range uint32(open) { // calls that wait for their requests
		_, err = out.Write(frame(h2Headers, h2EndHeaders, 2*i+1, call))
		require.NoError(t, err)
	}
	before := global.read("process_cpu_seconds_total")
	sent := 0
	for i := uint32(open); err == nil && sent < flood; i++ {
		_, err = out.Write(frame(h2Headers, h2EndHeaders, 2*i+1, call))
		sent++
	}
	_ = out.Flush()
	t.Logf("sent %d, %v", sent, err)
	if err == nil {
		global.await("the flood to be answered", func() bool { return refused.Load() >= int64(sent) })
	}
	spent := global.read("process_cpu_seconds_total") - before
	t.Logf("%d of %d calls were refused, after %.2f s of CPU: %.1f µs for each", refused.Load(), sent, spent, 1e6*spent/float64(sent))
	require.Less(t, spent/float64(sent), 1e-4)
	global.stands("a flood of refused streams")
	require.NoError(t, conn.Close())
	<-read
}

// An address that opens connections and says nothing keeps out no others, and the
// metrics say which limit it has reached.
func TestConnectionsOfOneAddressLeaveOthers(t *testing.T) {
	global := newGlobal(t, "--localhost-is-admin=false", "--max-unauthenticated-connections", "10").start().ready()
	openMany(t, 2000, global.addresses()["grpc"], func(net.Conn) error { return nil })
	global.healthy("2,000 silent connections")
	require.Positive(t, global.read(refusals("unauthenticated_connections")))
	require.LessOrEqual(t, global.read("meridian_connections_unauthenticated"), 80.0)
}

// Reviews with regular expressions that are expensive to compile, sixteen at a
// time, do not keep the webhook from deciding those of other clients.
func TestExpensiveReviewsDoNotTakeDownTheWebhook(t *testing.T) {
	global := newGlobal(t, "--webhook-addr", anyPort, "--webhook-allow-any-client", "--webhook-host", webhookHost, "--environment", "kubernetes").start().ready()
	trust := global.trust()
	trust.ServerName, trust.NextProtos = webhookHost, []string{"http/1.1"}
	var match strings.Builder
	for i := range 200 {
		_, _ = fmt.Fprintf(&match, `,"h%d": {"regex": "%s%d"}`, i, strings.Repeat("(([a-z]{1,20}){1,10}x)?", 10), i)
	}
	review := fmt.Sprintf(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
		"uid": "1", "operation": "CREATE", "name": "slow", "userInfo": {"username": "flood", "groups": ["system:authenticated"]},
		"kind": {"group": "kuma.io", "version": "v1alpha1", "kind": "TrafficRoute"},
		"object": {"apiVersion": "kuma.io/v1alpha1", "kind": "TrafficRoute", "mesh": "default", "metadata": {"name": "slow"}, "spec": {
			"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}],
			"conf": {"http": [{"match": {"headers": {"h": {"exact": "x"}%s}}, "destination": {"kuma.io/service": "b"}}], "destination": {"kuma.io/service": "b"}}}}}}`, match.String())
	const clients = 16
	ctx, stop := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var answers atomic.Int32
	for range clients {
		flood.Go(func() {
			client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: trust, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return attacker(0).DialContext(ctx, network, addr)
			}}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+global.addresses()["webhook"]+"/validate", strings.NewReader(review))
				if err != nil {
					return
				}
				request.Header.Set("Content-Type", "application/json")
				if response, err := client.Do(request); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
					answers.Add(1)
				}
			}
		})
	}
	for range 20 {
		code, message := global.admits("any-user", "system:authenticated", "backend")
		require.Zero(t, code, message)
	}
	global.await("the attack to have been answered", func() bool { return answers.Load() > 0 })
	stop()
	flood.Wait()
	t.Logf("%d reviews with 200 expressions each were answered meanwhile", answers.Load())
	global.healthy("expensive reviews")
}
