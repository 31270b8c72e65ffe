package consensus

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

const (
	crashDirEnv  = "MERIDIAN_CONSENSUS_CRASH_DIR"
	crashWriters = 4
)

// crashConfig cuts the log all the time, so that kills hit snapshots and
// truncations as well.
func crashConfig(dir string) Config {
	cfg := testConfig(dir)
	cfg.Snapshots = Snapshots{Threshold: 40, Interval: 5 * time.Millisecond, TrailingLogs: 20, Retain: 3}
	return cfg
}

func crashKeys(writer int) [3]string {
	return [3]string{fmt.Sprintf("w%d-a", writer), fmt.Sprintf("w%d-b", writer), fmt.Sprintf("w%d-c", writer)}
}

func crashTxn(writer, value int) store.Txn {
	txn := store.Txn{RequestID: fmt.Sprintf("w%d/%d", writer, value)}
	for _, name := range crashKeys(writer) {
		txn.Ops = append(txn.Ops, put(name, value))
	}
	return txn
}

// crashWriter is the process that gets killed. Each writer first repeats its
// last batch under the same request id, which must change nothing, and then
// writes the next numbers under its three keys, printing what was acknowledged.
func crashWriter(dir string) error {
	st := store.New(store.DefaultOptions())
	n, err := Open(context.Background(), crashConfig(dir), st)
	if err != nil {
		return err
	}
	<-n.Ready()
	if _, err := fmt.Println("ready 0 0"); err != nil {
		return err
	}
	var wg sync.WaitGroup
	failed := make(chan error, crashWriters)
	for w := range crashWriters {
		wg.Go(func() { failed <- crashWrites(n, st, w) })
	}
	err = <-failed
	wg.Wait()
	return err
}

func crashWrites(n *Node, st *store.Store, w int) error {
	value := 0
	if res, ok := st.View().Get(key(crashKeys(w)[0])); ok {
		value = int(res.Meta().Version)
		result, err := n.proposer.Propose(context.Background(), crashTxn(w, value))
		if err != nil {
			return err
		}
		if !result.Duplicate {
			return fmt.Errorf("batch %d of writer %d was applied twice", value, w)
		}
	}
	for {
		value++
		result, err := n.proposer.Propose(context.Background(), crashTxn(w, value))
		if err != nil {
			return err
		}
		if _, err := fmt.Printf("%d %d %d\n", w, value, result.Revision); err != nil {
			return err
		}
	}
}

// TestKillLosesNothing kills a writing process with SIGKILL at random moments:
// no acknowledged write is lost, no batch is half there, nothing is applied
// twice (§7.1).
func TestKillLosesNothing(t *testing.T) {
	// Enough kills for the budget, and in any case until the log has been cut as
	// often as snapshots are kept, which a busy machine takes longer for.
	rounds, budget := 40, 12*time.Second
	if testing.Short() {
		rounds = 6
	}
	dir := t.TempDir()
	var acked [crashWriters]int
	var ackedAt [crashWriters]resource.Revision
	total, kills := 0, 0
	began := time.Now()
	cut := func() bool { return len(snapshotDirs(t, crashConfig(dir))) >= 3 }
	for round := 0; (!cut() && round < 200) || (round < rounds && time.Since(began) < budget); round++ {
		kills++
		total += crashRound(t, dir, &acked, &ackedAt)
		st := store.New(store.DefaultOptions())
		n, err := Open(context.Background(), crashConfig(dir), st)
		require.NoError(t, err, "round %d", round)
		waitReady(t, n)
		for w := range crashWriters {
			checkCrashed(t, st, w, acked[w], ackedAt[w])
			acked[w], _ = stored(t, st.View(), crashKeys(w)[0])
		}
		require.NoError(t, n.Close())
	}
	t.Logf("%d acknowledged batches survived %d kills", total, kills)
}

// crashRound runs the writer until it is killed, and notes the acknowledgements.
func crashRound(t *testing.T, dir string, acked *[crashWriters]int, ackedAt *[crashWriters]resource.Revision) (count int) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill := time.AfterFunc(time.Duration(rand.IntN(250))*time.Millisecond, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var writer string
		var value int
		var revision uint64
		if _, err := fmt.Sscanf(lines.Text(), "%s %d %d", &writer, &value, &revision); err != nil || writer == "ready" {
			continue // the last line may be cut off
		}
		w, err := strconv.Atoi(writer)
		require.NoError(t, err)
		require.Equal(t, acked[w]+1, value)
		require.Greater(t, resource.Revision(revision), ackedAt[w])
		acked[w], ackedAt[w] = value, resource.Revision(revision)
		count++
	}
	require.ErrorContains(t, cmd.Wait(), "killed")
	return count
}

func checkCrashed(t *testing.T, st *store.Store, w, acked int, at resource.Revision) {
	t.Helper()
	view := st.View()
	require.GreaterOrEqual(t, view.Revision(), at)
	first, _ := stored(t, view, crashKeys(w)[0])
	require.GreaterOrEqual(t, first, acked, "writer %d lost an acknowledged write", w)
	require.LessOrEqual(t, first, acked+1, "writer %d had one write under way", w)
	for _, name := range crashKeys(w) {
		value, version := stored(t, view, name)
		require.Equal(t, first, value, "half a batch of writer %d", w)
		require.Equal(t, uint64(value), version, "a batch of writer %d was applied twice", w)
	}
}

// TestRequestIDAcrossRestart: the same request before and after a restart takes
// effect once, and is told the same.
func TestRequestIDAcrossRestart(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		t.Run(fmt.Sprintf("snapshot=%t", snapshot), func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			n, _ := open(t, cfg)
			txn := store.Txn{RequestID: "r1", Ops: []store.Op{put("k", 1)}}
			first, err := n.proposer.Propose(context.Background(), txn)
			require.NoError(t, err)
			require.False(t, first.Duplicate)
			propose(t, n, put("k", 2))
			if snapshot {
				require.NoError(t, n.Snapshot())
			}
			require.NoError(t, n.Close())

			n, st := open(t, cfg)
			again, err := n.proposer.Propose(context.Background(), txn)
			require.NoError(t, err)
			require.True(t, again.Duplicate)
			require.Equal(t, first.Revision, again.Revision)
			value, version := stored(t, st.View(), "k")
			require.Equal(t, 2, value)
			require.Equal(t, uint64(2), version)
		})
	}
}
