package bench

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxy stands between a zone and its global. It counts what passes and can cut
// the connection.
type proxy struct {
	listener net.Listener
	target   string
	bytes    atomic.Int64   // of the connection that is open, both directions
	accepted chan time.Time // when the last connection was made, if it was not received
	serving  sync.WaitGroup

	mu   sync.Mutex
	open []net.Conn // guarded by mu
}

func newProxy(b *testing.B, target string) *proxy {
	b.Helper()
	listener, err := net.Listen("tcp", anyPort)
	require.NoError(b, err)
	p := &proxy{listener: listener, target: target, accepted: make(chan time.Time, 1)}
	p.serving.Go(p.serve)
	b.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		p.serving.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		at := time.Now()
		to, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = from.Close()
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, from, to)
		p.mu.Unlock()
		p.bytes.Store(0)
		select {
		case p.accepted <- at:
		default: // not awaited
		}
		p.serving.Go(func() { p.pass(from, to) })
		p.serving.Go(func() { p.pass(to, from) })
	}
}

// pass hands on what comes from one end until either end closes.
func (p *proxy) pass(from, to net.Conn) {
	_, _ = io.Copy(counter{to, &p.bytes}, from)
	_, _ = from.Close(), to.Close()
}

// cut ends the open connection. What accepted delivers after that is when the
// next one was made.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.accepted:
	default:
	}
	for _, c := range p.open {
		_ = c.Close()
	}
	p.open = nil
}

// counter counts what is written to a connection. It hides everything else
// about it, so that nothing passes uncounted.
type counter struct {
	to    io.Writer
	bytes *atomic.Int64
}

func (c counter) Write(data []byte) (int, error) {
	n, err := c.to.Write(data)
	c.bytes.Add(int64(n))
	return n, err
}
