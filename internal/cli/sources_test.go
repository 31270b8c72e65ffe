package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/exit"
	"meridian/internal/resource"
)

func TestDocumentsOfAURL(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/p.yaml", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(webToBackend)) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("#\n"), resource.MaxSourceBytes/2+1))
	})
	mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/moved", http.RedirectHandler("http://192.0.2.1/p.yaml", http.StatusFound))
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusFound))
	server := httptest.NewServer(mux)
	defer server.Close()
	h := newHarness(t)
	require.Equal(t, "1 document is valid\n", h.ok("validate", "-f", server.URL+"/p.yaml"))
	for path, want := range map[string]string{
		server.URL + "/missing":     "the server answered 404 Not Found",
		server.URL + "/large":       "more than 32 MiB",
		server.URL + "/empty":       "holds no resources",
		server.URL + "/moved":       "http:// is read from loopback only",
		server.URL + "/round":       "more than 5 redirections",
		"http://192.0.2.1/p.yaml":   "http:// is read from loopback only",
		"ftp://127.0.0.1/p.yaml":    "ftp:// is not supported: use https://",
		"http://127.0.0.1:1/p.yaml": "connection refused",
	} {
		out := h.run("validate", "-f", path)
		require.Equal(t, exit.Usage, out.code, path)
		require.Contains(t, out.stderr, want, path)
		require.Contains(t, out.stderr, path, "the message names the source")
	}
}

func TestDocumentsOfAKustomization(t *testing.T) {
	h := newHarness(t)
	h.write("k/kustomization.yaml", "resources: [p.yaml]\nnamePrefix: team-\n")
	h.write("k/p.yaml", catchAllK8s)
	require.Equal(t, "TrafficPermission/team-catch-all created\nrevision 1841\n", h.ok("apply", "-k", h.home+"/k"))
	out := h.run("apply", "-k", h.home)
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "-k "+h.home)
	require.Contains(t, out.stderr, "kustomization")
}

func TestDirectoriesAreReadWithWhatIsBelow(t *testing.T) {
	h := newHarness(t)
	h.write("d/a.yaml", webToBackend)
	h.write("d/below/b.yaml", strings.Replace(webToBackend, "name: web-to-backend", "name: other", 1))
	require.Equal(t, "2 documents are valid\n", h.ok("validate", "-R", "-f", h.home+"/d"))
	require.Equal(t, "2 documents are valid\n", h.ok("validate", "-f", h.home+"/d"))
	require.Equal(t, "1 document is valid\n", h.ok("validate", "-R=false", "-f", h.home+"/d"))
}
