//go:build multizone

package pages

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/test/processes"
)

// patience bounds what a page may take. It is generous: passing it means that
// something does not happen, not that the machine is slow.
const patience = 3 * time.Minute

const root = "../.."

var programs processes.Programs

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// fence is a block of a page.
type fence struct {
	line  int
	info  []string // the words of its info string
	lines []string
}

func (f *fence) is(word string) bool { return slices.Contains(f.info, word) }

// attribute returns the value of NAME=VALUE in the info string.
func (f *fence) attribute(name string) string {
	for _, word := range f.info {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	return ""
}

var opening = regexp.MustCompile("^( *(?:(?:[-*]|[0-9]+\\.) +)?)```([^`]*)$")

// fences reads the blocks of a page.
func fences(text string) (all []fence) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		m := opening.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		f := fence{line: i + 1, info: strings.Fields(m[2])}
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
			inner := lines[i]
			for range len(m[1]) {
				inner = strings.TrimPrefix(inner, " ")
			}
			f.lines = append(f.lines, inner)
		}
		all = append(all, f)
	}
	return all
}

// step is a command and what a page shows that it prints.
type step struct {
	line    int
	command string
	shown   []string
}

// steps reads the commands of a fence. A command continues until bash has all of it.
func (f *fence) steps(t *testing.T) (all []step) {
	for i := 0; i < len(f.lines); i++ {
		command, ok := strings.CutPrefix(f.lines[i], "$ ")
		if !ok {
			require.NotEmpty(t, all, "line %d: a command begins with $", f.line)
			last := &all[len(all)-1]
			last.shown = append(last.shown, f.lines[i])
			continue
		}
		s := step{line: f.line + 1 + i, command: command}
		for exec.Command("bash", "-n", "-c", s.command).Run() != nil && i+1 < len(f.lines) {
			i++
			s.command += "\n" + f.lines[i]
		}
		all = append(all, s)
	}
	for i := range all {
		for n := len(all[i].shown); n > 0 && strings.TrimSpace(all[i].shown[n-1]) == ""; n-- {
			all[i].shown = all[i].shown[:n-1]
		}
	}
	return all
}

// session is a shell in which the commands of a page run.
type session struct {
	t       *testing.T
	dir     string
	in      io.Writer
	out     *bufio.Reader
	servers int
}

const marker = "=== done with"

func newSession(t *testing.T, dir, cwd string, environment ...string) *session {
	t.Helper()
	bin, err := programs.Path("meridian")
	require.NoError(t, err)
	repository, err := filepath.Abs(root)
	require.NoError(t, err)
	// Not the context of the test: that ends before the servers of the page are ended.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	shell := exec.CommandContext(ctx, "bash", "--norc", "--noprofile")
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it starts is ended with it
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	shell.Dir = cwd
	shell.Env = append([]string{
		"PATH=" + filepath.Dir(bin) + ":" + os.Getenv("PATH"), "HOME=" + dir, "PAGE=" + dir, "REPOSITORY=" + repository, "NO_COLOR=1", "COLUMNS=400",
	}, environment...)
	for _, server := range []string{"GLOBAL", "ZONE"} {
		for _, listener := range []string{"GRPC", "HTTP"} {
			shell.Env = append(shell.Env, "MERIDIAN_"+server+"_"+listener+"_ADDR=127.0.0.1:0")
		}
	}
	shell.Env = append(shell.Env, "MERIDIAN_GLOBAL_RAFT_ADDR=127.0.0.1:0", "MERIDIAN_GLOBAL_GOSSIP_ADDR=127.0.0.1:0")
	in, err := shell.StdinPipe()
	require.NoError(t, err)
	out, err := shell.StdoutPipe()
	require.NoError(t, err)
	shell.Stderr = shell.Stdout
	require.NoError(t, shell.Start())
	s := &session{t: t, dir: dir, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "server-*.log"))
			for _, log := range logs {
				text, _ := os.ReadFile(log)
				t.Logf("%s:\n%s", filepath.Base(log), text[max(0, len(text)-2000):])
			}
		}
		fmt.Fprint(in, "kill $(jobs -p) 2>/dev/null; wait; exit\n")
		_ = in.Close()
		_ = shell.Wait()   // the page has ended
		_ = shell.Cancel() // and nothing that it started is left
		cancel()
	})
	return s
}

