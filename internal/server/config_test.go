package server

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"meridian/internal/clientconfig"
	"meridian/internal/pki"
)

func parse(t *testing.T, file string, env []string, args ...string) (*Options, error) {
	t.Helper()
	flags := pflag.NewFlagSet("meridian-test", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var o Options
	o.Bind(flags, "127.0.0.1:1", "127.0.0.1:2")
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		args = append(args, "--config", path)
	}
	return &o, ParseFlags(flags, args, "MERIDIAN_TEST_", env)
}

func TestSettingsPrecedence(t *testing.T) {
	file := "grpc-addr: file:1\nhttp-addr: file:2\ndata-dir: file\nlocalhost-is-admin: false\n"
	env := []string{"MERIDIAN_TEST_GRPC_ADDR=env:1", "MERIDIAN_TEST_HTTP_ADDR=env:2", "OTHER=x"}
	o, err := parse(t, file, env, "--grpc-addr", "flag:1")
	require.NoError(t, err)
	require.Equal(t, "flag:1", o.GRPCAddr, "a flag goes before the environment")
	require.Equal(t, "env:2", o.HTTPAddr, "the environment goes before the file")
	require.Equal(t, "file", o.DataDir, "the file goes before the default")
	require.False(t, o.LocalhostIsAdmin)
	require.Equal(t, "info", o.LogLevel, "the default is left")
}

func TestConfigFileIsNamedByTheEnvironmentToo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte("log-level: debug\n"), 0o600))
	o, err := parse(t, "", []string{"MERIDIAN_TEST_CONFIG=" + path})
	require.NoError(t, err)
	require.Equal(t, "debug", o.LogLevel)
}

func TestSettingsThatAreRefused(t *testing.T) {
	tests := map[string]struct {
		file string
		env  []string
		args []string
		want string
	}{
		"unknown flag":       {args: []string{"--data-dri", "x"}, want: `unknown flag --data-dri; did you mean "data-dir"?`},
		"argument":           {args: []string{"x"}, want: `unexpected argument "x"`},
		"environment value":  {env: []string{"MERIDIAN_TEST_LOCALHOST_IS_ADMIN=perhaps"}, want: `MERIDIAN_TEST_LOCALHOST_IS_ADMIN: "perhaps" is not a value of --localhost-is-admin (bool)`},
		"setting":            {file: "grpc-adr: x\n", want: `there is no setting "grpc-adr"; did you mean "grpc-addr"?`},
		"file in itself":     {file: "config: x\n", want: `there is no setting "config"`},
		"not a map":          {file: "- a\n", want: "not a YAML map of settings"},
		"nested":             {file: "data-dir: {a: b}\n", want: "data-dir: expected a string, number, boolean or list"},
		"file value":         {file: "localhost-is-admin: maybe\n", want: `"maybe" is not a value of this setting (bool)`},
		"file not there":     {args: []string{"--config", "/does/not/exist"}, want: "--config: there is no file /does/not/exist"},
		"written twice":      {file: "data-dir: a\ndata-dir: b\n", want: "not a YAML map of settings"},
		"flag without value": {args: []string{"--data-dir"}, want: "flag needs an argument: --data-dir"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tt.file, tt.env, tt.args...)
			var usage *UsageError
			require.ErrorAs(t, err, &usage)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestDataDirIsRequired(t *testing.T) {
	o, err := parse(t, "", nil)
	require.NoError(t, err)
	require.ErrorContains(t, o.Validate(), "--data-dir is required")
	o.DataDir, o.KeyFile = "x", "y"
	require.ErrorContains(t, o.Validate(), "go together")
	o.KeyFile, o.AdvertiseAddr = "", "host-without-port"
	require.ErrorContains(t, o.Validate(), "--advertise-addr host-without-port: write host:port")
}

func TestAdvertisedAddress(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	o := &Options{}
	require.Equal(t, "127.0.0.1:1", o.Advertised("127.0.0.1:1"))
	require.Equal(t, host+":1", o.Advertised("0.0.0.0:1"), "an unspecified host cannot be dialed")
	require.Equal(t, host+":1", o.Advertised("[::]:1"))
	o.AdvertiseAddr = "global.example:5685"
	require.Equal(t, "global.example:5685", o.Advertised("0.0.0.0:1"))
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, err = Listen("grpc-addr", l.Addr().String())
	require.EqualError(t, err, "--grpc-addr "+l.Addr().String()+": the port is in use by another process; choose another, or 0 for any free one")
	_, err = Listen("http-addr", "nonsense")
	var usage *UsageError
	require.ErrorAs(t, err, &usage)
}

func TestPrepareDataDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, PrepareDataDir(file), "--data-dir "+file)
	dir := filepath.Join(t.TempDir(), "a", "b")
	require.NoError(t, PrepareDataDir(dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "the probe leaves nothing behind")
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), "its owner alone reads it")
}

