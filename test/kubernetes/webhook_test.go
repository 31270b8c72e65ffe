//go:build kubernetes

package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// host is the name by which the API server calls the Service of webhook.yaml.
const host = "meridian-webhook.meridian-system.svc"

const (
	deployed = "../../deploy/kubernetes/"
	decider  = "../../internal/service/webhook/testdata/roles.yaml"
)

// global is the control plane that is asked.
type global struct {
	c       *cluster
	dir     string
	webhook string // its address
	port    string // of it
	stop    func()
}

func newGlobal(c *cluster, webhook string) *global {
	c.t.Helper()
	_, port, err := net.SplitHostPort(webhook)
	require.NoError(c.t, err)
	g := &global{c: c, dir: c.path("global"), webhook: webhook, port: port}
	g.start()
	return g
}

// start follows the README, but for the addresses.
func (g *global) start() {
	g.c.t.Helper()
	_ = os.Remove(filepath.Join(g.dir, "addresses.json"))
	any := "127.0.0.1:0"
	g.stop = background(g.c.t, "meridian-global", filepath.Join(os.Getenv("MERIDIAN_BIN"), "meridian-global"), "--data-dir", g.dir,
		"--grpc-addr", any, "--http-addr", any, "--raft-addr", any, "--gossip-addr", any,
		"--webhook-addr", g.webhook, "--webhook-host", host, "--webhook-client-ca", g.c.path("ca.pem"), "--environment", "kubernetes")
	g.c.await("the global", func() bool {
		_, err := os.Stat(filepath.Join(g.dir, "addresses.json"))
		return err == nil
	})
}

// meridian runs the command as the administrator of the global.
func (g *global) meridian(in string, args ...string) string {
	g.c.t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv("MERIDIAN_BIN"), "meridian"), append([]string{"--config", filepath.Join(g.dir, "admin.yaml")}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	require.NoError(g.c.t, err, "meridian %s\n%s", strings.Join(args, " "), out)
	return string(out)
}

// configuration is webhook.yaml with the authority filled in as the README says.
// There are no pods to run the control plane in, so its Service leads to loopback.
func (g *global) configuration() string {
	g.c.t.Helper()
	authority, err := os.ReadFile(filepath.Join(g.dir, "pki", "ca.pem"))
	require.NoError(g.c.t, err)
	text, err := os.ReadFile(deployed + "webhook.yaml")
	require.NoError(g.c.t, err)
	replaced := string(text)
	for _, change := range [][2]string{
		{`caBundle: ""`, "caBundle: " + base64Of(authority)},
		{"\nspec:\n", "\nspec:\n  type: ExternalName\n  externalName: localhost\n"},
		{"        port: 443\n", "        port: " + g.port + "\n"},
	} {
		require.Equal(g.c.t, 1, strings.Count(replaced, change[0]), change[0])
		replaced = strings.Replace(replaced, change[0], change[1], 1)
	}
	return replaced
}

// step is something that a user does with kubectl, and what is seen of it.
type step struct {
	record string // the name of the one review that it causes; none counts without
	as     string
	args   string // of kubectl, between blanks
	in     string
	says   string // part of what kubectl prints
	denied bool
}

