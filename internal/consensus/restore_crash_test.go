package consensus

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

const crashRestoreEnv = "MERIDIAN_CONSENSUS_CRASH_RESTORE"

// backupFile is one of the two backups that the killed process restores in turn:
// an even incarnation is the first's, an odd one the second's.
func backupFile(dir string, incarnation uint64) string {
	return filepath.Join(dir, fmt.Sprintf("backup-%d", incarnation%2))
}

// crashRestorer is the process that gets killed: it restores one backup after
// the other, and says when each is in effect.
func crashRestorer(dir string) error {
	st := store.New(store.DefaultOptions())
	n, err := Open(context.Background(), crashConfig(dir), st)
	if err != nil {
		return err
	}
	<-n.Ready()
	for {
		file, err := os.ReadFile(backupFile(dir, st.View().Epoch().Incarnation+1))
		if err != nil {
			return err
		}
		restored, err := n.restorer.Restore(context.Background(), bytes.NewReader(file), false)
		if err != nil {
			return err
		}
		if _, err := fmt.Printf("restored %d\n", restored.Epoch.Incarnation); err != nil {
			return err
		}
	}
}

// TestKillDuringRestore kills a server that restores with SIGKILL at random
// moments: it comes back with the state of before under the epoch of before, or
// with the restored one under the next, and with nothing else.
func TestKillDuringRestore(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	dir := t.TempDir()
	contents := writeBackups(t, dir)
	incarnation := uint64(1)
	between := 0
	// A busy machine is given more time from round to round, until a restore ends.
	for round := 0; round < rounds || incarnation == 1 && round < 10*rounds; round++ {
		done := killRestorer(t, dir, time.Duration(50+10*round)*time.Millisecond)
		require.GreaterOrEqual(t, max(done, incarnation), incarnation)
		incarnation = max(done, incarnation)

		st := store.New(store.DefaultOptions())
		n, err := Open(context.Background(), crashConfig(dir), st)
		require.NoError(t, err, "round %d", round)
		waitReady(t, n)
		view := st.View()
		now := view.Epoch().Incarnation
		require.True(t, now == incarnation || now == incarnation+1, "incarnation %d after %d was in effect", now, incarnation)
		if now > incarnation {
			between++
		}
		if incarnation = now; now > 1 {
			require.Equal(t, contents[now%2], specsOf(view), "incarnation %d", now)
		}
		require.NoError(t, n.Close())
	}
	t.Logf("%d restores; %d were in effect but not answered", incarnation-1, between)
	require.Greater(t, incarnation, uint64(1), "no restore ever ended")
}

// writeBackups makes the two backups, and returns what each holds.
func writeBackups(t *testing.T, dir string) (contents [2]map[resource.Key]string) {
	t.Helper()
	for i := range contents {
		n, st := open(t, testConfig(t.TempDir()))
		_, err := n.proposer.Propose(t.Context(), bulk(i))
		require.NoError(t, err)
		propose(t, n, put(fmt.Sprint("only-", i), i))
		contents[i] = specsOf(st.View())
		require.NoError(t, os.WriteFile(backupFile(dir, uint64(i)), saved(t, n), 0o600))
		require.NoError(t, n.Close())
	}
	return contents
}

func specsOf(v *store.View) map[resource.Key]string {
	out := map[resource.Key]string{}
	for r := range v.All() {
		out[r.Key()] = string(r.Canonical())
	}
	return out
}

// killRestorer runs the restoring process until it is killed, and returns the
// last incarnation that it said is in effect.
func killRestorer(t *testing.T, dir string, atLeast time.Duration) (incarnation uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDirEnv+"="+dir, crashRestoreEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill := time.AfterFunc(atLeast+rand.N(300*time.Millisecond), func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var i uint64
		if _, err := fmt.Sscanf(lines.Text(), "restored %d", &i); err == nil {
			incarnation = i
		}
	}
	require.ErrorContains(t, cmd.Wait(), "killed")
	return incarnation
}
