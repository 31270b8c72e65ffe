//go:build !linux

package agent

import "syscall"

// childAttributes keep the signals of a terminal from a child: this process answers them
// by draining.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
