//go:build kubernetes

package kubernetes

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/test/processes"
)

// patience bounds every wait. Passing it means that what was waited for does not
// happen, not that the machine is slow.
const patience = 2 * time.Minute

// cluster is a Kubernetes without nodes.
type cluster struct {
	t      *testing.T
	dir    string
	ca     *authority
	server string // URL of the API server
	admin  user
}

// admission and credentials are those of the README.
const admission = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ValidatingAdmissionWebhook
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: WebhookAdmissionConfiguration
      kubeConfigFile: %s
`

const credentials = `
apiVersion: v1
kind: Config
users:
  - name: %s
    user: {client-certificate: %s, client-key: %s}
`

// user is a user of kubectl, by the flags that authenticate it.
type user []string

// newCluster starts etcd, the API server and the controllers that the walk-through
// of §6.11 needs. The API server shows a certificate to the webhook.
func newCluster(t *testing.T, webhook string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), ca: newAuthority(t)}
	c.write("ca.pem", c.ca.pem)
	c.write("ca-key.pem", keyPEM(t, c.ca.key))
	c.pair("server", pkix.Name{CommonName: "kube-apiserver"}, "127.0.0.1", "localhost")
	c.write("service-accounts.pem", keyPEM(t, newKey(t)))
	c.write("audit-policy.yaml", []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  resources: [{group: kuma.io}]\n- level: None\n"))

	c.pair("caller", pkix.Name{CommonName: "kube-apiserver"})
	c.write("admission.yaml", fmt.Appendf(nil, admission, c.path("webhooks.yaml")))
	c.write("webhooks.yaml", fmt.Appendf(nil, credentials, webhook, c.path("caller.pem"), c.path("caller-key.pem")))

	etcd, peer, secure := freePort(t), freePort(t), freePort(t)
	c.run("etcd", "server",
		"--data-dir", filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+etcd, "--advertise-client-urls", "http://"+etcd,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer)
	c.server = "https://" + secure
	_, port, err := net.SplitHostPort(secure)
	require.NoError(t, err)
	c.run("kube-apiserver", "kube-apiserver",
		"--etcd-servers", "http://"+etcd, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port,
		"--tls-cert-file", c.path("server.pem"), "--tls-private-key-file", c.path("server-key.pem"), "--client-ca-file", c.path("ca.pem"),
		"--service-account-issuer", c.server, "--service-account-key-file", c.path("service-accounts.pem"),
		"--service-account-signing-key-file", c.path("service-accounts.pem"), "--service-cluster-ip-range", "10.96.0.0/16",
		"--authorization-mode", "RBAC", "--admission-control-config-file", c.path("admission.yaml"), "--endpoint-reconciler-type", "none",
		"--audit-policy-file", c.path("audit-policy.yaml"), "--audit-log-path", c.path("audit.log"))
	c.admin = c.userWithCertificate("kubernetes-admin", "system:masters")
	c.await("the API server", func() bool {
		out, err := c.kubectl(c.admin, "", "get", "--raw", "/readyz")
		return err == nil && out == "ok"
	})
	c.write("controllers.yaml", []byte(strings.Join([]string{
		"apiVersion: v1", "kind: Config", "current-context: c", "contexts: [{name: c, context: {cluster: c, user: u}}]",
		"clusters: [{name: c, cluster: {server: '" + c.server + "', certificate-authority: " + c.path("ca.pem") + "}}]",
		"users: [{name: u, user: {client-certificate: " + c.path("kubernetes-admin.pem") + ", client-key: " + c.path("kubernetes-admin-key.pem") + "}}]", "",
	}, "\n")))
	c.run("kube-controller-manager", "kube-controller-manager",
		"--kubeconfig", c.path("controllers.yaml"), "--use-service-account-credentials", "--leader-elect=false", "--secure-port", "0",
		"--controllers", "namespace-controller,serviceaccount-controller,certificatesigningrequest-signing-controller",
		"--service-account-private-key-file", c.path("service-accounts.pem"),
		"--cluster-signing-cert-file", c.path("ca.pem"), "--cluster-signing-key-file", c.path("ca-key.pem"))
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) write(name string, content []byte) {
	c.t.Helper()
	require.NoError(c.t, os.WriteFile(c.path(name), content, 0o600))
}

// run starts a program of KUBERNETES_BIN until the test ends.
func (c *cluster) run(name, program string, args ...string) {
	c.t.Helper()
	background(c.t, name, filepath.Join(os.Getenv("KUBERNETES_BIN"), program), args...)
}

// background runs a program until the test ends, and returns what stops it
// earlier.
func background(t *testing.T, name, program string, args ...string) (stop func()) {
	t.Helper()
	var log bytes.Buffer
	process, err := processes.Start(&log, program, args...)
	require.NoError(t, err)
	stop = func() { process.End(syscall.SIGTERM) }
	t.Cleanup(func() {
		stop()
		if text := log.Bytes(); t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, text[max(0, len(text)-2000):])
		}
	})
	return stop
}

// await polls a condition of the world outside this process until it holds.
func (c *cluster) await(what string, holds func() bool) {
	c.t.Helper()
	require.Eventually(c.t, holds, patience, 50*time.Millisecond, "waiting for %s", what)
}

// kubectl runs a command as a user and returns what it prints, on either stream.
func (c *cluster) kubectl(as user, in string, args ...string) (string, error) {
	flags := append([]string{"--server", c.server, "--certificate-authority", c.path("ca.pem"), "--cache-dir", c.path("cache")}, as...)
	cmd := exec.Command(filepath.Join(os.Getenv("KUBERNETES_BIN"), "kubectl"), append(flags, args...)...)
	cmd.Env = []string{"HOME=" + c.dir, "KUBECONFIG=/dev/null", "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false"} // which would ask twice
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must is kubectl where nothing may go wrong.
func (c *cluster) must(as user, in string, args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(as, in, args...)
	require.NoError(c.t, err, "kubectl %s\n%s", strings.Join(args, " "), out)
	return out
}

// userWithCertificate is a user whom the cluster's authority names, and puts into
// groups, by a client certificate.
func (c *cluster) userWithCertificate(name string, groups ...string) user {
	c.t.Helper()
	file := strings.NewReplacer(":", "-", "@", "-").Replace(name)
	c.pair(file, pkix.Name{CommonName: name, Organization: groups})
	return user{"--client-certificate", c.path(file + ".pem"), "--client-key", c.path(file + "-key.pem")}
}

// userByRequest is a user with a certificate that the cluster was asked for, by
// the steps of the published walk-through (§6.11).
func (c *cluster) userByRequest(name string) user {
	c.t.Helper()
	key := newKey(c.t)
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	require.NoError(c.t, err)
	c.must(c.admin, fmt.Sprintf(`
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata:
  name: %s