func TestHealthEndpoints(t *testing.T) {
	var failing error
	h := NewHealth(discard(t), prometheus.NewRegistry(),
		Check{Name: "store", Ready: func() error { return nil }}, Check{Name: "leader", Ready: func() error { return failing }})
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	code, body := get("/readyz?verbose")
	require.Equal(t, 200, code)
	require.Equal(t, "[+] store\n[+] leader\nok\n", body)
	failing = errors.New("no leader is known")
	code, body = get("/readyz")
	require.Equal(t, 503, code)
	require.Equal(t, "[-] leader: no leader is known\n", body)
	code, _ = get("/livez")
	require.Equal(t, 200, code, "a server that is not ready is alive")
	code, _ = get("/metrics")
	require.Equal(t, 200, code)
	code, _ = get("/")
	require.Equal(t, 404, code)
}

func TestLoggerSettings(t *testing.T) {
	_, err := NewLogger(io.Discard, "loud", "text")
	require.ErrorContains(t, err, "none of debug, info, warn, error")
	_, err = NewLogger(io.Discard, "info", "xml")
	require.ErrorContains(t, err, "neither text nor json")
	var out strings.Builder
	log, err := NewLogger(&out, "warn", "json")
	require.NoError(t, err)
	log.Info("quiet")
	log.Warn("heard")
	require.Contains(t, out.String(), `"msg":"heard"`)
	require.NotContains(t, out.String(), "quiet")
}