// What a page has started ends with it, also what was
// started by something that has ended.
func TestASessionLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	t.Run("session", func(t *testing.T) {
		s := newSession(t, dir, dir)
		s.must("sleep 600 & echo $! >$PAGE/job; (sleep 600 & echo $! >$PAGE/orphan)")
	})
	for _, name := range []string{"job", "orphan"} {
		pid, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !runs(strings.TrimSpace(string(pid))) }, patience, 5*time.Millisecond, "%s is left behind", name)
	}
}

// runs reports whether a process has not ended.
func runs(pid string) bool {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	return err == nil && !bytes.Contains(status, []byte("State:\tZ"))
}

// run runs a command and returns what it printed. A server in the background is ready
// when run returns.
func (s *session) run(command string) (printed string, code int) {
	s.t.Helper()
	background, server := strings.CutSuffix(strings.TrimSpace(command), "&")
	if server {
		s.servers++
		command = fmt.Sprintf("%s >$PAGE/server-%d.log 2>&1 &", background, s.servers)
	}
	fmt.Fprintf(s.in, "{ %s\n} 2>&1 </dev/null\ncode=$?; echo; echo '%s' $code\n", command, marker)
	var text strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		require.NoError(s.t, err, "%s: the shell ended, or the page took more than %s; so far: %s", command, patience, text.String())
		if rest, done := strings.CutPrefix(line, marker+" "); done {
			code, err = strconv.Atoi(strings.TrimSpace(rest))
			require.NoError(s.t, err)
			break
		}
		text.WriteString(line)
	}
	if server {
		s.ready(fmt.Sprintf("%s/server-%d.log", s.dir, s.servers))
	}
	return strings.TrimRight(text.String(), "\n"), code
}

// ready waits until a server says in its log that it is.
func (s *session) ready(log string) {
	s.t.Helper()
	var text []byte
	require.Eventually(s.t, func() bool {
		text, _ = os.ReadFile(log)
		return bytes.Contains(text, []byte("msg=ready")) || bytes.Contains(append([]byte("\n"), text...), []byte("\nError:"))
	}, patience, 20*time.Millisecond, "no server is ready: see %s", log)
	require.Contains(s.t, string(text), "msg=ready", "no server is ready")
}

// must runs what is no part of the page.
func (s *session) must(commands string) {
	s.t.Helper()
	if strings.TrimSpace(commands) == "" {
		return
	}
	printed, code := s.run("set -e; " + commands + "\nset +e")
	require.Zero(s.t, code, "%s:\n%s", commands, printed)
}

// settles are commands that show what becomes true by itself.
var settles = regexp.MustCompile(`meridian (zones|dataplanes|cluster (members|leader))\b`)

// check runs a command of a page and compares.
func (s *session) check(p *page, at step, command string) {
	s.t.Helper()
	printed, code := s.run(command)
	for until := time.Now().Add(patience); len(at.shown) > 0 && settles.MatchString(command) && !p.shows(at.shown, printed) && time.Now().Before(until); {
		<-time.After(100 * time.Millisecond)
		printed, code = s.run(command)
	}
	failing := len(at.shown) > 0 && (strings.HasPrefix(at.shown[0], "Error:") || strings.HasPrefix(at.shown[0], "FAIL  ") || at.shown[0] == "no")
	// A plan that changes something ends with 1, as diff does.
	failing = failing || strings.HasPrefix(command, "meridian plan ") && len(at.shown) > 0
	question := strings.Contains(command, " can-i ") && len(at.shown) == 0
	if !question {
		require.Equal(s.t, failing, code != 0, "%s:%d: %s\nexit code %d:\n%s", p.path, at.line, at.command, code, printed)
	}
	if len(at.shown) > 0 && !p.shows(at.shown, printed) {
		require.Equal(s.t, strings.Join(at.shown, "\n"), printed, "%s:%d: %s", p.path, at.line, at.command)
	}
}

