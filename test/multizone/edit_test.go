//go:build multizone

package multizone

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ctrl-C reaches every program of the terminal. What is typed in an editor is meant
// for the editor: the command waits for it, and applies what it saves.
func TestCtrlCInTheEditor(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	global.mustWith("type: Mesh\nname: default\n---\n"+timeout("t", "backend", "1s"), "apply", "-f", "-")
	dir := t.TempDir()
	editor := filepath.Join(dir, "editor.sh")
	script := "#!/bin/sh\ntrap '' INT\nsed -i 's/1s/2s/' \"$1\"\ntouch \"$1.open\"\nwhile ! [ -e \"$1.saved\" ]; do sleep 0.05; done\n"
	require.NoError(t, os.WriteFile(editor, []byte(script), 0o700)) //nolint:gosec // a program
	cmd := exec.Command(programPath(t, "meridian"), "edit", "timeout", "t")
	cmd.Env = append(os.Environ(), "MERIDIAN_CONFIG="+filepath.Join(global.dir, "admin.yaml"), "VISUAL="+editor, "TMPDIR="+dir)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	var open []string
	global.await("the editor", func() bool {
		open, _ = filepath.Glob(filepath.Join(dir, "*.open"))
		return len(open) == 1
	})
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, os.WriteFile(strings.TrimSuffix(open[0], ".open")+".saved", nil, 0o600))
	require.NoError(t, cmd.Wait(), out.String())
	require.Contains(t, out.String(), "Timeout/t updated")
	require.Contains(t, global.must("get", "timeout", "t", "-o", "yaml"), "connectTimeout: 2s")
}