func TestWriteFileReplacesAtomically(t *testing.T) {
	path := filepath.Join(t.TempDir(), AddressesFile)
	require.NoError(t, WriteAddresses(filepath.Dir(path), Addresses{GRPC: "127.0.0.1:1", HTTP: "127.0.0.1:2"}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"grpc": "127.0.0.1:1", "http": "127.0.0.1:2"}`, string(data))
	require.NoError(t, RemoveAddresses(filepath.Dir(path)))
	require.NoError(t, RemoveAddresses(filepath.Dir(path)), "removing twice is fine")
}

func discard(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.DiscardHandler)
}

func TestListeners(t *testing.T) {
	l, err := OpenListeners(Options{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
	require.NoError(t, err)
	require.Nil(t, l.Webhook, "the webhook is off unless it has an address")
	require.Empty(t, l.Addresses().Webhook)
	require.NoError(t, l.Close())

	l, err = OpenListeners(Options{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", WebhookAddr: "127.0.0.1:0"})
	require.NoError(t, err)
	taken := l.Addresses()
	require.NotEmpty(t, taken.Webhook)
	_, err = OpenListeners(Options{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", WebhookAddr: taken.Webhook})
	require.ErrorContains(t, err, "--webhook-addr "+taken.Webhook+": the port is in use")
	require.NoError(t, l.Close())
}

func TestWebhookHostsAreForTheGeneratedCertificate(t *testing.T) {
	o, err := parse(t, "", nil, "--data-dir", "x", "--webhook-host", "a.svc,b.svc")
	require.NoError(t, err)
	require.Equal(t, []string{"a.svc", "b.svc"}, o.WebhookHosts)
	require.ErrorContains(t, o.Validate(), "--webhook-host goes with --webhook-addr")
	o.WebhookAddr = ":5443"
	require.ErrorContains(t, o.Validate(), "name the CA of the API server's client certificate with --webhook-client-ca, or accept every client with --webhook-allow-any-client")
	o.WebhookAllowAnyClient = true
	require.NoError(t, o.Validate())
	o.CertFile, o.KeyFile = "c", "k"
	require.ErrorContains(t, o.Validate(), "brings its own names")
}

func TestAuthoritiesOfTheWebhooksClients(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clients.pem")
	o, err := parse(t, "", nil, "--data-dir", "x", "--webhook-client-ca", file)
	require.NoError(t, err)
	require.ErrorContains(t, o.Validate(), "--webhook-client-ca goes with --webhook-addr")
	o.WebhookAddr = ":5443"
	require.ErrorContains(t, o.Validate(), "--webhook-client-ca: loading the authorities of clients: open "+file)
	require.NoError(t, os.WriteFile(file, []byte("no PEM"), 0o600))
	require.ErrorContains(t, o.Validate(), file+" has no PEM certificate")
	ca, err := pki.NewCA(time.Now())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, ca.CertificatePEM(), 0o600))
	require.NoError(t, o.Validate())
	require.NotNil(t, o.WebhookClients())
	o.WebhookAllowAnyClient = true
	require.ErrorContains(t, o.Validate(), "--webhook-allow-any-client goes with --webhook-addr, without --webhook-client-ca")
	o.WebhookClientCA = ""
	require.Nil(t, o.WebhookClients())
}

func TestGivenCertificateIsLookedAtFirst(t *testing.T) {
	dir := t.TempDir()
	o, err := parse(t, "", nil, "--data-dir", filepath.Join(dir, "data"), "--cert-file", filepath.Join(dir, "no.crt"), "--key-file", filepath.Join(dir, "no.key"))
	require.NoError(t, err)
	err = o.Validate()
	var usage *UsageError
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "--cert-file: loading the server's certificate: open "+filepath.Join(dir, "no.crt"))
	require.NotContains(t, err.Error(), "\n", "one line")
	require.NoDirExists(t, o.DataDir)
}

func TestCheckFree(t *testing.T) {
	l, err := Listen("raft-addr", "127.0.0.1:0")
	require.NoError(t, err)
	require.ErrorContains(t, CheckFree("raft-addr", l.Addr().String()), "--raft-addr "+l.Addr().String()+": the port is in use")
	require.NoError(t, l.Close())
	require.NoError(t, CheckFree("raft-addr", l.Addr().String()))
}

// 0.0.0.0, which a server may be bound to, cannot be dialed.
func TestAdminContextCanBeDialled(t *testing.T) {
	dir := t.TempDir()
	host, err := os.Hostname()
	require.NoError(t, err)
	for bound, want := range map[string]string{
		"[::]:5685": net.JoinHostPort(host, "5685"), "0.0.0.0:5685": net.JoinHostPort(host, "5685"), "10.0.0.1:5685": "10.0.0.1:5685",
	} {
		require.NoError(t, AdminContext{Path: filepath.Join(dir, AdminContextFile), Name: "one", Address: bound, Token: "t", Alone: true}.Write())
		contexts, err := clientconfig.LoadContexts(filepath.Join(dir, AdminContextFile))
		require.NoError(t, err)
		require.Equal(t, []string{want}, contexts.ControlPlanes[0].Addresses)
	}
}

// The context of a server lists the others, keeps them over a start at which they are
// not known yet, and forgets those that are gone.
func TestAdminContextListsTheServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), AdminContextFile)
	ca, err := pki.NewCA(time.Now())
	require.NoError(t, err)
	write := func(change func(*AdminContext), want ...string) {
		t.Helper()
		c := AdminContext{Path: path, Name: "one", Address: "10.0.0.1:5685", CA: ca.CertificatePEM(), Token: "t"}
		change(&c)
		require.NoError(t, c.Write())
		contexts, err := clientconfig.LoadContexts(path)
		require.NoError(t, err)
		entry, err := contexts.Get("")
		require.NoError(t, err)
		require.Equal(t, "one", entry.Name)
		require.Equal(t, append([]string{"10.0.0.1:5685"}, want...), entry.AllServers())
	}
	all := []string{"10.0.0.3:5685", "10.0.0.1:5685", "10.0.0.2:5685"}
	write(func(*AdminContext) {})
	write(func(c *AdminContext) { c.Servers = all[:2] }, "10.0.0.3:5685")
	write(func(c *AdminContext) { c.Servers = all }, "10.0.0.2:5685", "10.0.0.3:5685")
	write(func(*AdminContext) {}, "10.0.0.2:5685", "10.0.0.3:5685")
	write(func(c *AdminContext) { c.Servers = all; c.Operators = true }, "10.0.0.2:5685", "10.0.0.3:5685")
	write(func(c *AdminContext) { c.Servers = all[1:2] })
	write(func(c *AdminContext) { c.Servers = all }, "10.0.0.2:5685", "10.0.0.3:5685")
	write(func(c *AdminContext) { c.Alone, c.Servers = true, all })
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	write(func(c *AdminContext) { c.Servers = all }, "10.0.0.2:5685", "10.0.0.3:5685")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.Error(t, AdminContext{Path: path, Name: "one", Address: "10.0.0.1:5685", Operators: true}.Write(), "what an operator wrote is not replaced")
}
