//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"os"
	"os/exec"
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
	{bug: mutant.LostDiskVotes, pkg: "./internal/consensus", run: "TestJoinersDoNotVote"},
	{bug: mutant.DropOnResume, pkg: "./internal/sync", run: "TestResumeGoesOnWhereTheZoneIs"},
	{bug: mutant.ResumeAcrossEpochs, pkg: "./internal/sync", run: "TestModes"},
	{bug: mutant.PublishBeforePersist, pkg: "./internal/sync", run: "TestFailedDisk"},
	{bug: mutant.NoWipeGuard, pkg: "./internal/sync", run: "TestWipeGuard"},
	{bug: mutant.SyncSecrets, pkg: "./internal/sync", run: "TestSyncedKinds"},
}

// patience bounds one run: a test that hangs because of a bug has noticed it,
// but should not take the day.
const patience = 4 * time.Minute

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

func run(t *testing.T, p planted, bug mutant.Name) (out []byte, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "hashicorpmetrics,mutants", "-count", "1", "-failfast", "-timeout", "3m", "-run", p.run, p.pkg)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "MERIDIAN_MUTANT="+string(bug))
	out, err := cmd.CombinedOutput()
	require.NotContains(t, string(out), "[build failed]")
	require.NotContains(t, string(out), "no tests to run")
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
