package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds every wait. Passing it means that what was waited for does not
// happen.
const patience = 60 * time.Second

// programs are the servers under test: those in MERIDIAN_BIN, or ones built when
// the first is asked for.
type programs struct {
	once sync.Once
	dir  string
	err  error
}

// built is what TestMain removes.
var built programs

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// path is where a program is.
func (p *programs) path(b *testing.B, name string) string {
	b.Helper()
	if dir := os.Getenv("MERIDIAN_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	p.once.Do(func() { p.err = p.build() })
	require.NoError(b, p.err)
	return filepath.Join(p.dir, name)
}

func (p *programs) build() (err error) {
	if p.dir, err = os.MkdirTemp("", "meridian-bench-*"); err != nil {
		return err
	}
	for name, pkg := range map[string]string{"meridian-global": "global", "meridian-zone": "zone"} {
		build := exec.Command("go", "build", "-tags", "hashicorpmetrics", "-o", filepath.Join(p.dir, name), "meridian/cmd/"+pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// rawLine is how much of a logged line is shown after a failure, in bytes.
const rawLine = 1000

// line is an entry of a server's log, and when it was read.
type line struct {
	at      time.Time
	Message string `json:"msg"`
	Mode    string `json:"mode"`
	GRPC    string `json:"grpc"`
	// Revision is of what the server holds.
	Revision uint64 `json:"revision"`
}

// process is a running server. What it logs tells when it does what.
type process struct {
	dir     string
	started time.Time
	cmd     *exec.Cmd
	reading sync.WaitGroup

	mu    sync.Mutex
	lines []line
	raw   []string
	ended bool          // nothing more is logged
	more  chan struct{} // closed and replaced when the above change
}

// start starts a server with its data in dir. It is killed when the benchmark
// ends, if it still runs then.
func start(b *testing.B, program, dir string, args ...string) *process {
	b.Helper()
	path := built.path(b, program) // before the clock starts
	p := &process{dir: dir, more: make(chan struct{})}
	p.cmd = exec.Command(path, append([]string{"--data-dir", dir, "--log-format", "json"}, args...)...)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(b, err)
	p.started = time.Now()
	require.NoError(b, p.cmd.Start())
	p.reading.Go(func() { p.follow(stderr) })
	b.Cleanup(func() {
		p.kill()
		if b.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			b.Logf("the log of %s ends with\n%s", program, strings.Join(p.raw[max(0, len(p.raw)-20):], "\n"))
		}
	})
	return p
}

func (p *process) follow(log io.Reader) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		l := line{at: time.Now()}
		// What is no JSON is of interest to a reader of the output only.
		_ = json.Unmarshal(scanner.Bytes(), &l)
		p.tell(func() {
			p.lines = append(p.lines, l)
			p.raw = append(p.raw, string(scanner.Bytes()[:min(len(scanner.Bytes()), rawLine)]))
		})
	}
	p.tell(func() { p.ended = true })
}

func (p *process) tell(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.more)
	p.more = make(chan struct{})
}

// seen is how many lines have been logged so far.
func (p *process) seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// await returns the first line with a message after the given number of lines.
func (p *process) await(b *testing.B, message string, after int) line {
	b.Helper()
	timeout := time.After(patience)
	for {
		p.mu.Lock()
		for ; after < len(p.lines); after++ {
			if l := p.lines[after]; l.Message == message {
				p.mu.Unlock()
				return l
			}
		}
		more, ended := p.more, p.ended
		p.mu.Unlock()
		require.False(b, ended, "the process ended before it logged %q", message)
		select {
		case <-more:
		case <-timeout:
			require.Fail(b, "timeout", "%q is not logged", message)
		}
	}
}

// ready waits until the server calls itself ready.
func (p *process) ready(b *testing.B) line {
	b.Helper()
	return p.await(b, "ready", 0)
}

// kill ends the process without warning, as a power cut would.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// stop ends it in an orderly way.
func (p *process) stop() { p.end(syscall.SIGTERM) }

func (p *process) end(with os.Signal) {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Signal(with) // it may have ended by itself
	p.reading.Wait()
	_ = p.cmd.Wait() // the exit code of a killed process says nothing
}
