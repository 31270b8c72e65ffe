package sink

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"

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
	conn                       net.Conn
	stream                     bool
}

func (t *syslog) write(ctx context.Context, entries []entry) (done, lost int, err error) {
	if err := t.connect(ctx); err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		message, err := t.message(e)
		switch {
		case err != nil, !t.stream && len(message) > maxDatagram:
			lost++
			done++
			continue
		case t.stream:
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
		if !t.stream || !gone(t.conn) {
			return nil
		}
		_ = t.conn.Close()
		t.conn = nil
	}
	var err error
	dialer := &net.Dialer{Timeout: dialTimeout}
	switch t.address.network {
	case "tls":
		t.conn, err = (&tls.Dialer{NetDialer: dialer, Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext(ctx, "tcp", t.address.address)
		t.stream = true
	case "unix":
		if t.conn, err = dialer.DialContext(ctx, "unixgram", t.address.address); err != nil {
			t.conn, err = dialer.DialContext(ctx, "unix", t.address.address)
			t.stream = true
		} else {
			t.stream = false
		}
	default:
		t.conn, err = dialer.DialContext(ctx, t.address.network, t.address.address)
		t.stream = t.address.network == "tcp"
	}
	if err != nil {
		t.conn = nil
	}
	return err
}

// gone reports whether the other side of a stream has closed it. It never sends
// anything, so a read ends with its timeout or the end of the stream. Without this the
// first records after that would be lost.
func gone(conn net.Conn) bool {
	if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return true
	}
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
