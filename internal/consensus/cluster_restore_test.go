package consensus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/store"
)

// bulk writes a state that takes a restore of many parts.
func (s *server) bulk(t testing.TB, content string) {
	t.Helper()
	txn := store.Txn{}
	for i := range 200 {
		txn.Ops = append(txn.Ops, put(fmt.Sprintf("bulk-%03d", i), content))
	}
	_, err := s.node.Propose(context.Background(), txn)
	require.NoError(t, err)
}

func (s *server) backup(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	_, err := s.node.SaveBackup(context.Background(), &file, false)
	require.NoError(t, err)
	return file.Bytes()
}

// agree waits until every server has applied the same, and returns that state.
func (c *cluster) agree(servers ...*server) *store.View {
	c.t.Helper()
	leader := c.leader(servers...)
	_, err := leader.node.Read(context.Background())
	require.NoError(c.t, err)
	view := leader.store.View()
	for _, s := range servers {
		c.eventually(s.name+" agrees", func() bool {
			at := s.store.View()
			return at.Revision() >= view.Revision() && at.Epoch() == view.Epoch() && at.DigestOf(nil) == view.DigestOf(nil)
		})
	}
	return view
}

// A backup can be given to any server, and is in effect on all of them.
func TestAnyServerRestores(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		a, b, d := c.three()
		a.bulk(t, "saved")
		a.write(t, "k", "saved")
		file := b.backup(t)
		saved := b.store.View()
		for i, at := range []*server{a, b, d} {
			at.write(t, "k", "later")
			restored, err := at.node.Restore(t.Context(), bytes.NewReader(file), false)
			require.NoError(t, err, at.name)
			require.Equal(t, restored.Epoch, at.store.View().Epoch(), "it has followed when it answers")
			require.EqualValues(t, i+2, restored.Epoch.Incarnation)
			require.Equal(t, saved.Revision(), restored.Saved)
			require.Equal(t, saved.Len(), restored.Resources)
			for _, s := range []*server{a, b, d} {
				require.Equal(t, "saved", s.read(t, "k"), "restored at %s, read at %s", at.name, s.name)
			}
			view := c.agree(a, b, d)
			require.Equal(t, restored.Epoch, view.Epoch())
			require.Equal(t, saved.DigestOf(nil), view.DigestOf(nil))
		}

		damaged := bytes.Clone(file)
		damaged[len(file)/2] ^= 1
		before := a.node.Status().Last
		for _, at := range []*server{a, b, d} {
			_, err := at.node.Restore(t.Context(), bytes.NewReader(damaged), false)
			require.ErrorIs(t, err, consensus.ErrBadBackup, at.name)
			broken := errors.New("the client went away")
			_, err = at.node.Restore(t.Context(), &cutOff{file[:len(file)/2], broken}, false)
			require.ErrorIs(t, err, consensus.ErrNotRestored, at.name)
			require.ErrorContains(t, err, "went away")
		}
		require.Equal(t, before, a.node.Status().Last, "nothing was logged")
	})
}

// cutOff is a file whose rest does not come.
type cutOff struct {
	data []byte
	err  error
}

func (r *cutOff) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, r.err
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// Whatever happens to the leader or to the server that was asked in the middle of
// a restore, the cluster ends up with the state of before under its epoch, or
// with the restored one under the next; the answer that the caller got is
// correct, and remains so when all servers are back.
func TestRestoreSurvivesItsServers(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { restoreUnderFault(t, seed) })
	}
}

