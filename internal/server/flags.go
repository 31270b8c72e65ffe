package server

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"meridian/internal/pki"
)

// StopTimeout bounds how long running calls may take at a stop: what is not
// finished by then is cut off. It leaves the rest of ten seconds for what comes
// after, such as closing the log.
const StopTimeout = 6 * time.Second

// The values of --environment.
const (
	EnvironmentUniversal  = "universal"
	EnvironmentKubernetes = "kubernetes"
)

// The values of --read-access (§6.1).
const (
	ReadAccessAll     = "all"
	ReadAccessGranted = "granted"
)

// Options are the settings that the global and the zone have in common.
type Options struct {
	// DataDir holds everything the server keeps. Required.
	DataDir string
	// GRPCAddr and HTTPAddr are host:port; port 0 means any free port.
	GRPCAddr string
	HTTPAddr string
	// WebhookAddr is the host:port of the admission webhook, which is off when it
	// is empty. WebhookHosts are the names by which the API server of Kubernetes
	// calls it, for the generated certificate.
	WebhookAddr  string
	WebhookHosts []string
	// WebhookClientCA is a file with the authorities of the clients that may call
	// WebhookAddr. It is required, unless WebhookAllowAnyClient lets every client call it.
	WebhookClientCA       string
	WebhookAllowAnyClient bool
	// AdvertiseAddr is the host:port by which others reach GRPCAddr, the bound one
	// when empty.
	AdvertiseAddr string
	// CertFile and KeyFile replace the generated server certificate.
	CertFile string
	KeyFile  string
	// CAFile is the authority that signed CertFile, handed to clients.
	CAFile string
	// LocalhostIsAdmin makes a caller from loopback without credentials the user
	// admin (§6.6).
	LocalhostIsAdmin bool
	// DefaultAccess is one of the DefaultAccess values; empty is auto (§6.5).
	DefaultAccess string
	// ReadAccess is one of the ReadAccess values; empty is all (§6.1).
	ReadAccess string
	// Environment is "universal" or "kubernetes": it decides which groups the
	// default access rules name (§6.5).
	Environment string
	// EncryptionKeyFile is a file with the keys of what is on disk; empty: it is not
	// encrypted.
	EncryptionKeyFile string
	// AdminContextFile is the client context with the admin token, DIR/admin.yaml when
	// empty. Where the data directory is encrypted, that one is without the token.
	AdminContextFile string
	// ReissueAdminToken replaces the bootstrap admin token at the start.
	ReissueAdminToken bool
	// History is which contents of old revisions are kept. The servers of a cluster keep
	// what their leader was started with.
	History   HistoryOptions
	Limits    LimitOptions
	Audit     AuditOptions
	LogLevel  string
	LogFormat string
}

// Bind defines the flags of the options, with the given default addresses.
func (o *Options) Bind(flags *pflag.FlagSet, grpcAddr, httpAddr string) {
	flags.String(ConfigFlag, "", "YAML file of settings, keyed by flag name")
	flags.StringVar(&o.DataDir, "data-dir", "", "directory that holds everything this server keeps (required)")
	flags.StringVar(&o.GRPCAddr, "grpc-addr", grpcAddr, "host:port of the gRPC API; port 0 is any free port")
	flags.StringVar(&o.HTTPAddr, "http-addr", httpAddr, "host:port of health and metrics, plain HTTP")
	flags.StringVar(&o.WebhookAddr, "webhook-addr", "", "host:port of the admission webhook for Kubernetes, HTTPS, customarily port 5443; off when empty")
	flags.StringSliceVar(&o.WebhookHosts, "webhook-host", nil, "names by which Kubernetes calls --webhook-addr, such as meridian-webhook.meridian-system.svc, for the generated certificate")
	flags.StringVar(&o.WebhookClientCA, "webhook-client-ca", "", "PEM certificates of the authorities whose clients may call --webhook-addr; read again for every connection")
	flags.BoolVar(&o.WebhookAllowAnyClient, "webhook-allow-any-client", false, "answer every client that reaches --webhook-addr, without --webhook-client-ca (insecure)")
	flags.StringVar(&o.AdvertiseAddr, "advertise-addr", "", "host:port by which clients and zones reach --grpc-addr, where that is not what they should dial")
	flags.StringVar(&o.CertFile, "cert-file", "", "PEM certificate of the gRPC API, in place of the generated one")
	flags.StringVar(&o.KeyFile, "key-file", "", "PEM key of --cert-file")
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM certificate of the authority that signed --cert-file, handed to clients")
	flags.BoolVar(&o.LocalhostIsAdmin, "localhost-is-admin", true, "treat a caller from loopback without credentials as the user admin")
	flags.StringVar(&o.DefaultAccess, "default-access", DefaultAccessAuto, "auto, open or restricted: whether a binding that makes every caller an administrator is written on first start and accepted later; auto does so while every listener is on loopback")
	flags.StringVar(&o.ReadAccess, "read-access", ReadAccessAll, "all or granted: who reads what is no secret, every authenticated user, or users to whom a role grants READ or another access to it")
	flags.StringVar(&o.Environment, "environment", EnvironmentUniversal, "universal or kubernetes: kubernetes adds its own groups to the default access rules, on first start")
	o.History.bind(flags)
	o.Limits.bind(flags)
	flags.StringVar(&o.EncryptionKeyFile, "encryption-key-file", "", "file with the keys of everything secret that this server keeps on disk and of backups: 32 bytes in base64 a line, the first encrypts, all decrypt; nothing is encrypted when empty")
	flags.StringVar(&o.AdminContextFile, "admin-context-file", "", "file for the client context with the admin token, mode 0600, beside the contexts that it has; when empty, admin.yaml in --data-dir, without the token where --encryption-key-file encrypts that")
	flags.BoolVar(&o.ReissueAdminToken, "reissue-admin-token", false, "at this start, replace the bootstrap admin token and revoke the one before; for when no administrator's token is left")
	o.Audit.bind(flags)
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&o.LogFormat, "log-format", "text", "text or json")
}

