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
// directory: its address, its CA and, unless it is to be kept elsewhere, the admin
// token.
const AdminContextFile = "admin.yaml"

// WriteAdminContext writes the ready-made client context of a server that is
// bound to an address to a file, readable by its owner alone. In a file of the
// operator's, other entries stay.
func WriteAdminContext(path string, operators bool, name, address string, caPEM []byte, token string) error {
	contexts := &clientconfig.Contexts{}
	if operators {
		switch have, err := clientconfig.LoadContexts(path); {
		case err == nil:
			contexts = have
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("write the client context: %w", err)
		}
	}
	err := contexts.Add(clientconfig.ControlPlane{Name: name, Addresses: []string{Dialable(address)}, OneServer: true, CA: string(caPEM), Token: token}, true)
	if err == nil {
		contexts.Current = cmp.Or(contexts.Current, name)
		err = contexts.Save(path)
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
