package server

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/pki"
)

const (
	// certificateInterval is how often a running server reads its certificates again:
	// those that were given may have been replaced, a generated one may need renewal.
	certificateInterval = 10 * time.Minute
	// failureInterval is how often the log repeats why that fails.
	failureInterval = 24 * time.Hour
	// expiresSoon is how long before its end a certificate is reported by readiness. It
	// is that of the alert MeridianCertificateExpires.
	expiresSoon = 14 * 24 * time.Hour
)

// Certificates keeps the certificates of a running server up to date, and reports on
// them as metrics and as a condition of readiness.
type Certificates struct {
	log  *slog.Logger
	now  func() time.Time
	pkis map[string]*pki.PKI
	uses []string // the keys of pkis, sorted

	expires, failing *prometheus.Desc
	// told is when the log said last that a certificate fails, by use; of Run alone.
	told map[string]time.Time
}

// NewCertificates returns the certificates of a server by what they are for. now is the
// clock.
func NewCertificates(now func() time.Time, log *slog.Logger, pkis map[string]*pki.PKI) *Certificates {
	return &Certificates{
		log: log, now: now, pkis: pkis, uses: slices.Sorted(maps.Keys(pkis)), told: map[string]time.Time{},
		expires: prometheus.NewDesc("meridian_certificate_expires_timestamp_seconds",
			"When a certificate expires: of a server, or the first one of the authority that signs them.", []string{"for", "certificate"}, nil),
		failing: prometheus.NewDesc("meridian_certificate_failing",
			"1 while a certificate cannot be read again or renewed: the one in use stays until it expires.", []string{"for"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Certificates) Describe(ch chan<- *prometheus.Desc) { ch <- c.expires; ch <- c.failing }

// Collect implements prometheus.Collector.
func (c *Certificates) Collect(ch chan<- prometheus.Metric) {
	for use, pki := range c.pkis {
		ch <- prometheus.MustNewConstMetric(c.expires, prometheus.GaugeValue, float64(pki.Expires().Unix()), use, "server")
		if expires := firstExpiry(pki.CAPEM()); !expires.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.expires, prometheus.GaugeValue, float64(expires.Unix()), use, "authority")
		}
		failing := 0.0
		if pki.Failure() != nil {
			failing = 1
		}
		ch <- prometheus.MustNewConstMetric(c.failing, prometheus.GaugeValue, failing, use)
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

// Check is what readiness says about the certificates: one that cannot be renewed, or
// that expires soon, is reported. The server stays ready: open connections are not
// affected, and another server may be no better.
func (c *Certificates) Check() Check {
	return Check{Name: "certificates", Ready: func() error { return nil }, Note: c.note}
}

func (c *Certificates) note() string {
	var notes []string
	soon := c.now().Add(expiresSoon)
	for _, use := range c.uses {
		p := c.pkis[use]
		ends := p.Expires()
		switch err := p.Failure(); {
		case err != nil:
			notes = append(notes, fmt.Sprintf("the certificate for %s cannot be read again or renewed: %v; the one in use expires on %s", use, err, moment(ends)))
		case ends.Before(soon):
			notes = append(notes, fmt.Sprintf("the certificate for %s expires on %s", use, moment(ends)))
		}
		if ends := firstExpiry(p.CAPEM()); !ends.IsZero() && ends.Before(soon) {
			notes = append(notes, fmt.Sprintf("the authority of the certificate for %s expires on %s", use, moment(ends)))
		}
	}
	return strings.Join(notes, "; ")
}

func moment(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" }

// Run reads the certificates again on every hangup, and every ten minutes, until ctx
// ends. After a failure those in use stay. more, unless nil, is called after every
// hangup.
func (c *Certificates) Run(ctx context.Context, hangups <-chan os.Signal, more func()) error {
	again := time.NewTicker(certificateInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			clear(c.told) // an operator looks at the log now
			for _, use := range c.uses {
				if c.reload(use) {
					c.log.Info("reloaded the certificates", "for", use, "expires", c.pkis[use].Expires())
				}
			}
			if more != nil {
				more()
			}
		case <-again.C:
			for _, use := range c.uses {
				before, authorities := c.pkis[use].Expires(), c.pkis[use].CAPEM()
				if c.reload(use) && (!c.pkis[use].Expires().Equal(before) || !bytes.Equal(c.pkis[use].CAPEM(), authorities)) {
					c.log.Info("the certificates have changed", "for", use, "expires", c.pkis[use].Expires())
				}
			}
		}
	}
}

// reload reads the certificate for a use again, and reports whether that succeeded.
func (c *Certificates) reload(use string) bool {
	p := c.pkis[use]
	err := p.Reload()
	if err == nil {
		delete(c.told, use)
		return true
	}
	if now := c.now(); now.Sub(c.told[use]) >= failureInterval {
		c.told[use] = now
		c.log.Error("cannot read the certificate again or renew it: the one in use stays", "for", use, "error", err, "expires", p.Expires())
	}
	return false
}