func TestWebhook(t *testing.T) {
	webhook := freePort(t)
	_, port, err := net.SplitHostPort(webhook)
	require.NoError(t, err)
	c := newCluster(t, host+":"+port)
	g := newGlobal(c, webhook)
	r := newRecorder(c)
	users := c.users()
	definitions, err := os.ReadFile(deployed + "definitions.yaml")
	require.NoError(t, err)
	c.must(c.admin, withSubresources(string(definitions))+unknownKind, "apply", "-f", "-")
	c.must(c.admin, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	c.must(c.admin, surroundings, "apply", "-f", "-")
	c.await("the definitions", func() bool { // and that they can be written to
		_, err := c.kubectl(c.admin, storedBefore(), "apply", "-f", "-")
		return err == nil
	})

	c.must(c.admin, "apiVersion: v1\nkind: Namespace\nmetadata: {name: meridian-system}\n", "apply", "-f", "-")
	c.must(c.admin, g.configuration()+"---"+r.configuration(c.ca.pem), "apply", "-f", "-")
	do := func(steps ...step) {
		t.Helper()
		for _, s := range steps {
			t.Run(s.record+"("+s.as+" "+s.args+")", func(t *testing.T) { c.see(t, r, users, s) })
		}
	}
	c.await("the webhooks", func() bool {
		_, err := c.kubectl(c.admin, permission("probe", "mesh: default", "sauce", "backend"), "create", "--dry-run=server", "-f", "-")
		return err != nil && len(r.take()) > 0
	})

	do(walkThrough()...)
	require.False(t, t.Failed())
	// The objects take effect where they are applied, as docs/kubernetes.md has it.
	g.meridian(c.must(c.admin, "", "get", "accessroles,accessrolebindings", "-o", "yaml"), "apply", "-f", "-")
	do(restricted()...)
	require.False(t, t.Failed())
	roles, err := os.ReadFile(decider)
	require.NoError(t, err)
	g.meridian(string(roles), "apply", "-f", "-")
	do(everythingElse()...)
	c.seeAnonymous(r)
	c.seeController(r)

	log, err := os.ReadFile(c.path("audit.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), `"access.meridian.kuma.io/granted-by":"rules[0] of AccessRole \"backend-owner\", through AccessRoleBinding \"backend-owners\" to user \"backend-owner\""`)

	// failurePolicy: Fail, and everything as before once a control plane answers again.
	g.stop()
	do(step{
		as: "backend-owner", args: "apply -f -", in: permission("web-to-backend", "mesh: default", "sources", "backend"),
		denied: true, says: `failed calling webhook "access.meridian.kuma.io"`,
	})
	g.start()
	do(step{as: "backend-owner", args: "apply -f -", in: permission("web-to-backend", "mesh: default", "sources", "backend"), says: "created"})
}

// see does a step and holds it to what is expected.
func (c *cluster) see(t *testing.T, r *recorder, users map[string]user, s step) {
	r.take()
	out, err := c.kubectl(users[s.as], s.in, strings.Fields(s.args)...)
	if s.denied {
		require.Error(t, err, out)
	} else {
		require.NoError(t, err, out)
	}
	require.Contains(t, out, s.says)
	if s.record == "" {
		return
	}
	reviews := r.take()
	require.Len(t, reviews, 1, out)
	save(t, s.record, reviews[0])
}

// seeAnonymous is a create by an anonymous user. kubectl insists on knowing who
// runs it, so this goes without.
func (c *cluster) seeAnonymous(r *recorder) {
	c.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(c.ca.cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	r.take()
	answer, err := (&http.Client{Transport: transport}).Post(c.server+"/apis/kuma.io/v1alpha1/trafficpermissions", "application/yaml",
		strings.NewReader(permission("web-to-backend", inDefault, "sources", "backend")))
	require.NoError(c.t, err)
	defer answer.Body.Close()
	require.Equal(c.t, http.StatusForbidden, answer.StatusCode)
	var status struct{ Reason, Message string }
	require.NoError(c.t, json.NewDecoder(answer.Body).Decode(&status))
	require.Equal(c.t, "Forbidden", status.Reason)
	require.Contains(c.t, status.Message, `user "system:anonymous/system:unauthenticated" cannot`)
	reviews := r.take()
	require.Len(c.t, reviews, 1)
	save(c.t, "create-anonymous", reviews[0])
}

// seeController lets the controller that cleans up after a namespace delete a
// dataplane in it (§6.5).
func (c *cluster) seeController(r *recorder) {
	c.t.Helper()
	c.must(c.admin, "apiVersion: v1\nkind: Namespace\nmetadata: {name: going}\n"+"---"+dataplane("web-1", "going", "default"), "apply", "-f", "-")
	r.take()
	c.must(c.admin, "", "delete", "namespace", "going", "--timeout=90s")
	reviews := r.take()
	require.Len(c.t, reviews, 1)
	require.Contains(c.t, reviews[0], `"username":"system:serviceaccount:kube-system:namespace-controller"`)
	save(c.t, "delete-by-controller", reviews[0])
}
