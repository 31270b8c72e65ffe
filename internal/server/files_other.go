//go:build !unix

package server

import "net"

// openFiles returns how many files this process may have open: that is not known.
func openFiles() (limit uint64, ok bool) { return 0, false }

// descriptor returns the number of a connection's file: it has none.
func descriptor(net.Conn) (number uint64, ok bool) { return 0, false }
