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
