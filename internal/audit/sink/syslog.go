package sink

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"
	"golang.org/x/sys/unix"

	"meridian/internal/audit"
)

const (
	// facility is "log audit", and the severities are those of RFC 5424.
	facility                  = 13
	warning, notice           = 4, 5
	dialTimeout, writeTimeout = 5 * time.Second, 5 * time.Second
	// maxDatagram is the longest message that is sent in one datagram, in bytes.
	maxDatagram = 60 << 10
)

// Syslog passes records on as messages of RFC 5424, with the line of the log as the
// text. address is udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT, with the server
// verified by the CAs of the system, or unix:///PATH. On a stream the length precedes
// each message (RFC 6587, RFC 5425). The error means that address is not one of these.
func Syslog(address, application string, log *slog.Logger) (*Sink, error) {
	t, err := ParseSyslog(address)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "-"
	}
	return newSink("syslog", &syslog{address: t, host: host, application: application, process: strconv.Itoa(os.Getpid())}, log), nil
}

// Address is where a syslog server listens.
type Address struct{ network, address string }

// ParseSyslog reads the address of a syslog server.
func ParseSyslog(text string) (Address, error) {
	u, err := url.Parse(text)
	if err == nil && u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		switch _, port, err := net.SplitHostPort(u.Host); {
		case u.Scheme == "unix" && u.Host == "" && len(u.Path) > 1:
			return Address{"unix", u.Path}, nil
		case (u.Scheme == "udp" || u.Scheme == "tcp" || u.Scheme == "tls") && err == nil && port != "" && u.Hostname() != "" && u.Path == "":
			return Address{u.Scheme, u.Host}, nil
		}
	}
	return Address{}, fmt.Errorf("write udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH, not %q", text)
}

type syslog struct {
	address                    Address
	host, application, process string
	// roots verify the server of TLS; nil: the CAs of the system.
	roots *x509.CertPool
	conn  net.Conn
	// stream is what conn reads from; nil for one of datagrams.
	stream *stream
}

func (t *syslog) write(ctx context.Context, entries []entry) (done, lost int, err error) {
	if err := t.connect(ctx); err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		message, err := t.message(e)
		switch {
		case err != nil, t.stream == nil && len(message) > maxDatagram:
			lost++
			done++
			continue
		case t.stream != nil:
			message = strconv.Itoa(len(message)) + " " + message
		}
		if err := t.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return done, lost, t.failed(err)
		}
		if _, err := t.conn.Write([]byte(message)); err != nil {
			return done, lost, t.failed(err)
		}
		done++
	}
	return done, lost, nil
}

// message is a record in the form of RFC 5424.
func (t *syslog) message(e entry) (string, error) {
	severity := uint8(notice)
	if e.record.Decision == audit.Denied || e.record.Decision == audit.Refused {
		severity = warning
	}
	var m rfc5424.SyslogMessage
	m.SetPriority(facility*8 + severity).SetVersion(1).SetTimestamp(e.record.Time.Format("2006-01-02T15:04:05.000000Z07:00")).
		SetHostname(t.host).SetAppname(t.application).SetProcID(t.process).SetMsgID(cmp.Or(e.record.Chain, "audit")).
		SetMessage(string(bytes.TrimSuffix(e.line, []byte("\n"))))
	return m.String()
}

func (t *syslog) connect(ctx context.Context) error {
	if t.conn != nil {
		if t.stream == nil || !gone(t.conn, t.stream) {
			return nil
		}
		_ = t.conn.Close()
		t.conn = nil
	}
	network, streams := t.address.network, t.address.network == "tcp"
	switch network {
	case "tls":
		network, streams = "tcp", true
	case "unix":
		network = "unixgram"
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, t.address.address)
	if err != nil && network == "unixgram" {
		conn, err = dialer.DialContext(ctx, "unix", t.address.address)
		streams = true
	}
	if err != nil {
		return err
	}
	t.conn, t.stream = conn, nil
	if !streams {
		return nil
	}
	if t.stream, err = newStream(conn); err != nil {
		return t.failed(err)
	}
	t.conn = t.stream
	if t.address.network != "tls" {
		return nil
	}
	host, _, err := net.SplitHostPort(t.address.address)
	if err != nil {
		return t.failed(err)
	}
	encrypted := tls.Client(t.stream, &tls.Config{ServerName: host, RootCAs: t.roots, MinVersion: tls.VersionTLS12})
	t.conn = encrypted
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return t.failed(err)
	}
	return nil
}

// stream is a connection that can be read without waiting.
type stream struct {
	net.Conn
	raw syscall.RawConn
	// now has Read return os.ErrDeadlineExceeded where it would wait.
	now bool
}

func newStream(conn net.Conn) (*stream, error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no descriptor", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{Conn: conn, raw: raw}, nil
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (n int, err error) {
	if !s.now {
		return s.Conn.Read(p)
	}
	failed := s.raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), p)
		return true
	})
	switch {
	case failed != nil:
		return 0, failed
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return 0, os.ErrDeadlineExceeded
	case err != nil:
		return 0, err
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// gone reports whether the other side of a stream has closed it, by what has arrived
// of conn, which reads from it. A server of syslog sends nothing beyond what TLS needs.
// Without this the first records after that would be lost.
func gone(conn net.Conn, from *stream) bool {
	from.now = true
	defer func() { from.now = false }()
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func (t *syslog) failed(err error) error {
	_ = t.conn.Close()
	t.conn = nil
	return err
}

func (t *syslog) close() error {
	if t.conn == nil {
		return nil
	}
	return t.conn.Close()
}
