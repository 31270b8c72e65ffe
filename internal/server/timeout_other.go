//go:build !linux

package server

import (
	"net"
	"time"
)

// setUserTimeout is for Linux; elsewhere keepalive alone ends such a connection.
func setUserTimeout(net.Conn, time.Duration) {}
