package consensus

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// TestMain also runs this binary as the process that the crash test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDirEnv); dir != "" {
		crash := crashWriter
		if os.Getenv(crashRestoreEnv) != "" {
			crash = crashRestorer
		}
		if err := crash(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testConfig is a node without a network on a directory.
func testConfig(dir string) Config {
	cfg := DefaultConfig(dir)
	cfg.NodeID = "one"
	cfg.Role = RoleGlobal
	cfg.Logger = slog.New(slog.DiscardHandler)
	return cfg
}

// open starts a node, waits until it is ready and closes it with the test.
func open(t testing.TB, cfg Config) (*Node, *store.Store) {
	t.Helper()
	st := store.New(store.DefaultOptions())
	n, err := Open(context.Background(), cfg, st)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	waitReady(t, n)
	return n, st
}

func waitReady(t testing.TB, n *Node) {
	t.Helper()
	select {
	case <-n.Ready():
	case <-time.After(10 * time.Second):
		require.FailNow(t, "node is not ready", "%+v", n.Status())
	}
}

func key(name string) resource.Key { return resource.Key{Kind: "GlobalSecret", Name: name} }

// put writes a number under a name.
func put(name string, value int) store.Op {
	data := base64.StdEncoding.EncodeToString([]byte(strconv.Itoa(value)))
	return store.Put(resource.New(
		resource.Meta{Key: key(name)},
		&resource.Secret{Data: data},
		fmt.Appendf(nil, `{"data":%q}`, data),
	))
}

// stored reads what put wrote, and its version; zeros when there is nothing.
func stored(t testing.TB, r store.Reader, name string) (value int, version uint64) {
	t.Helper()
	res, ok := r.Get(key(name))
	if !ok {
		return 0, 0
	}
	raw, err := base64.StdEncoding.DecodeString(res.Spec().(*resource.Secret).Data)
	require.NoError(t, err)
	value, err = strconv.Atoi(string(raw))
	require.NoError(t, err)
	return value, res.Meta().Version
}

func propose(t testing.TB, n *Node, ops ...store.Op) store.Result {
	t.Helper()
	result, err := n.proposer.Propose(context.Background(), store.Txn{Ops: ops})
	require.NoError(t, err)
	return result
}

// fill writes count batches and returns the last value written to "k".
func fill(t testing.TB, n *Node, from, count int) int {
	t.Helper()
	for i := from; i < from+count; i++ {
		propose(t, n, put("k", i))
	}
	return from + count - 1
}
