package sink

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"
	"github.com/stretchr/testify/require"

	"meridian/internal/audit"
)

var quiet = slog.New(slog.DiscardHandler)

// run runs a sink until the returned function is called, which waits for its end.
func run(t *testing.T, s *Sink) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func record(d audit.Decision, chain string) audit.Record {
	return audit.Record{Decision: d, Chain: chain, Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)}
}

// A second file holds what the log holds, and can be verified as it can.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "also.log")
	s, err := File(path, quiet)
	require.NoError(t, err)
	stop := run(t, s)
	dir := t.TempDir()
	log, err := audit.Open(audit.Config{Dir: dir, Now: time.Now, Logger: quiet, Sent: s.Send})
	require.NoError(t, err)
	write := func(name string) {
		log.Write(audit.Record{Who: audit.Who{Name: name, Source: "token"}, Decision: audit.Allowed, Method: "m"})
		log.Write(audit.Record{Who: audit.Who{Name: name, Source: "token"}, Decision: audit.Denied, Method: "m"})
	}
	write("a")
	write("b")
	require.NoError(t, log.Close())
	stop()
	report, err := audit.Verify([]string{path})
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Len(t, report.Chains, 2)
	require.EqualValues(t, 2, report.Chains[0].Records)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = File(filepath.Join(path, "x"), quiet)
	require.Error(t, err)
}

// rfc reads the frames of a stream.
func rfc(t *testing.T, r *bufio.Reader) *rfc5424.SyslogMessage {
	t.Helper()
	var length int
	_, err := fmt.Fscanf(r, "%d ", &length)
	require.NoError(t, err)
	data := make([]byte, length)
	_, err = io.ReadFull(r, data)
	require.NoError(t, err)
	return parse(t, data)
}

func parse(t *testing.T, data []byte) *rfc5424.SyslogMessage {
	t.Helper()
	m, err := rfc5424.NewParser().Parse(data)
	require.NoError(t, err, "%q", data)
	return m.(*rfc5424.SyslogMessage)
}

func TestSyslogOverAStream(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, err := Syslog("tcp://"+l.Addr().String(), "meridian", quiet)
	require.NoError(t, err)
	stop := run(t, s)
	s.Send(record(audit.Allowed, ""), []byte("{\"é\":1}\n"))
	conn, err := l.Accept()
	require.NoError(t, err)
	m := rfc(t, bufio.NewReader(conn))
	require.Equal(t, `{"é":1}`, *m.Message)
	require.Equal(t, uint8(13*8+5), *m.Priority)
	require.Equal(t, "meridian", *m.Appname)
	require.Equal(t, "audit", *m.MsgID)
	require.Equal(t, record("", "").Time, m.Timestamp.UTC())

	stop()
	require.NoError(t, errors.Join(conn.Close(), l.Close()))
	require.Zero(t, s.Dropped())
}

// late is a connection whose deadlines have passed when they are set, as on a machine
// that is busy.
type late struct{ net.Conn }

func (c late) SetReadDeadline(time.Time) error { return c.Conn.SetReadDeadline(time.Unix(1, 0)) }

// A server closes the connection, as when it restarts: nothing is lost by that. It is
// a socket of this machine: its end has arrived when Close returns.
func TestSyslogOverAStreamThatEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	address, err := ParseSyslog("unix://" + path)
	require.NoError(t, err)
	s := &syslog{address: address, host: "h", application: "meridian", process: "1"}
	write := func(chain string) {
		t.Helper()
		done, lost, err := s.write(t.Context(), []entry{{record(audit.Denied, chain), []byte("{}\n")}})
		require.NoError(t, err)
		require.Equal(t, []int{1, 0}, []int{done, lost})
	}
	write("first")
	conn, err := l.Accept()
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	require.Equal(t, "first", *rfc(t, reader).MsgID)
	s.stream.Conn = late{s.stream.Conn}
	write("second")
	require.Equal(t, "second", *rfc(t, reader).MsgID, "on the same connection")
	require.NoError(t, conn.Close())
	write("third")
	conn, err = l.Accept()
	require.NoError(t, err)
	require.Equal(t, "third", *rfc(t, bufio.NewReader(conn)).MsgID)
	require.NoError(t, errors.Join(s.close(), conn.Close(), l.Close()))
}

