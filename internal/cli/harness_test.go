package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
)

// harness runs commands against a fake server.
type harness struct {
	t      *testing.T
	server *clitest.Server
	// address is the server's, caFile and config are files for it.
	address, caFile, config string
	home                    string
	// granted decides by the roles that serveRoles was given.
	granted *authz.Authorizer
	env     []string
	tls     *tls.Config
	stop    func()
	// later is added to the clock of commands, in nanoseconds.
	later atomic.Int64
	// fleetBudget is how long apply asks zones: longer than answers take.
	fleetBudget time.Duration
	// lossBudget is how long is waited for what a change takes away.
	lossBudget time.Duration
	// partResources bounds a batch of apply --in-batches, unless zero.
	partResources int
	// terminal is the standard input, in place of a text.
	terminal io.Reader
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessOf(t, func(*clitest.Server) {})
}

// newHarnessOf is newHarness with a server that is prepared before it serves.
func newHarnessOf(t *testing.T, prepare func(*clitest.Server)) *harness {
	t.Helper()
	h := &harness{t: t, server: clitest.New(), home: t.TempDir(), fleetBudget: time.Minute, lossBudget: time.Minute}
	now := time.Now()
	ca, err := pki.NewCA(now)
	require.NoError(t, err)
	cert, key, err := ca.IssueServer("fake", []string{"127.0.0.1"}, now)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	h.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	prepare(h.server)
	h.address, h.stop = h.server.Serve(t, h.tls)

	h.caFile = h.write("ca.pem", string(ca.CertificatePEM()))
	h.config = filepath.Join(h.home, "admin.yaml")
	contexts := &clientconfig.Contexts{}
	require.NoError(t, contexts.Add(clientconfig.ControlPlane{
		Name: "global", Addresses: []string{h.address}, CA: string(ca.CertificatePEM()), Token: "secret",
	}, false))
	require.NoError(t, contexts.Switch("global"))
	require.NoError(t, contexts.Save(h.config))
	h.env = []string{"HOME=" + h.home, "MERIDIAN_CONFIG=" + h.config}
	return h
}

// write makes a file in the harness's directory.
func (h *harness) write(name, content string) string {
	h.t.Helper()
	path := filepath.Join(h.home, name)
	require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(h.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// outcome is what a command did.
type outcome struct {
	code           int
	stdout, stderr string
}

func (h *harness) run(args ...string) outcome {
	h.t.Helper()
	return h.runWith(h.t.Context(), "", args...)
}

func (h *harness) runWith(ctx context.Context, stdin string, args ...string) outcome {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	a := newApp(strings.NewReader(stdin), &stdout, &stderr, parseEnvironment(h.env),
		func() time.Time { return clitest.Epoch.Add(10*time.Minute + time.Duration(h.later.Load())) })
	a.fleetBudget, a.lossBudget = h.fleetBudget, h.lossBudget
	if h.partResources > 0 {
		a.partResources = h.partResources
	}
	if h.terminal != nil {
		a.stdin = h.terminal
	}
	code := a.run(ctx, args)
	return outcome{code, stdout.String(), stderr.String()}
}

// ok runs a command that has to succeed and returns its output.
func (h *harness) ok(args ...string) string {
	h.t.Helper()
	out := h.run(args...)
	require.Equal(h.t, exit.OK, out.code, "meridian %s\n%s", strings.Join(args, " "), out.stderr)
	return out.stdout
}

// serveDocument makes the server answer every question with a document.
func (h *harness) serveDocument(document []byte) {
	h.server.Mu.Lock()
	defer h.server.Mu.Unlock()
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: document}, nil
	}
}

const (
	meshYAML = `type: Mesh
name: default
`
	// secretYAML is written without a plan: there is nothing that it could take away.
	secretYAML = `type: GlobalSecret
name: web-to-backend
data: c2VjcmV0
`
	webToBackend = `type: TrafficPermission
mesh: default
name: web-to-backend
sources:
  - match:
      kuma.io/service: web
destinations:
  - match:
      kuma.io/service: backend
`
	catchAllK8s = `apiVersion: kuma.io/v1alpha1
kind: TrafficPermission
mesh: default
metadata:
  name: catch-all
spec:
  sources:
    - match:
        kuma.io/service: '*'
  destinations:
    - match:
        kuma.io/service: '*'
`
)
