package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
)

// editor makes EDITOR a script that is run on the file, $1.
func (h *harness) editor(script string) {
	h.t.Helper()
	path := h.write("editor.sh", "#!/bin/sh\nset -e\n"+script)
	require.NoError(h.t, os.Chmod(path, 0o700)) //nolint:gosec // a program
	h.env = append(h.env, "EDITOR="+path, "PATH="+os.Getenv("PATH"))
}

// kept returns the file of which edit says that it is kept.
func kept(t *testing.T, stderr string) string {
	t.Helper()
	_, rest, ok := strings.Cut(stderr, "What was edited is kept in ")
	require.True(t, ok, stderr)
	path, _, _ := strings.Cut(rest, ".\n")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

func TestEdit(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		code         int
		stdout       string
		stderr, file []string // what they contain; a file that is kept
	}{
		{name: "a change", script: `sed -i 's/service: web/service: api/' "$1"`, stdout: "TrafficPermission/web-to-backend updated\nrevision 1842\n"},
		{name: "nothing changed", script: "true", stderr: []string{"Nothing was changed."}},
		{
			name:   "invalid, then corrected",
			script: `if grep -q '^# meridian: ' "$1"; then sed -i 's/sourcez/sources/; s/service: web/service: api/' "$1"; else sed -i 's/sources/sourcez/' "$1"; fi`,
			stdout: "TrafficPermission/web-to-backend updated\nrevision 1842\n",
		},
		{
			name: "invalid twice", script: `sed -i 's/sources/sourcez/' "$1"`, code: exit.Usage,
			stderr: []string{"unknown field `sourcez`"}, file: []string{"sourcez", "# meridian: save without a change to leave"},
		},
		{
			name: "renamed", script: `sed -i 's/name: web-to-backend/name: other/' "$1"`, code: exit.Usage,
			stderr: []string{"edit cannot rename TrafficPermission/default/web-to-backend: use apply, then delete"}, file: []string{"name: other"},
		},
		{name: "the editor fails", script: "exit 3", code: exit.No, stderr: []string{"exit status 3; $VISUAL and $EDITOR choose another one"}},
		{
			name: "the editor fails after a change", script: `sed -i 's/service: web/service: api/' "$1"; exit 3`, code: exit.No,
			stderr: []string{"exit status 3"}, file: []string{"service: api"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			h := newHarness(t)
			h.ok("apply", "-f", h.write("p.yaml", webToBackend))
			h.editor(tc.script)
			out := h.run("edit", "tp/web-to-backend")
			require.Equal(t, tc.code, out.code, out.stderr)
			require.Equal(t, tc.stdout, out.stdout)
			for _, part := range tc.stderr {
				require.Contains(t, out.stderr, part)
			}
			if tc.file == nil {
				left, err := filepath.Glob(filepath.Join(os.TempDir(), "meridian-edit-*"))
				require.NoError(t, err)
				require.Empty(t, left)
				return
			}
			content := kept(t, out.stderr)
			for _, part := range tc.file {
				require.Contains(t, content, part)
			}
		})
	}
}

// What was written while the editor was open is not overwritten, although it was
// deleted and created anew, and has the version that was read.
func TestEditOfWhatChangedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*meridianv1.Resource){
		"updated":                   func(m *meridianv1.Resource) { m.Version++ },
		"deleted and created again": func(m *meridianv1.Resource) { m.Revision += 2 },
	} {
		t.Run(name, func(t *testing.T) { testEditOfWhatChanged(t, change) })
	}
}

func testEditOfWhatChanged(t *testing.T, change func(*meridianv1.Resource)) {
	t.Setenv("TMPDIR", t.TempDir())
	h := newHarness(t)
	h.ok("apply", "-f", h.write("p.yaml", webToBackend))
	h.editor(`sed -i 's/service: web/service: api/' "$1"; touch "$1.open"; while ! [ -e "$1.go" ]; do sleep 0.01; done`)
	done := make(chan outcome, 1)
	go func() { done <- h.runWith(context.Background(), "", "edit", "tp", "web-to-backend") }()
	var open []string
	require.Eventually(t, func() bool {
		open, _ = filepath.Glob(filepath.Join(os.TempDir(), "meridian-edit-*.open"))
		return len(open) == 1
	}, time.Minute, 10*time.Millisecond)
	h.server.Mu.Lock()
	for key, m := range h.server.Stored {
		m = proto.CloneOf(m) // the answer to an earlier request may still be on its way
		change(m)
		h.server.Stored[key] = m
	}
	h.server.Mu.Unlock()
	require.NoError(t, os.WriteFile(strings.TrimSuffix(open[0], ".open")+".go", nil, 0o600))
	out := <-done
	require.Equal(t, exit.Conflict, out.code, out.stderr)
	require.Contains(t, kept(t, out.stderr), "service: api")
}

// TestEditShowsLoss: what an edit takes away is asked about, and kept where the answer is
// not yes.
func TestEditShowsLoss(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	h := newHarness(t)
	h.ok("apply", "-f", h.write("p.yaml", webToBackend))
	h.editor(`sed -i 's/service: web/service: api/' "$1"`)
	h.server.Plan = []byte(`{"connections":[{"mesh":"default","from":["a"],"to":["b"],"before":true,"after":false,"by":["deny"],"zone":"east","count":2}]}`)
	const loss = "Takes away: a → b: allowed → denied by deny, 2 connections in zone east\n"
	answers := h.terminalOf()
	answers("no")
	out := h.run("edit", "tp", "web-to-backend")
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Contains(t, out.stderr, loss+"Type yes to continue: ")
	require.Contains(t, kept(t, out.stderr), "service: api")
	for _, m := range h.server.Stored {
		require.EqualValues(t, 1, m.GetVersion(), "nothing was written")
	}
	out = h.run("edit", "tp", "web-to-backend", "--yes")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, loss)
	require.NotContains(t, out.stderr, "Type yes")
}
