package agent

import "syscall"

// childAttributes have a child end with this process, however that ends, and keep the
// signals of a terminal from it, which this process answers by draining.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
