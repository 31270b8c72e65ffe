package controlplane

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

// The findings are counted when something has changed, and no more often than every five
// minutes.
func TestFindings(t *testing.T) {
	s := store.New(store.DefaultOptions())
	matching := livematch.New(policy.NewMatcher(engines.All()...), s)
	now := time.Unix(1_000_000, 0)
	f := newFindings(matching, func() time.Time { return now })
	require.Equal(t, 0, testutil.CollectAndCount(f))

	mesh := resourcetest.Build(t, "Mesh", "", "default", `{}`)
	require.NoError(t, s.Apply(5, store.Txn{Ops: []store.Op{store.Put(mesh)}}).Err)
	require.Equal(t, 0, testutil.CollectAndCount(f), "not yet")
	now = now.Add(findingsEvery)
	want := "# HELP meridian_findings What is stored, valid and probably not meant, by the codes of `meridian analyze`; counted every five minutes at most.\n# TYPE meridian_findings gauge\nmeridian_findings{code=\"mesh-without-mtls\",severity=\"warning\"} 1\n"
	require.NoError(t, testutil.CollectAndCompare(f, strings.NewReader(want)))

	now = now.Add(findingsEvery)
	at := f.at
	require.NoError(t, testutil.CollectAndCompare(f, strings.NewReader(want)))
	require.Equal(t, at, f.at, "nothing has changed, and nothing is counted again")
}
