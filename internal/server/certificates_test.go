package server

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"meridian/internal/pki"
)

func TestCertificateMetrics(t *testing.T) {
	now := time.Now()
	opened, err := OpenPKI(Options{DataDir: t.TempDir()}, nil, "one", "", Addresses{GRPC: "127.0.0.1:5685"}, func() time.Time { return now }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	metrics := prometheus.NewRegistry()
	CertificateMetrics(metrics, map[string]*pki.PKI{"api": opened})
	families, err := metrics.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	expires := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		expires[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	require.InDelta(t, float64(opened.Expires().Unix()), expires["server"], 0)
	require.Greater(t, expires["authority"], expires["server"])
	require.True(t, firstExpiry([]byte("nothing")).IsZero())
}
