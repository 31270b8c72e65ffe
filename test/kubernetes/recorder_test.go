//go:build kubernetes

package kubernetes

import (
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a second webhook beside the one under test. It is asked the same
// and more, says yes to everything, and keeps the questions as they came.
type recorder struct {
	mu   sync.Mutex
	kept []string
	url  string
}

func newRecorder(c *cluster) *recorder {
	c.t.Helper()
	r := &recorder{}
	c.pair("recorder", pkix.Name{CommonName: "recorder"}, "127.0.0.1")
	pair, err := tls.LoadX509KeyPair(c.path("recorder.pem"), c.path("recorder-key.pem"))
	require.NoError(c.t, err)
	s := httptest.NewUnstartedServer(r)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	c.t.Cleanup(s.Close)
	r.url = "https://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(s.Listener.Addr().(*net.TCPAddr).Port))
	return r
}

// configuration asks the recorder about all that happens to objects of kuma.io,
// and about what the configuration in deploy/kubernetes does not ask about.
func (r *recorder) configuration(authority []byte) string {
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: recorder
webhooks:
- name: recorder.example.com
  admissionReviewVersions: [v1]
  clientConfig: {url: %s/, caBundle: %s}
  failurePolicy: Fail
  sideEffects: None
  rules:
  - {apiGroups: [kuma.io], apiVersions: ["*"], operations: [CREATE, UPDATE, DELETE, CONNECT], resources: ["*/*"]}
  - {apiGroups: [""], apiVersions: [v1], operations: [CONNECT], resources: [pods/exec]}
  - {apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [secrets]}
  - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}
`, r.url, base64Of(authority))
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	var question struct{ Request struct{ UID string } }
	if err != nil || json.Unmarshal(body, &question) != nil {
		http.Error(w, "not a review", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.kept = append(r.kept, string(body))
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": %q, "allowed": true}}`, question.Request.UID)
}

// take returns the reviews since the last time.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.kept
	r.kept = nil
	return kept
}

// save writes a review down, in the order of its fields and with every one of
// them, where RECORD says.
func save(t *testing.T, name string, review string) {
	t.Helper()
	dir := os.Getenv("RECORD")
	if dir == "" {
		return
	}
	var text bytes.Buffer
	require.NoError(t, json.Indent(&text, []byte(review), "", "  "))
	text.WriteByte('\n')
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), text.Bytes(), 0o644))
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
