package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"meridian/internal/atrest"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
	"meridian/internal/version"
)

// AdminContextFile is the client context that a server writes into its data
// directory: its address, those of the other servers, its CA and, unless it is to be
// kept elsewhere, the admin token.
const AdminContextFile = "admin.yaml"

// AdminContext is a client context that a server writes.
type AdminContext struct {
	// Path is the file. With Operators it is one of the operator's, where other entries
	// stay.
	Path      string
	Operators bool
	// Name of the server, the address that it is bound to, its authorities in PEM and
	// the admin token.
	Name, Address string
	CA            []byte
	Token         string
	// Alone: no other server serves the same. Servers are the addresses of all that do;
	// empty while they are not known: then those of the file stay.
	Alone   bool
	Servers []string
}

// Write writes the client context to its file, readable by its owner alone.
func (c AdminContext) Write() error {
	contexts := &clientconfig.Contexts{}
	have, err := clientconfig.LoadContexts(c.Path)
	switch {
	case c.Operators && err == nil:
		contexts = have
	case c.Operators && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write the client context: %w", err)
	}
	entry := clientconfig.ControlPlane{Name: c.Name, Addresses: []string{Dialable(c.Address)}, OneServer: c.Alone, CA: string(c.CA), Token: c.Token}
	if err == nil && !c.Alone {
		if before, err := have.Get(c.Name); err == nil {
			entry.Learned = before.Learned
		}
	}
	err = contexts.Add(entry.WithServers(c.Servers), true)
	if err == nil {
		contexts.Current = cmp.Or(contexts.Current, c.Name)
		err = contexts.Save(c.Path)
	}
	if err != nil {
		return fmt.Errorf("write the client context: %w", err)
	}
	return nil
}

// OpenPKI opens a server's certificates: those that the flags name, or those of
// the data directory, which are made on the first start.
// identity tells the server from others of its name, "" where nothing depends on
// that. Private keys are encrypted with keys.
func OpenPKI(o Options, keys *atrest.Keys, name, identity string, bound Addresses, now func() time.Time, log *slog.Logger) (*pki.PKI, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find out the name of this host: %w", err)
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("find out the addresses of this host: %w", err)
	}
	listen := append([]string{bound.GRPC, o.Advertised(bound.GRPC)}, o.WebhookHosts...)
	for _, more := range []string{bound.Webhook, bound.Raft} {
		if more != "" {
			listen = append(listen, more)
		}
	}
	return pki.Open(pki.Config{
		DataDir: o.DataDir, Encryption: keys, Name: name, Identity: identity, CertFile: o.CertFile, KeyFile: o.KeyFile, CAFile: o.CAFile, Now: now, Log: log,
		Hosts: pki.ServerHosts(hostname, listen, interfaces),
	})
}

// NewMetrics returns a registry with the metrics that every server has.
func NewMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "meridian_build_info", Help: "1, labelled with the running version.",
		ConstLabels: prometheus.Labels{"version": version.String(), "go": version.GoVersion()},
	})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
