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

// The findings are counted when something has changed, for one hundredth of the time, and
// after five minutes at the latest.
func TestFindings(t *testing.T) {
	s := store.New(store.DefaultOptions())
	matching := livematch.New(policy.NewMatcher(engines.All()...), s)
	now, takes := time.Unix(1_000_000, 0), time.Duration(0)
	f := newFindings(matching, func() time.Time { now = now.Add(takes); return now })
	takes = time.Second // from the beginning of a count to its end
	require.Equal(t, 0, testutil.CollectAndCount(f))

	mesh := resourcetest.Build(t, "Mesh", "", "default", `{}`)
	require.NoError(t, s.Apply(5, store.Txn{Ops: []store.Op{store.Put(mesh)}}).Err)
	require.Equal(t, 0, testutil.CollectAndCount(f), "not yet")
	now = now.Add(findingsShare * takes)
	takes = 10 * time.Second
	want := "# HELP meridian_findings What is stored, valid and probably not meant, by the codes of `meridian analyze`; counted again after a change, in one hundredth of the time.\n# TYPE meridian_findings gauge\nmeridian_findings{code=\"mesh-without-mtls\",severity=\"warning\"} 1\n"
	require.NoError(t, testutil.CollectAndCompare(f, strings.NewReader(want)))

	require.Equal(t, findingsEvery, f.next.Sub(now))
	now = f.next
	next := f.next
	require.NoError(t, testutil.CollectAndCompare(f, strings.NewReader(want)))
	require.Equal(t, next, f.next, "nothing has changed, and nothing is counted again")
}
