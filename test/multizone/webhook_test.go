//go:build multizone

package multizone

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// webhookHost is the name by which Kubernetes calls a service.
const webhookHost = "meridian-webhook.meridian-system.svc"

// ownersOnly leaves everything to administrators but what concerns the backend.
const ownersOnly = `
type: AccessRoleBinding
name: default
subjects: [{type: Group, name: mesh-system:admin}]
roles: [admin]
---
type: AccessRole
name: backend-owner
rules:
- types: [TrafficPermission]
  mesh: default
  access: [CREATE, UPDATE, DELETE]
  when: [{destinations: {match: {kuma.io/service: backend}}}]
---
type: AccessRoleBinding
name: backend-owners
subjects: [{type: User, name: backend-owner}]
roles: [backend-owner]
`

// admits asks a server's admission webhook, as the API server of Kubernetes
// would, whether a user may create a TrafficPermission for a service. It returns
// the code of the refusal, 0 for none, and its message.
func (p *process) admits(user, group, service string) (int, string) {
	p.t.Helper()
	authority, err := os.ReadFile(filepath.Join(p.dir, "pki", "ca.pem"))
	require.NoError(p.t, err)
	pool := x509.NewCertPool()
	require.True(p.t, pool.AppendCertsFromPEM(authority))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: webhookHost}}
	defer transport.CloseIdleConnections()
	review := fmt.Sprintf(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
		"uid": "4c1d", "operation": "CREATE", "name": "web-to-backend",
		"kind": {"group": "kuma.io", "version": "v1alpha1", "kind": "TrafficPermission"},
		"userInfo": {"username": %q, "groups": [%q]},
		"object": {"apiVersion": "kuma.io/v1alpha1", "kind": "TrafficPermission", "mesh": "default",
			"metadata": {"name": "web-to-backend"},
			"spec": {"sources": [{"match": {"kuma.io/service": "web"}}], "destinations": [{"match": {"kuma.io/service": %q}}]}}}}`,
		user, group, service)
	r, err := (&http.Client{Transport: transport, Timeout: patience}).Post(
		"https://"+p.addresses()["webhook"]+"/validate?timeout=10s", "application/json", bytes.NewReader([]byte(review)))
	require.NoError(p.t, err)
	defer r.Body.Close()
	require.Equal(p.t, http.StatusOK, r.StatusCode)
	var answer struct {
		Response struct {
			UID     string
			Allowed bool
			Status  struct {
				Code    int
				Message string
			}
		}
	}
	require.NoError(p.t, json.NewDecoder(r.Body).Decode(&answer))
	require.Equal(p.t, "4c1d", answer.Response.UID)
	require.Equal(p.t, answer.Response.Allowed, answer.Response.Status.Code == 0)
	return answer.Response.Status.Code, answer.Response.Status.Message
}

// §6.9, §6.11: the walk-through with users of Kubernetes, against a
// global, and against a zone of it with rules of its own (§6.5, §6.10).
func TestAdmissionWebhook(t *testing.T) {
	flags := []string{"--webhook-addr", anyPort, "--webhook-allow-any-client", "--webhook-host", webhookHost, "--environment", "kubernetes"}
	global := newGlobal(t, flags...).start().ready()
	code, _ := global.admits("any-user", "system:authenticated", "backend")
	require.Zero(t, code, "at first every user may do everything")
	code, _ = global.admits("any-user", "dev", "backend")
	require.Equal(t, http.StatusForbidden, code, "but by the groups that Kubernetes names, and no other")

	global.mustWith(ownersOnly, "apply", "-f", "-")
	code, _ = global.admits("backend-owner", "system:authenticated", "backend")
	require.Zero(t, code)
	code, message := global.admits("backend-owner", "system:authenticated", "not-backend")
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, message, `Access Denied (user "backend-owner/system:authenticated" cannot access the resource)`)
	require.Contains(t, message, `missing: CREATE on TrafficPermission "web-to-backend" in mesh "default"`)

	zone := newZone(t, global, "east", flags...).start().ready()
	code, _ = zone.admits("kubernetes-admin", "system:masters", "backend")
	require.Zero(t, code, "administrators of the cluster are the zone's")
	code, _ = zone.admits("backend-owner", "system:authenticated", "backend")
	require.Equal(t, http.StatusForbidden, code, "what the global grants, a zone does not know")

	require.NoError(t, global.cmd.Process.Signal(syscall.SIGHUP))
	code, _ = global.admits("backend-owner", "system:authenticated", "backend")
	require.Zero(t, code, "reading the certificates again interrupts nothing")
	require.Zero(t, zone.stop())
	require.Zero(t, global.stop())
	record, err := os.ReadFile(filepath.Join(global.dir, "audit", "kubernetes.log"))
	require.NoError(t, err)
	require.Contains(t, string(record), `"who":{"name":"backend-owner","groups":["system:authenticated"],"source":"kubernetes"}`,
		"a denial is in the record")
}
