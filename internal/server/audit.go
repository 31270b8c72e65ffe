package server

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/audit"
)

// AuditDir is the directory of the audit log, below the data directory.
const AuditDir = "audit"

// OpenAudit opens a server's audit log and adds its metrics. The data directory
// must be the server's own by then: two processes cannot write one log.
func OpenAudit(o Options, metrics *prometheus.Registry, now func() time.Time, log *slog.Logger) (*audit.Log, error) {
	l, err := audit.Open(audit.Config{Dir: filepath.Join(o.DataDir, AuditDir), Now: now, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("--data-dir %s: %w", o.DataDir, err)
	}
	metrics.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "meridian_audit_records_total", Help: "Records in the audit log since it was begun.",
		}, func() float64 { return float64(l.Head().Seq) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "meridian_audit_failing", Help: "1 while records of the audit log are being lost.",
		}, func() float64 {
			if l.Err() != nil {
				return 1
			}
			return 0
		}),
	)
	return l, nil
}
