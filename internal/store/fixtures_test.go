package store_test

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// start is the leader's clock at the beginning of every test.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func clock(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

func mesh(name string) *resource.Resource {
	return resource.New(resource.Meta{Key: meshKey(name)}, nil, []byte(`{}`))
}

func meshKey(name string) resource.Key { return resource.Key{Kind: "Mesh", Name: name} }

func retryKey(mesh, name string) resource.Key {
	return resource.Key{Kind: "Retry", Mesh: resource.MeshName(mesh), Name: name}
}

// thing is a resource of any kind; its content tells writes apart.
func thing(key resource.Key, content int) *resource.Resource {
	return resource.New(resource.Meta{Key: key}, nil, fmt.Appendf(nil, `{"n":%d}`, content))
}

func retry(name string, content int) *resource.Resource {
	return thing(retryKey("default", name), content)
}

func role(name string, content int) *resource.Resource {
	return thing(resource.Key{Kind: "AccessRole", Name: name}, content)
}

func puts(resources ...*resource.Resource) store.Txn {
	txn := store.Txn{}
	for _, r := range resources {
		txn.Ops = append(txn.Ops, store.Put(r))
	}
	return txn
}

func deletes(keys ...resource.Key) store.Txn {
	txn := store.Txn{}
	for _, k := range keys {
		txn.Ops = append(txn.Ops, store.Delete(k))
	}
	return txn
}

// opened returns a store that has mesh default since revision 1.
func opened(t testing.TB, opts store.Options) *store.Store {
	t.Helper()
	s := store.New(opts)
	txn := puts(mesh("default"))
	txn.Time = clock(0)
	require.NoError(t, s.Apply(1, txn).Err)
	return s
}

// dump is everything a reader can tell about a state.
func dump(resources iter.Seq[*resource.Resource]) []string {
	var lines []string
	for r := range resources {
		m := r.Meta()
		lines = append(lines, fmt.Sprintf("%s %v v%d r%d %s %s %s", m.Key, m.Labels, m.Version, m.Revision,
			m.CreationTime.Format(time.RFC3339Nano), m.ModificationTime.Format(time.RFC3339Nano), r.Canonical()))
	}
	return lines
}

func get(t testing.TB, r store.Reader, key resource.Key) *resource.Resource {
	t.Helper()
	found, ok := r.Get(key)
	require.True(t, ok, "%s is not there", key)
	return found
}

func names(resources iter.Seq[*resource.Resource]) []string {
	var out []string
	for r := range resources {
		out = append(out, r.Key().String())
	}
	return out
}

func revisions(batches []store.Batch) []resource.Revision {
	var out []resource.Revision
	for _, b := range batches {
		out = append(out, b.Revision)
	}
	return out
}
