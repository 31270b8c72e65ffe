//go:build multizone

package multizone

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
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
	require.Equal(t, 1.0, global.read(refusals("aborted_calls")))
	t.Logf("closed while %d resets were sent, after %.2f s of CPU", sent, global.read("process_cpu_seconds_total")-before)
	global.healthy("a flood of resets")
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
