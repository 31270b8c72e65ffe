//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limit bounds one run: a test that hangs because of a bug has detected it.
const limit = 4 * time.Minute

// builds holds the programs and the overlays.

var builds string

func TestMain(m *testing.M) {
	os.Exit(inDirectory(m))
}

func inDirectory(m *testing.M) int {
	dir, err := os.MkdirTemp("", "meridian-mutants-*")
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	builds = dir
	return m.Run()
}

// Every mutant is detected.
func TestEveryMutantIsDetected(t *testing.T) {
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			overlay, err := m.overlay(root, builds)
			require.NoError(t, err)
			out, failed := run(t, program(t, m.pkg, m.name, overlay), m)
			require.True(t, failed, "these tests pass although %q does not hold: go test -overlay … -run %q %s\n%s", m.breaks, m.run, m.pkg, out)
			t.Logf("detected by\n%s", firstFailures(out))
		})
	}
}

// The same tests pass on the product as it is, or failing on a mutant would mean
// nothing.
func TestNothingIsDetectedInTheProduct(t *testing.T) {
	programs := map[string]string{} // the packages' tests, built once
	for _, m := range all {
		t.Run(m.pkg+" "+m.run, func(t *testing.T) {
			if programs[m.pkg] == "" {
				programs[m.pkg] = program(t, m.pkg, "product", "")
			}
			out, failed := run(t, programs[m.pkg], m)
			require.False(t, failed, "%s", out)
		})
	}
}

// program builds the tests of a package, with an overlay if there is one.
func program(t *testing.T, pkg, name, overlay string) string {
	t.Helper()
	path := filepath.Join(builds, name+"-"+filepath.Base(pkg)+".test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-tags", "hashicorpmetrics", "-overlay", overlay, "-o", path, pkg)
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

func run(t *testing.T, program string, m mutant) (out []byte, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.v", "-test.failfast", "-test.timeout", "3m", "-test.run", m.run)
	cmd.Dir = filepath.Join(root, m.pkg)
	out, err := cmd.CombinedOutput()
	require.Contains(t, string(out), "=== RUN", "no test has this name")
	return out, err != nil
}

// firstFailures are the lines that say which tests failed.
func firstFailures(out []byte) []byte {
	var lines [][]byte
	for line := range bytes.Lines(out) {
		trimmed := bytes.TrimSpace(line)
		if bytes.HasPrefix(trimmed, []byte("--- FAIL")) || bytes.HasPrefix(trimmed, []byte("panic:")) || bytes.Contains(trimmed, []byte(" broken at ")) {
			lines = append(lines, line)
		}
		if len(lines) == 6 {
			break
		}
	}
	return bytes.Join(lines, nil)
}