// Validate reports the first setting that cannot work, as a *UsageError.
func (o *Options) Validate() error {
	switch {
	case o.DataDir == "":
		return usagef("--data-dir is required: the directory that holds everything this server keeps")
	case o.Environment != "" && o.Environment != EnvironmentUniversal && o.Environment != EnvironmentKubernetes:
		return usagef("--environment %q: write %s or %s", o.Environment, EnvironmentUniversal, EnvironmentKubernetes)
	case !slices.Contains([]string{"", DefaultAccessAuto, DefaultAccessOpen, DefaultAccessRestricted}, o.DefaultAccess):
		return usagef("--default-access %q: write %s, %s or %s", o.DefaultAccess, DefaultAccessAuto, DefaultAccessOpen, DefaultAccessRestricted)
	case !slices.Contains([]string{"", ReadAccessAll, ReadAccessGranted}, o.ReadAccess):
		return usagef("--read-access %q: write %s or %s", o.ReadAccess, ReadAccessAll, ReadAccessGranted)
	case o.AdvertiseAddr != "" && !hasPort(o.AdvertiseAddr):
		return usagef("--advertise-addr %s: write host:port", o.AdvertiseAddr)
	case (o.CertFile == "") != (o.KeyFile == ""):
		return usagef("--cert-file and --key-file go together")
	case len(o.WebhookHosts) > 0 && o.WebhookAddr == "":
		return usagef("--webhook-host goes with --webhook-addr")
	case len(o.WebhookHosts) > 0 && o.CertFile != "":
		return usagef("--webhook-host is for the generated certificate; that of --cert-file brings its own names")
	case o.WebhookClientCA != "" && o.WebhookAddr == "":
		return usagef("--webhook-client-ca goes with --webhook-addr")
	case o.WebhookAllowAnyClient && (o.WebhookAddr == "" || o.WebhookClientCA != ""):
		return usagef("--webhook-allow-any-client goes with --webhook-addr, without --webhook-client-ca")
	case o.WebhookAddr != "" && o.WebhookClientCA == "" && !o.WebhookAllowAnyClient:
		return usagef("--webhook-addr would answer every client that reaches it: name the CA of the API server's client certificate with --webhook-client-ca, or accept every client with --webhook-allow-any-client")
	case o.AdminContextFile != "" && within(o.DataDir, o.AdminContextFile):
		return usagef("--admin-context-file %s is in the data directory: name a file elsewhere, or omit the flag", o.AdminContextFile)
	case o.CAFile != "" && o.CertFile == "":
		return usagef("--ca-file goes with --cert-file and --key-file")
	}
	if err := o.History.validate(); err != nil {
		return err
	}
	if err := o.Limits.validate(); err != nil {
		return err
	}
	if err := o.Audit.validate(); err != nil {
		return err
	}
	given := pki.Config{CertFile: o.CertFile, KeyFile: o.KeyFile, CAFile: o.CAFile, Now: time.Now}
	if err := pki.CheckGiven(given); err != nil {
		return usagef("--cert-file: %w", err)
	}
	if authorities := o.WebhookClients(); authorities != nil {
		if _, err := authorities(); err != nil {
			return usagef("--webhook-client-ca: %w", err)
		}
	}
	return nil
}

// within reports whether a path is below a directory.
func within(dir, path string) bool {
	dir, errDir := filepath.Abs(dir)
	path, errPath := filepath.Abs(path)
	rest, err := filepath.Rel(dir, path)
	return errors.Join(errDir, errPath, err) == nil && filepath.IsLocal(rest)
}

// WebhookClients returns the function that reads the authorities of the webhook's
// clients; nil where every client may call it.
func (o *Options) WebhookClients() func() (*x509.CertPool, error) {
	if o.WebhookClientCA == "" {
		return nil
	}
	return func() (*x509.CertPool, error) { return pki.ReadAuthorities(o.WebhookClientCA) }
}

func hasPort(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && host != ""
}

// Advertised returns the host:port by which others reach the bound gRPC address.
// An unspecified host such as 0.0.0.0 cannot be dialed, so the name of this host
// stands for it.
func (o *Options) Advertised(bound string) string {
	if o.AdvertiseAddr != "" {
		return o.AdvertiseAddr
	}
	return Dialable(bound)
}

// Dialable puts the name of this host in place of an unspecified one, such as
// 0.0.0.0, which cannot be dialed.
func Dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || host != "" && (ip == nil || !ip.IsUnspecified()) {
		return addr
	}
	name, err := os.Hostname()
	if err != nil {
		return addr
	}
	return net.JoinHostPort(name, port)
}

// PrepareDataDir creates the data directory if it is missing and makes sure
// that it can be written.
func PrepareDataDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--data-dir %s: cannot be created: %w", dir, errors.Unwrap(err))
	}
	probe, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return fmt.Errorf("--data-dir %s: cannot be written: %w", dir, errors.Unwrap(err))
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}
