//go:build multizone

package multizone

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trouble is what a link does to what one process says to another. The zero
// value passes everything.
type trouble struct {
	// cut breaks connections and refuses new ones.
	cut bool
	// dropRequests drops what the caller sends, dropResponses what it is answered: the
	// connection stays up, as behind a firewall that forgot it.
	dropRequests, dropResponses bool
	// delay is added to everything, in each direction.
	delay time.Duration
}

// link stands before a server's port and knows which process each connection
// comes from, so that the connection of two processes can be disturbed
// without affecting others.
type link struct {
	listener net.Listener
	target   string
	serving  sync.WaitGroup

	mu       sync.Mutex // guards all below
	changed  chan struct{}
	callers  map[string]int // process ids by name
	troubles map[string]trouble
	open     map[*passage]struct{}
}

// passage is one connection through a link.
type passage struct {
	caller   string
	from, to net.Conn
}

// newLink listens on a free port of loopback and leads to target.
func newLink(t testing.TB, target string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", anyPort)
	require.NoError(t, err)
	l := &link{
		listener: listener, target: target, changed: make(chan struct{}),
		callers: map[string]int{}, troubles: map[string]trouble{}, open: map[*passage]struct{}{},
	}
	l.serving.Go(l.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		l.mu.Lock()
		for p := range l.open {
			p.close()
		}
		l.mu.Unlock()
		l.disturb("", trouble{})
		l.serving.Wait()
	})
	return l
}

func (l *link) address() string { return l.listener.Addr().String() }

// caller says which process a name stands for.
func (l *link) caller(name string, pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.callers[name] = pid
}

// disturb sets what happens from now on to the connections of a caller; the
// name "" is every caller that has no setting of its own.
func (l *link) disturb(caller string, how trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if how == (trouble{}) {
		delete(l.troubles, caller)
	} else {
		l.troubles[caller] = how
	}
	for p := range l.open {
		if l.troubleLocked(p.caller).cut {
			p.close()
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// heal ends every trouble.
func (l *link) heal() {
	l.mu.Lock()
	clear(l.troubles)
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
}

func (l *link) trouble(caller string) (trouble, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.troubleLocked(caller), l.changed
}

func (l *link) troubleLocked(caller string) trouble {
	if how, ok := l.troubles[caller]; ok {
		return how
	}
	return l.troubles[""]
}

func (l *link) serve() {
	for {
		from, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.serving.Go(func() { l.connect(from) })
	}
}

func (l *link) connect(from net.Conn) {
	p := &passage{caller: l.identify(from), from: from}
	if how, _ := l.trouble(p.caller); how.cut {
		_ = from.Close()
		return
	}
	to, err := net.Dial("tcp", l.target)
	if err != nil {
		_ = from.Close()
		return
	}
	p.to = to
	l.mu.Lock()
	l.open[p] = struct{}{}
	l.mu.Unlock()
	l.serving.Go(func() { l.pass(p, from, to, func(how trouble) bool { return how.dropRequests }) })
	l.pass(p, to, from, func(how trouble) bool { return how.dropResponses })
	l.mu.Lock()
	delete(l.open, p)
	l.mu.Unlock()
}

func (p *passage) close() { _, _ = p.from.Close(), p.to.Close() }

// pass hands on what comes from one end until either end closes. What is
// swallowed is lost for good, and with it the connection: that is what a
// firewall that drops packets does to a stream once they are let through again.
func (l *link) pass(p *passage, from, to net.Conn, swallows func(trouble) bool) {
	defer p.close()
	buf := make([]byte, 64<<10)
	lost := false
	for {
		n, err := from.Read(buf)
		if n > 0 {
			how, changed := l.trouble(p.caller)
			if how.delay > 0 {
				select {
				case <-time.After(how.delay):
				case <-changed:
				}
			}
			switch {
			case swallows(how):
				lost = true
			case lost:
				return
			default:
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}

// identify says which of the known processes holds the other end of a
// connection, "" if none does.
func (l *link) identify(conn net.Conn) string {
	inode, err := socketInode(conn.RemoteAddr(), conn.LocalAddr())
	if err != nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, pid := range l.callers {
		if holdsSocket(pid, inode) {
			return name
		}
	}
	return ""
}

// socketInode finds the socket of a loopback connection as the kernel lists it.
func socketInode(local, remote net.Addr) (string, error) {
	table, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	defer func() { _ = table.Close() }()
	want := procAddress(local) + " " + procAddress(remote) + " "
	for lines := bufio.NewScanner(table); lines.Scan(); {
		_, entry, found := strings.Cut(lines.Text(), ": ")
		if fields := strings.Fields(entry); found && strings.HasPrefix(entry, want) && len(fields) > 8 {
			return fields[8], nil
		}
	}
	return "", fmt.Errorf("%s to %s: %w", local, remote, io.EOF)
}

// procAddress writes an IPv4 address as /proc/net/tcp does.
func procAddress(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || tcp.IP.To4() == nil {
		return ""
	}
	host := make([]byte, 4)
	binary.LittleEndian.PutUint32(host, binary.BigEndian.Uint32(tcp.IP.To4()))
	return fmt.Sprintf("%s:%04X", strings.ToUpper(hex.EncodeToString(host)), tcp.Port)
}

func holdsSocket(pid int, inode string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

// A link tells callers apart and does to each only what it is told to.
func TestLinkDisturbsOneCaller(t *testing.T) {
	server, err := net.Listen("tcp", anyPort)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() { // ends when the listener does
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	l := newLink(t, server.Addr().String())
	l.caller("self", os.Getpid())
	ask := func() error {
		conn, err := net.Dial("tcp", l.address())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("hello"))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err = io.ReadFull(conn, make([]byte, 5))
		return err
	}
	require.NoError(t, ask())
	l.disturb("another", trouble{cut: true})
	require.NoError(t, ask())
	l.disturb("self", trouble{cut: true})
	require.Error(t, ask())
	l.heal()
	require.NoError(t, ask())
}
