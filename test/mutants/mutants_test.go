//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/mutant"
)

// planted is a bug and the tests that have to notice it: packages and a pattern
// as `go test` takes them.
type planted struct {
	bug mutant.Name
	pkg string
	run string
}

// all are the planted bugs, each with the cheapest tests that notice it.
var all = []planted{
	{bug: mutant.AckBeforeSync, pkg: "./internal/consensus", run: "TestKillLosesNothing"},
	{bug: mutant.VoteNotStored, pkg: "./internal/consensus", run: "TestUnsavedTermAndVote"},
	{bug: mutant.SkipChecksum, pkg: "./internal/consensus", run: "TestFlippedBits|TestDamagedEntry"},
	{bug: mutant.TimeFromClock, pkg: "./internal/consensus", run: "TestDeterminism"},
	{bug: mutant.ForgetRequestID, pkg: "./internal/store", run: "TestStoreEqualsModel"},
	{bug: mutant.ReadUnverified, pkg: "./internal/consensus", run: "TestAStaleLeaderRefusesReads"},
	{bug: mutant.ReadUnapplied, pkg: "./internal/consensus", run: "TestReadsSeeWhatWasAcknowledgedElsewhere"},
	{bug: mutant.ServeBeforeCaughtUp, pkg: "./internal/consensus", run: "TestRestartKeepsEverything"},
	{bug: mutant.AsyncHeartbeat, pkg: "./internal/consensus", run: "TestHeartbeatsStayInLine"},
	{bug: mutant.RestoreKeepsEpoch, pkg: "./internal/consensus", run: "TestRestoreBringsBackWhatWasSaved"},
	{bug: mutant.LostDiskVotes, pkg: "./internal/consensus", run: "TestAVoteWithoutItsLogDoesNotCount"},
	{bug: mutant.DropOnResume, pkg: "./internal/sync", run: "TestResumeGoesOnWhereTheZoneIs"},
	{bug: mutant.ResumeAcrossEpochs, pkg: "./internal/sync", run: "TestARevisionIsOfItsEpoch"},
	{bug: mutant.PublishBeforePersist, pkg: "./internal/sync", run: "TestFailedDisk"},
	{bug: mutant.NoWipeGuard, pkg: "./internal/sync", run: "TestWipeGuard"},
	{bug: mutant.SyncSecrets, pkg: "./internal/sync", run: "TestSyncedKinds"},
}

// patience bounds one run: a test that hangs because of a bug has noticed it,
// but should not take the day.
const patience = 4 * time.Minute

// root is where the module begins; builds holds the programs.
const root = "../.."

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

// Every planted bug is noticed.
func TestEveryPlantedBugIsNoticed(t *testing.T) {
	for _, p := range all {
		t.Run(string(p.bug), func(t *testing.T) {
			out, failed := run(t, p, p.bug)
			require.True(t, failed, "with the bug %q planted, these tests pass: go test -run %q %s\n%s", p.bug, p.run, p.pkg, out)
			t.Logf("noticed by\n%s", firstFailures(out))
		})
	}
}

// The same tests pass while no bug is active, or noticing one would mean
// nothing.
func TestNothingIsNoticedWithoutABug(t *testing.T) {
	for _, p := range all {
		t.Run(p.pkg+" "+p.run, func(t *testing.T) {
			out, failed := run(t, p, "")
			require.False(t, failed, "%s", out)
		})
	}
}

// programs are the packages' tests, built once, by package.
var programs = map[string]string{}

func program(t *testing.T, pkg string) string {
	t.Helper()
	if path, ok := programs[pkg]; ok {
		return path
	}
	path := filepath.Join(builds, strings.ReplaceAll(strings.Trim(pkg, "./"), "/", "-")+".test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "hashicorpmetrics,mutants", "-o", path, pkg)
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	programs[pkg] = path
	return path
}

func run(t *testing.T, p planted, bug mutant.Name) (out []byte, failed bool) {
	t.Helper()
	path := program(t, p.pkg)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-test.v", "-test.failfast", "-test.timeout", "3m", "-test.run", p.run)
	cmd.Dir = filepath.Join(root, p.pkg)
	cmd.Env = append(os.Environ(), "MERIDIAN_MUTANT="+string(bug))
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
