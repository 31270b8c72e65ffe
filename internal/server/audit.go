package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"meridian/internal/audit"
	"meridian/internal/audit/sink"
	"meridian/internal/pki"
)

// AuditDir is the directory of the audit log, below the data directory.
const AuditDir = "audit"

// AuditOptions are the settings of the audit log.
type AuditOptions struct {
	// Required refuses writes that cannot be recorded.
	Required bool
	// Also is a file, and Syslog the address of a syslog server, that records are
	// passed on to.
	Also, Syslog string
}

func (o *AuditOptions) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&o.Required, "audit-required", false, "answer a write once its audit record is on disk, and refuse writes while the audit log cannot be written")
	flags.StringVar(&o.Also, "audit-also", "", "file that audit records are appended to as well")
	flags.StringVar(&o.Syslog, "audit-syslog", "", "syslog server that audit records are sent to as well, as messages of RFC 5424: udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH")
}

func (o *AuditOptions) validate() error {
	if o.Syslog == "" {
		return nil
	}
	if _, err := sink.ParseSyslog(o.Syslog); err != nil {
		return usagef("--audit-syslog: %w", err)
	}
	return nil
}

// Audit is a server's audit log, and where its records are passed on to.
type Audit struct {
	*audit.Log
	sinks []*sink.Sink
	stop  context.CancelFunc
	ended errgroup.Group
}

// OpenAudit opens a server's audit log, signed with its certificate, and adds its
// metrics. The data directory must be the server's own by then: two processes cannot
// write one log.
func OpenAudit(o Options, certificate *pki.PKI, metrics *prometheus.Registry, now func() time.Time, log *slog.Logger) (*Audit, error) {
	a := &Audit{}
	if o.Audit.Also != "" {
		also, err := sink.File(o.Audit.Also, log)
		if err != nil {
			return nil, fmt.Errorf("--audit-also: %w", err)
		}
		a.sinks = append(a.sinks, also)
	}
	if o.Audit.Syslog != "" {
		syslog, err := sink.Syslog(o.Audit.Syslog, "meridian", log)
		if err != nil {
			return nil, fmt.Errorf("--audit-syslog: %w", err)
		}
		a.sinks = append(a.sinks, syslog)
	}
	config := audit.Config{
		Dir: filepath.Join(o.DataDir, AuditDir), Now: now, Logger: log, Sign: certificate.Sign, Required: o.Audit.Required, Sent: a.send,
	}
	if ca := certificate.CAPEM(); len(ca) > 0 {
		config.Roots = x509.NewCertPool()
		config.Roots.AppendCertsFromPEM(ca)
	}
	l, err := audit.Open(config)
	if err != nil {
		return nil, fmt.Errorf("--data-dir %s: %w", o.DataDir, err)
	}
	a.Log = l
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	for _, s := range a.sinks {
		a.ended.Go(func() error { return s.Run(ctx) }) // ends with Close
	}
	metrics.MustRegister(&auditCollector{a})
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
	return a, nil
}

// send passes a record on.
func (a *Audit) send(r audit.Record, line []byte) {
	for _, s := range a.sinks {
		s.Send(r, line)
	}
}

// Close closes the log, and then what its records are passed on to.
func (a *Audit) Close() error {
	err := a.Log.Close()
	a.stop()
	return errors.Join(err, a.ended.Wait())
}

// auditCollector counts the records of each chain, and those that were not passed on.
type auditCollector struct{ audit *Audit }

var auditDroppedDesc = prometheus.NewDesc("meridian_audit_dropped_total",
	"Records of the audit log that were not passed on to --audit-also (file) or --audit-syslog (syslog).", []string{"sink"}, nil)

var auditRecordsDesc = prometheus.NewDesc("meridian_audit_records_total",
	"Records in the audit log since it was begun, by the name of their files: audit for writes, denied, kubernetes and refused for refusals.", []string{"chain"}, nil)

// Describe implements prometheus.Collector.
func (c *auditCollector) Describe(out chan<- *prometheus.Desc) {
	out <- auditRecordsDesc
	out <- auditDroppedDesc
}

// Collect implements prometheus.Collector.
func (c *auditCollector) Collect(out chan<- prometheus.Metric) {
	for chain, n := range c.audit.Records() {
		out <- prometheus.MustNewConstMetric(auditRecordsDesc, prometheus.CounterValue, float64(n), chain)
	}
	for _, s := range c.audit.sinks {
		out <- prometheus.MustNewConstMetric(auditDroppedDesc, prometheus.CounterValue, float64(s.Dropped()), s.Name)
	}
}
