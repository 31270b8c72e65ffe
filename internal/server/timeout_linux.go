package server

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout gives up a connection whose peer acknowledges nothing for so long.
func setUserTimeout(conn net.Conn, timeout time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed already
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout.Milliseconds())) // keepalive ends it otherwise
	})
}
