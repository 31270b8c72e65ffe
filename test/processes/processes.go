// Package processes runs the programs of this module as processes, for tests and
// benchmarks of the whole system.
//
// Non-goals: knowing what the programs do, or when they are ready.
package processes

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Programs are meridian, meridian-global and meridian-zone: those in the
// directory MERIDIAN_BIN, or ones built when the first is asked for.
type Programs struct {
	// Tag, unless empty, is a build tag: the programs are always built then.
	Tag string

	once sync.Once
	dir  string
	err  error
}

// Path returns the path of a program.
func (p *Programs) Path(name string) (string, error) {
	if dir := os.Getenv("MERIDIAN_BIN"); dir != "" && p.Tag == "" {
		return filepath.Join(dir, name), nil
	}
	p.once.Do(func() { p.err = p.build() })
	return filepath.Join(p.dir, name), p.err
}

func (p *Programs) build() (err error) {
	if p.dir, err = os.MkdirTemp("", "meridian-programs-*"); err != nil {
		return err
	}
	for name, pkg := range map[string]string{"meridian": "meridian", "meridian-global": "global", "meridian-zone": "zone"} {
		build := exec.Command("go", "build", "-tags", strings.TrimSuffix("hashicorpmetrics,"+p.Tag, ","), "-o", filepath.Join(p.dir, name), "meridian/cmd/"+pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// Remove removes what was built.
func (p *Programs) Remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// Process is a process that was started.
type Process struct {
	*exec.Cmd
	// Done is closed when the process has ended and its output is complete.
	Done chan struct{}
}

// Start starts a program that writes both of its streams to output.
func Start(output io.Writer, program string, args ...string) (*Process, error) {
	p := &Process{Cmd: exec.Command(program, args...), Done: make(chan struct{})}
	p.Stdout, p.Stderr = output, output
	if err := p.Cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.Done)
		_ = p.Cmd.Wait() // ProcessState says how it ended
	}()
	return p, nil
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.Done:
		return false
	default:
		return true
	}
}

// End sends a signal to a process, unless it has ended, and waits for its end.
func (p *Process) End(with os.Signal) {
	_ = p.Process.Signal(with) // it may have ended by itself
	<-p.Done
}