spec:
  request: %s
  signerName: kubernetes.io/kube-apiserver-client
  usages:
  - client auth
`, name, base64Of(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))), "apply", "-f", "-")
	c.must(c.admin, "", "certificate", "approve", name)
	c.await("the certificate of "+name, func() bool {
		out := c.must(c.admin, "", "get", "csr", name, "-o", "go-template={{with .status.certificate}}{{base64decode .}}{{end}}")
		c.write(name+".pem", []byte(out))
		return out != ""
	})
	c.write(name+"-key.pem", keyPEM(c.t, key))
	return user{"--client-certificate", c.path(name + ".pem"), "--client-key", c.path(name + "-key.pem")}
}

// pair writes a certificate NAME.pem and its key NAME-key.pem: a server's where
// there are hosts, else a client's.
func (c *cluster) pair(name string, subject pkix.Name, hosts ...string) {
	c.t.Helper()
	key := newKey(c.t)
	c.write(name+".pem", c.ca.issue(c.t, subject, key.Public(), hosts...))
	c.write(name+"-key.pem", keyPEM(c.t, key))
}

// authority issues certificates for this one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func (a *authority) issue(t *testing.T, subject pkix.Name, key crypto.PublicKey, hosts ...string) []byte {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key, a.key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func keyPEM(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// freePort is an address on loopback without a listener.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return "127.0.0.1:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
