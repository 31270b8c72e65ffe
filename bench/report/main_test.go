package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// output is what `go test -bench` prints for several runs of a benchmark.
func output(ms ...string) string {
	var b strings.Builder
	b.WriteString("goos: linux\ngoarch: amd64\npkg: meridian/bench\ncpu: Some CPU\n")
	for _, v := range ms {
		b.WriteString("BenchmarkApply/many-2 \t 1\t " + v + " apply-p50-ms\t 3.0 total-p50/fsync\n")
	}
	b.WriteString("--- BENCH: BenchmarkApply\n    apply_test.go:1: MISSED: a target\nPASS\nok  \tmeridian/bench\t1.0s\n")
	return b.String()
}

func reported(t *testing.T, in string, args ...string) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, run(args, strings.NewReader(in), &out))
	return out.String()
}

func TestReport(t *testing.T) {
	baseline := filepath.Join(t.TempDir(), "baseline.json")
	first := reported(t, output("1.2", "1.0", "1.1", "1.3", "9.0"), "--json", baseline)
	require.Contains(t, first, "cpu: Some CPU  \ngoarch: amd64  \ngoos: linux  \nprocessors: 2  \n")
	require.Contains(t, first, "\n| Apply/many | apply-p50-ms | 1.2 | 1–9 | 5 |  |  |\n")

	same := reported(t, output("1.25", "1.05", "1.15", "1.2", "1.4"), "--baseline", baseline)
	require.Contains(t, same, "| apply-p50-ms | 1.2 | 1.05–1.4 | 5 | 1.2 | 1.00 |\n", "within chance")
	slower := reported(t, output("12", "10", "11", "13", "14"), "--baseline", baseline)
	require.Contains(t, slower, "| apply-p50-ms | 12 | 10–14 | 5 | 1.2 | **10.00** |\n", "a regression")
	require.Contains(t, slower, "| total-p50/fsync | 3 | 3–3 | 5 | 3 | 1.00 |\n")
	require.NotContains(t, slower, "another machine")

	elsewhere := strings.ReplaceAll(output("1.2"), "Some CPU", "Other CPU")
	require.Contains(t, reported(t, elsewhere, "--baseline", baseline), "The baseline is of another machine")
}

func TestReportOfFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "output.txt")
	require.NoError(t, os.WriteFile(file, []byte(output("1.5")), 0o600))
	require.Contains(t, reported(t, "", file, file), "| apply-p50-ms | 1.5 | 1.5–1.5 | 2 |")
}

func TestReportRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "baseline.json")
	require.NoError(t, os.WriteFile(file, []byte("| a table |"), 0o600))
	for _, tc := range []struct {
		in   string
		args []string
		want string
	}{
		{"PASS\n", nil, "no result of a benchmark: give it what `go test -bench` prints"},
		{"BenchmarkApply-2 1 fast ms\n", nil, "standard input:1"},
		{output("1"), []string{"--baseline", file}, "is not a report of this command"},
		{output("1"), []string{"--baseline", file + ".absent"}, "read the baseline: "},
		{output("1"), []string{file + ".absent"}, "no such file"},
		{output("1"), []string{"--csv", file}, "unknown flag: --csv"},
	} {
		require.ErrorContains(t, run(tc.args, strings.NewReader(tc.in), &strings.Builder{}), tc.want)
	}
}