func restoreUnderFault(t *testing.T, seed uint64) {
	bubble(t, func(t *testing.T, c *cluster) {
		random := rand.New(rand.NewPCG(seed, 0))
		a, b, d := c.three()
		all := []*server{a, b, d}
		a.bulk(t, "saved")
		file := a.backup(t)
		saved := a.store.View()
		a.bulk(t, "later")
		before := c.agree(all...)
		for _, x := range all {
			for _, y := range all {
				if x != y {
					c.network.Delay(x.name, y.name, 3*time.Millisecond)
				}
			}
		}
		leader, asked := c.leader(all...), all[random.IntN(3)]
		type answer struct {
			restored consensus.Restored
			err      error
		}
		answered := make(chan answer, 1)
		go func() {
			restored, err := asked.node.Restore(context.Background(), bytes.NewReader(file), false)
			answered <- answer{restored, err}
		}()
		<-time.After(time.Duration(random.Int64N(int64(150 * time.Millisecond))))
		cut := leader
		if random.IntN(4) == 0 {
			cut = asked
		}
		others := []string{"a", "b", "c"}
		switch random.IntN(3) {
		case 0:
			c.network.Isolate(cut.name, others...)
		case 1: // it hears the others and cannot be heard
			for _, other := range others {
				c.network.Cut(cut.name, other)
			}
		case 2:
			_, _ = leader.node.TransferLeadership(context.Background(), "")
		}
		<-time.After(time.Duration(random.Int64N(int64(4 * time.Second))))
		c.network.HealAll()
		got := <-answered

		view := c.agree(all...)
		switch view.Epoch().Incarnation {
		case 1:
			require.Equal(t, before.DigestOf(nil), view.DigestOf(nil))
			require.Error(t, got.err)
		case 2:
			require.Equal(t, saved.DigestOf(nil), view.DigestOf(nil))
			require.NotErrorIs(t, got.err, consensus.ErrNotRestored)
			require.NotErrorIs(t, got.err, consensus.ErrBadBackup)
		default:
			require.FailNow(t, "incarnation", "%d", view.Epoch().Incarnation)
		}
		if got.err == nil {
			require.Equal(t, got.restored.Epoch, view.Epoch())
			require.NotZero(t, got.restored.Revision)
		}
		t.Logf("asked %s, leader %s: incarnation %d, told %v", asked.name, leader.name, view.Epoch().Incarnation, got.err)
		a.write(t, "after", "x")
		c.agree(all...)
	})
}

// A server that was away follows a restore from the log or from a snapshot, and
// servers that cut their logs all the time do not lose its parts.
func TestRestoreReachesWhoWasAway(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		often := func(cfg *consensus.Config) {
			cfg.Snapshots = consensus.Snapshots{Threshold: 2, Interval: 5 * time.Millisecond, TrailingLogs: 2, Retain: 2}
		}
		a := c.start("a", often)
		c.ready(a)
		both := func(cfg *consensus.Config) { often(cfg); joining("a")(cfg) }
		b, d := c.start("b", both), c.start("c", both)
		c.ready(b, d)
		c.voters("a", "b", "c")
		all := []*server{a, b, d}
		a.bulk(t, "saved")
		file := a.backup(t)
		for round := range 6 {
			a.bulk(t, fmt.Sprint("round ", round))
			c.agree(all...)
			leader := c.leader(all...)
			away := all[round%3]
			if away == leader {
				away = all[(round+1)%3]
			}
			c.network.Delay("a", "b", time.Millisecond)
			c.network.Delay("b", "a", time.Millisecond)
			c.network.Isolate(away.name, "a", "b", "c")
			restored, err := leader.node.Restore(t.Context(), bytes.NewReader(file), false)
			require.NoError(t, err)
			for i := range 20 * (round % 2) {
				leader.write(t, "k", fmt.Sprint(i))
			}
			c.network.HealAll()
			view := c.agree(all...)
			require.Equal(t, restored.Epoch, view.Epoch())

			// And a server that restarts finds it on its own disk.
			c.restart(away, often)
			c.agree(all...)
			require.Equal(t, restored.Epoch, away.store.View().Epoch())
		}
	})
}

// restart closes a server's node and opens it again.
func (c *cluster) restart(s *server, change func(*consensus.Config)) {
	c.t.Helper()
	require.NoError(c.t, s.node.Close())
	c.open(s, change)
	c.ready(s)
}
