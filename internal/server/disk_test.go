package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/raftlog"
)

// TestDiskHealth: a nearly full disk is noted, a hanging one makes the server not
// ready, and both are counted.
func TestDiskHealth(t *testing.T) {
	var disk consensus.Disk
	current := func() consensus.Disk { return disk }
	metrics := prometheus.NewRegistry()
	RegisterDisk(metrics, current)
	health := NewHealth(discard(t), metrics, DiskCheck(current))
	ready := func() (int, string) {
		answer := httptest.NewRecorder()
		health.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
		return answer.Code, answer.Body.String()
	}
	code, body := ready()
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\n", body)

	disk = consensus.Disk{
		Server: "one", Where: "/data", Space: raftlog.Space{Free: 12 << 20, Total: 1 << 30}, Reserve: 51 << 20, Low: true,
	}
	code, body = ready()
	require.Equal(t, http.StatusOK, code, "it still serves reads")
	require.Equal(t, "[!] disk: the disk of one is nearly full: 12 MiB are left of 1024 MiB where /data is, and 51 MiB are kept free; free some space there, and writes continue by themselves\nok\n", body)

	disk = consensus.Disk{Server: "one", Where: "/data", Hangs: 7 * time.Second}
	code, body = ready()
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "[-] disk: the disk hangs: nothing was written to /data for 7s\n")
	require.InDelta(t, 7, gauge(t, metrics, "meridian_disk_stalled_seconds"), 0)
	disk.Low = true
	_, body = ready()
	require.Contains(t, body, "[-] disk: the disk hangs: ", "that is the worse of the two")
	disk.Hangs = 0
	require.Zero(t, gauge(t, metrics, "meridian_disk_stalled_seconds"))
	require.InDelta(t, 1, gauge(t, metrics, "meridian_disk_low"), 0)

	families, err := metrics.Gather()
	require.NoError(t, err)
	require.Len(t, families, 4)
	problems, err := testutil.GatherAndLint(metrics)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// gauge returns the value of a metric without labels.
func gauge(t *testing.T, metrics prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Fail(t, "there is no such metric", name)
	return 0
}
