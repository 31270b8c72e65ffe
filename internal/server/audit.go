package server

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/audit"
	"meridian/internal/pki"
)

// AuditDir is the directory of the audit log, below the data directory.
const AuditDir = "audit"

// OpenAudit opens a server's audit log, signed with its certificate, and adds its metrics. The data directory
// must be the server's own by then: two processes cannot write one log.
func OpenAudit(o Options, certificate *pki.PKI, metrics *prometheus.Registry, now func() time.Time, log *slog.Logger) (*audit.Log, error) {
	config := audit.Config{Dir: filepath.Join(o.DataDir, AuditDir), Now: now, Logger: log, Sign: certificate.Sign}
	if ca := certificate.CAPEM(); len(ca) > 0 {
		config.Roots = x509.NewCertPool()
		config.Roots.AppendCertsFromPEM(ca)
	}
	l, err := audit.Open(config)
	if err != nil {
		return nil, fmt.Errorf("--data-dir %s: %w", o.DataDir, err)
	}
	metrics.MustRegister(&auditRecords{l})
	metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "meridian_audit_failing", Help: "1 while records of the audit log cannot be written.",
		}, func() float64 {
			if l.Err() != nil {
				return 1
			}
			return 0
		}),
	)
	return l, nil
}

// auditRecords counts the records of each chain.
type auditRecords struct{ log *audit.Log }

var auditRecordsDesc = prometheus.NewDesc("meridian_audit_records_total",
	"Records in the audit log since it was begun, by the name of their files: audit for writes, denied, kubernetes and refused for refusals.", []string{"chain"}, nil)

// Describe implements prometheus.Collector.
func (c *auditRecords) Describe(out chan<- *prometheus.Desc) { out <- auditRecordsDesc }

// Collect implements prometheus.Collector.
func (c *auditRecords) Collect(out chan<- prometheus.Metric) {
	for chain, n := range c.log.Records() {
		out <- prometheus.MustNewConstMetric(auditRecordsDesc, prometheus.CounterValue, float64(n), chain)
	}
}
