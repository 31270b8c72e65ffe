// Package dialtest has connections that fail in tests as networks do.
//
// It guarantees that a closed connection leaves no goroutine behind. Non-goals:
// delays and reordering, for which there is a simulated network.
package dialtest

import (
	"net"
	"sync"
)

// Hanging returns a connection that swallows what is written and delivers nothing
// while hangs reports true, as a network that has gone away without a word.
func Hanging(conn net.Conn, hangs func() bool) net.Conn {
	return &hangingConn{Conn: conn, hangs: hangs, closed: make(chan struct{})}
}

type hangingConn struct {
	net.Conn
	hangs  func() bool
	once   sync.Once
	closed chan struct{}
}

func (h *hangingConn) Write(b []byte) (int, error) {
	if h.hangs() {
		return len(b), nil
	}
	return h.Conn.Write(b)
}

func (h *hangingConn) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if h.hangs() {
		<-h.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (h *hangingConn) Close() error {
	h.once.Do(func() { close(h.closed) })
	return h.Conn.Close()
}
