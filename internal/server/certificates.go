package server

import (
	"crypto/x509"
	"encoding/pem"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/pki"
)

// certificateCollector reports when certificates expire.
type certificateCollector struct {
	desc *prometheus.Desc
	pkis map[string]*pki.PKI
}

// CertificateMetrics adds when the certificates of a server expire, by what they
// are for. A generated one is renewed in time, at a start or by SIGHUP; a given
// one, and the authority, are for people to replace.
func CertificateMetrics(metrics *prometheus.Registry, pkis map[string]*pki.PKI) {
	metrics.MustRegister(&certificateCollector{
		desc: prometheus.NewDesc("meridian_certificate_expires_timestamp_seconds",
			"When a certificate expires: of a server, or the first one of the authority that signs them.", []string{"for", "certificate"}, nil),
		pkis: pkis,
	})
}

// Describe implements prometheus.Collector.
func (c *certificateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *certificateCollector) Collect(ch chan<- prometheus.Metric) {
	for use, pki := range c.pkis {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(pki.Expires().Unix()), use, "server")
		if expires := firstExpiry(pki.CAPEM()); !expires.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(expires.Unix()), use, "authority")
		}
	}
}

// firstExpiry is when the first of some certificates expires, zero when there is
// none.
func firstExpiry(chain []byte) time.Time {
	var first time.Time
	for {
		var block *pem.Block
		if block, chain = pem.Decode(chain); block == nil {
			return first
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
}
