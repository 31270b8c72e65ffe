package bench

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/test/processes"
)

// patience bounds every wait. Passing it means that what was waited for does not
// happen.
const patience = 60 * time.Second

// programs are those under test.
var programs processes.Programs

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// rawLine is how much of a logged line is shown after a failure, in bytes.
const rawLine = 1000

// line is an entry of a server's log, and when it was read.
type line struct {
	at      time.Time
	Message string `json:"msg"`
	Mode    string `json:"mode"`
	GRPC    string `json:"grpc"`
	HTTP    string `json:"http"`
	// Revision is of what the server holds.
	Revision uint64 `json:"revision"`
}

// process is a running server. What it logs tells when it does what.
type process struct {
	dir     string
	started time.Time
	cmd     *processes.Process

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
	path, err := programs.Path(program) // before the clock starts
	require.NoError(b, err)
	p := &process{dir: dir, more: make(chan struct{}), started: time.Now()}
	log, output := io.Pipe()
	p.cmd, err = processes.Start(output, path, append([]string{"--data-dir", dir, "--log-format", "json"}, args...)...)
	require.NoError(b, err)
	go p.follow(log)
	go func() {
		<-p.cmd.Done
		_ = output.Close()
	}()
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
	_, _ = io.Copy(io.Discard, log) // after a line that is too long
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
func (p *process) kill() { p.cmd.End(syscall.SIGKILL) }

// stop ends it in an orderly way.
func (p *process) stop() { p.cmd.End(syscall.SIGTERM) }