// With TLS there is something to read before the end: tickets, and the alert that ends
// it.
func TestTheEndOfATLSConnection(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	config := server.TLS
	server.Close()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	conn, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	from, err := newStream(conn)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	client, other := tls.Client(from, &tls.Config{ServerName: "example.com", RootCAs: roots}), tls.Server(accepted, config)
	shaken := make(chan error, 1)
	go func() { shaken <- other.HandshakeContext(t.Context()) }()
	require.NoError(t, client.HandshakeContext(t.Context()))
	require.NoError(t, <-shaken)
	for range 2 {
		require.False(t, gone(client, from))
	}
	_, err = client.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(other, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.True(t, gone(client, from))
	require.NoError(t, errors.Join(conn.Close(), l.Close()))
}

// A record is sent only to a server whose certificate is verified and names the host.
func TestSyslogOverTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	config, roots := server.TLS, x509.NewCertPool()
	roots.AddCert(server.Certificate())
	server.Close()
	config.NextProtos = nil
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	received := make(chan string, 1)
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if message := rfcOrNothing(bufio.NewReader(conn)); message != "" {
				received <- message
			}
			_ = conn.Close()
		}
	}()
	send := func(host string, roots *x509.CertPool) error {
		address, err := ParseSyslog("tls://" + net.JoinHostPort(host, port))
		require.NoError(t, err)
		s := &syslog{address: address, host: "h", application: "meridian", process: "1", roots: roots}
		_, _, err = s.write(t.Context(), []entry{{record(audit.Denied, "refused"), []byte("{\"a\":1}\n")}})
		return errors.Join(err, s.close())
	}
	var authority x509.UnknownAuthorityError
	require.ErrorAs(t, send("127.0.0.1", nil), &authority)
	var hostname x509.HostnameError
	require.ErrorAs(t, send("localhost", roots), &hostname)
	require.Empty(t, received)
	require.NoError(t, send("127.0.0.1", roots))
	require.Contains(t, <-received, `refused - {"a":1}`)
	require.NoError(t, l.Close())
	<-accepting
}

// rfcOrNothing returns a message with its length before it, or nothing where the
// connection ends without one.
func rfcOrNothing(r *bufio.Reader) string {
	length, err := r.ReadString(' ')
	if err != nil {
		return ""
	}
	n, err := strconv.Atoi(strings.TrimSpace(length))
	if err != nil {
		return ""
	}
	message := make([]byte, n)
	if _, err := io.ReadFull(r, message); err != nil {
		return ""
	}
	return string(message)
}

func TestSyslogOverDatagrams(t *testing.T) {
	for network, listen := range map[string]string{"udp": "127.0.0.1:0", "unixgram": filepath.Join(t.TempDir(), "s")} {
		l, err := net.ListenPacket(network, listen)
		require.NoError(t, err)
		address := "udp://" + l.LocalAddr().String()
		if network == "unixgram" {
			address = "unix://" + listen
		}
		s, err := Syslog(address, "meridian", quiet)
		require.NoError(t, err)
		stop := run(t, s)
		s.Send(record(audit.Allowed, ""), []byte(strings.Repeat("x", maxDatagram)+"\n"))
		s.Send(record(audit.Allowed, ""), []byte("{}\n"))
		data := make([]byte, 1<<16)
		n, _, err := l.ReadFrom(data)
		require.NoError(t, err)
		require.Equal(t, "{}", *parse(t, data[:n]).Message)
		stop()
		require.EqualValues(t, 1, s.Dropped(), "too long for a datagram")
		require.NoError(t, l.Close())
	}
}

func TestParseSyslog(t *testing.T) {
	for _, good := range []string{"udp://h:514", "tcp://[::1]:514", "tls://logs.example:6514", "unix:///dev/log"} {
		_, err := ParseSyslog(good)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"", "h:514", "udp://h", "http://h:1", "unix://dev/log", "udp://:514", "tcp://u@h:1", "tcp://h:1/x", "tcp://h:"} {
		_, err := ParseSyslog(bad)
		require.ErrorContains(t, err, "write udp://HOST:PORT", bad)
	}
}

// target that fails until it is told otherwise.
type failing struct {
	fails atomic.Bool
	got   int
}

func (f *failing) write(_ context.Context, entries []entry) (done, lost int, err error) {
	if f.fails.Load() {
		return 0, 0, errors.New("away")
	}
	f.got += len(entries)
	return len(entries), 0, nil
}

func (f *failing) close() error { return nil }

// While a target is away records wait, as many as there is space for.
func TestTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &failing{}
		to.fails.Store(true)
		s := newSink("file", to, quiet)
		stop := run(t, s)
		line := make([]byte, 1<<20)
		for range 20 {
			s.Send(audit.Record{}, line)
		}
		synctest.Wait()
		require.EqualValues(t, 4, s.Dropped())
		to.fails.Store(false)
		<-time.After(retryAfter)
		synctest.Wait()
		require.Equal(t, 16, to.got)
		s.Send(audit.Record{}, line)
		synctest.Wait()
		require.Equal(t, 17, to.got)
		stop()
		require.EqualValues(t, 4, s.Dropped())
	})
}
