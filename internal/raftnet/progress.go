package raftnet

import (
	"net"
	"sync/atomic"
	"time"
)

// progressConn makes a deadline mean "so long without progress". Raft sets one
// deadline for a whole message, which would have to be long enough for the
// largest on the slowest line; then a peer that fell silent would be noticed as
// late. Here every part sent or received begins the time anew.
type progressConn struct {
	net.Conn
	read, write *atomic.Int64 // the limits in nanoseconds, 0 for none
}

func newProgressConn(c net.Conn) progressConn {
	return progressConn{Conn: c, read: new(atomic.Int64), write: new(atomic.Int64)}
}

// Read implements net.Conn.
func (c progressConn) Read(b []byte) (int, error) {
	if limit := c.read.Load(); limit > 0 {
		_ = c.Conn.SetReadDeadline(time.Now().Add(time.Duration(limit)))
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c progressConn) Write(b []byte) (int, error) {
	if limit := c.write.Load(); limit > 0 {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(time.Duration(limit)))
	}
	return c.Conn.Write(b)
}

// SetDeadline implements net.Conn.
func (c progressConn) SetDeadline(t time.Time) error {
	c.read.Store(limitUntil(t))
	c.write.Store(limitUntil(t))
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c progressConn) SetReadDeadline(t time.Time) error {
	c.read.Store(limitUntil(t))
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c progressConn) SetWriteDeadline(t time.Time) error {
	c.write.Store(limitUntil(t))
	return c.Conn.SetWriteDeadline(t)
}

// limitUntil is the time left, 0 when there is no deadline or it has passed: a
// deadline in the past ends the connection and must stay.
func limitUntil(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(0, int64(time.Until(t)))
}
