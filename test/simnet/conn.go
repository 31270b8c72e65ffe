package simnet

import (
	"bytes"
	"net"
	"time"
)

const (
	// chunkBytes is how many bytes of a connection travel together, chunksOnWay
	// how many chunks are on their way at once.
	chunkBytes  = 32 << 10
	chunksOnWay = 64
)

// connection is a pair of pipes between which bytes travel as the links of the
// moment allow.
type connection struct {
	a, b *endpoint
	// lineA and lineB are the inner ends of the two pipes.
	lineA, lineB net.Conn
	// done is closed when both directions have ended.
	done chan struct{}
}

// connect returns the two ends of a connection from a to b. It breaks when
// either server is gone.
func connect(a, b *endpoint) (atA, atB net.Conn, err error) {
	atA, lineA := net.Pipe()
	atB, lineB := net.Pipe()
	c := &connection{a: a, b: b, lineA: lineA, lineB: lineB, done: make(chan struct{})}
	if err := a.use(c.run); err != nil {
		return nil, nil, err
	}
	return named{atA, a.calls.addr, b.calls.addr}, named{atB, b.calls.addr, a.calls.addr}, nil
}

func (c *connection) run() {
	c.a.users.Go(func() { // ends with the connection
		select {
		case <-c.a.detached:
		case <-c.b.detached:
		case <-c.done:
		}
		_, _ = c.lineA.Close(), c.lineB.Close()
	})
	back := make(chan struct{})
	c.a.users.Go(func() {
		defer close(back)
		c.carry(c.b, c.a, c.lineB, c.lineA)
	})
	c.carry(c.a, c.b, c.lineA, c.lineB)
	<-back
	close(c.done)
}

// chunk is a part of what was said, and when.
type chunk struct {
	data []byte
	sent time.Time
}

// carry moves what one server says to the other until either has enough.
func (c *connection) carry(from, to *endpoint, source, sink net.Conn) {
	defer func() { _, _ = source.Close(), sink.Close() }()
	said := make(chan chunk, chunksOnWay)
	end := make(chan struct{})
	defer close(end)
	c.a.users.Go(func() {
		defer close(said)
		buf := make([]byte, chunkBytes)
		for {
			n, err := source.Read(buf)
			if n > 0 {
				select {
				case said <- chunk{bytes.Clone(buf[:n]), time.Now()}:
				case <-end:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for part := range said {
		if c.a.network.travel(from, to, part.sent, end) != nil {
			return
		}
		if _, err := sink.Write(part.data); err != nil {
			return
		}
	}
	_ = c.a.network.travel(from, to, time.Now(), end) // the farewell travels too
}

// named is a connection that knows who is at its ends.
type named struct {
	net.Conn
	local, remote net.Addr
}

// LocalAddr implements net.Conn.
func (c named) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c named) RemoteAddr() net.Addr { return c.remote }
