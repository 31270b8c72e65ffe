package main

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asCommand makes the test binary behave as the command.
const asCommand = "MERIDIAN_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func TestExitCodeAndStreams(t *testing.T) {
	out, err := command(t, "version").Output()
	require.NoError(t, err)
	require.Regexp(t, "^meridian ", string(out))

	out, err = command(t, "gte").Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.ExitCode())
	require.Empty(t, out)
	require.Contains(t, string(exit.Stderr), `Error: unknown command "gte"`)
}

// A signal ends a command that waits for input that never comes.
func TestSignalEndsAReader(t *testing.T) {
	cmd := command(t, "validate", "-f", "-")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	// A pipe takes what does not fit into its buffer only once it is read:
	// after this write the command is waiting for more.
	_, err = stdin.Write(append(make([]byte, 1<<20), '\n'))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 130, exit.ExitCode())
}

// orderly is a command that may have something to put in order.
type orderly struct {
	grace   time.Duration
	aborted func()
}

func (o orderly) Grace() time.Duration { return o.grace }
func (o orderly) Abort()               { o.aborted() }

// A second signal has a command that has something to put in order do so at once, a third
// one ends the process; other commands end with the second.
func TestASecondSignal(t *testing.T) {
	for name, c := range map[string]struct {
		grace   time.Duration
		signals int
		ends    bool // when it is to abort
		code    int
		aborts  int
	}{
		"nothing to put in order":  {signals: 1, code: interrupted},
		"ended in time":            {grace: time.Hour, ends: true, code: 0},
		"put in order":             {grace: time.Hour, signals: 1, ends: true, code: interrupted, aborts: 1},
		"no patience with what is": {grace: time.Hour, signals: 2, code: interrupted, aborts: 1},
	} {
		done, signals, aborts := make(chan int, 1), make(chan os.Signal, 2), 0
		for range c.signals {
			signals <- os.Interrupt
		}
		if c.ends && c.signals == 0 {
			done <- 0
		}
		got := finish(done, signals, orderly{c.grace, func() {
			if aborts++; c.ends {
				done <- 0
			}
		}})
		require.Equal(t, c.code, got, name)
		require.Equal(t, c.aborts, aborts, name)
	}
}