// moment are values that differ from run to run, and what stands for them when a page
// about running servers is compared.
var moment = []struct {
	pattern *regexp.Regexp
	form    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "ID"},
	{regexp.MustCompile(`\b[a-z2-7]{26}\b`), "ID"},
	{regexp.MustCompile(`\b\d+(\.\d+)? (B|KiB|MiB)\b`), "SIZE"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+:\d+\b`), "ADDRESS"},
	{regexp.MustCompile(`\brelease [\w.+-]+`), "release RELEASE"},
	{regexp.MustCompile(`\b([0-9a-f]{64}\b|[0-9a-f]{8}…)`), "HASH"},
	{regexp.MustCompile(`(?i)\b(revision:?|incarnation|entry|term) +\d+`), "$1 N"},
	{regexp.MustCompile(`\b\d+ resources`), "N resources"},
	{regexp.MustCompile(`(^|  )\d+(  |$)`), "${1}N$2"},
	{regexp.MustCompile(`(^|  )\d+(  |$)`), "${1}N$2"}, // cells side by side
}

var blanks = regexp.MustCompile(`   +`)

// form is a line as it is compared.
func (p *page) form(line string) string {
	line = strings.TrimRight(line, " ")
	if !p.live {
		return line
	}
	line = blanks.ReplaceAllString(line, "  ")
	for _, m := range moment {
		line = m.pattern.ReplaceAllString(line, m.form)
	}
	return line
}

// shows reports whether what was printed is what the page shows; … stands for the
// rest of a line or word.
func (p *page) shows(shown []string, printed string) bool {
	lines := strings.Split(printed, "\n")
	if len(lines) != len(shown) {
		return false
	}
	for i := range lines {
		parts := strings.Split(p.form(shown[i]), "…")
		for j := range parts {
			parts[j] = regexp.QuoteMeta(parts[j])
		}
		if !regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(p.form(lines[i])) {
			return false
		}
	}
	return true
}

// host are paths of a host that are in the directory of the page instead.
var host = []string{"/tmp/", "/var/lib/meridian", "/etc/meridian", "/run/meridian"}

// runPage runs the commands of a page.
func runPage(t *testing.T, p *page, environment ...string) {
	text, err := os.ReadFile(filepath.Join(root, p.path))
	require.NoError(t, err)
	dir := t.TempDir()
	cwd := dir
	if p.inRepository {
		cwd = root
	}
	s := newSession(t, dir, cwd, environment...)
	s.must("make() { :; }; mkdir -p $PAGE/tmp $PAGE/etc/meridian $PAGE/run/meridian")
	for _, server := range p.servers {
		s.run(server + " &")
	}
	s.must(p.before)
	for _, f := range fences(string(text)) {
		content := strings.Join(f.lines, "\n") + "\n"
		if name := f.attribute("file"); name != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
		if name := f.attribute("append"); name != "" {
			have, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), append(have, "---\n"+content...), 0o600))
		}
		if !f.is("console") || f.is("norun") {
			continue
		}
		for _, at := range f.steps(t) {
			s.must(p.first[at.command])
			command := at.command
			for _, path := range host {
				command = strings.ReplaceAll(command, path, dir+path)
			}
			for _, word := range slices.Sorted(maps.Keys(p.words)) {
				command = strings.ReplaceAll(command, word, p.words[word])
			}
			s.check(p, at, command)
		}
	}
}

// Every command of the documentation is run as it is written, or there is a reason.
func TestPages(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		paths = append(paths, found...)
	}
	covered := map[string]bool{}
	for _, file := range paths {
		path, err := filepath.Rel(root, file)
		require.NoError(t, err)
		if strings.HasPrefix(path, "docs/adr/") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		runs := false
		for _, f := range fences(string(text)) {
			at := fmt.Sprintf("%s:%d", path, f.line)
			if f.is("norun") {
				first, _, _ := strings.Cut(strings.TrimPrefix(f.lines[0], "$ "), "  ") // without a comment
				require.NotEmpty(t, unrun[path][first], "%s: say in unrun why %q is not run", at, first)
				covered[path+first] = true
				continue
			}
			runs = runs || f.is("console")
			for _, line := range f.lines {
				command := strings.HasPrefix(line, "$ ") || regexp.MustCompile(`^(meridian|meridian-global|meridian-zone|make|curl|kubectl) `).MatchString(line)
				require.False(t, command && !f.is("console"), "%s: a fence with commands has the info string console", at)
			}
		}
		i := slices.IndexFunc(pages, func(p *page) bool { return p.path == path })
		require.Equal(t, runs, i >= 0, "%s: a page with commands, and no other, is in the list of pages", path)
	}
	for path, commands := range unrun {
		for first := range commands {
			require.True(t, covered[path+first], "%s: no fence with norun begins with %q", path, first)
		}
	}
	tour := startTour(t)
	for _, p := range pages {
		t.Run(p.path, func(t *testing.T) { runPage(t, p, tour...) })
	}
}
