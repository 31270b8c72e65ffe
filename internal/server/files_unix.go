//go:build unix

package server

import (
	"net"
	"syscall"
)

// openFiles returns how many files this process may have open; false where that
// is not known.
func openFiles() (limit uint64, ok bool) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	return uint64(l.Cur), true //nolint:unconvert // of another type on some systems
}

// descriptor returns the number of a connection's file; false where it has none.
func descriptor(conn net.Conn) (number uint64, ok bool) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) { number = uint64(fd) })
	return number, err == nil
}
