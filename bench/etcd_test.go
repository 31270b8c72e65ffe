package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"

	"meridian/internal/pki"
)

// etcd is a cluster of etcd servers, with TLS to clients and between servers, as
// a global has it.
type etcd struct {
	endpoints []string
	ca        []byte
}

// startEtcd starts n servers of the etcd found on PATH, with their data beside
// that of the servers they are compared with. It skips where there is none.
func startEtcd(b *testing.B, n int) *etcd {
	b.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		b.Skip("there is no etcd on PATH to compare with; install one (Debian: etcd-server) and run this again")
	}
	version, err := exec.CommandContext(b.Context(), program, "--version").Output()
	require.NoError(b, err)
	b.Logf("compared with %s", strings.ReplaceAll(strings.TrimSpace(string(version)), "\n", ", "))
	dir := b.TempDir()
	e := &etcd{ca: certify(b, dir)}
	peers := make([]string, n)
	for i := range n {
		e.endpoints = append(e.endpoints, freePort(b))
		peers[i] = freePort(b)
	}
	var cluster []string
	for i, peer := range peers {
		cluster = append(cluster, fmt.Sprintf("s%d=https://%s", i, peer))
	}
	in := func(file string) string { return filepath.Join(dir, file) }
	for i := range n {
		log, err := os.Create(in(fmt.Sprintf("s%d.log", i)))
		require.NoError(b, err)
		cmd := exec.Command(program, "--name", fmt.Sprintf("s%d", i), "--data-dir", in(fmt.Sprintf("s%d", i)),
			"--listen-client-urls", "https://"+e.endpoints[i], "--advertise-client-urls", "https://"+e.endpoints[i],
			"--listen-peer-urls", "https://"+peers[i], "--initial-advertise-peer-urls", "https://"+peers[i],
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--cert-file", in("server.pem"), "--key-file", in("server-key.pem"),
			"--peer-cert-file", in("server.pem"), "--peer-key-file", in("server-key.pem"),
			"--peer-trusted-ca-file", in("ca.pem"), "--peer-client-cert-auth")
		cmd.Stdout, cmd.Stderr = log, log
		require.NoError(b, cmd.Start())
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
			if b.Failed() {
				text, _ := os.ReadFile(log.Name())
				b.Logf("the log of etcd s%d ends with\n%s", i, text[max(0, len(text)-2000):])
			}
			_ = log.Close()
		})
	}
	e.await(b)
	return e
}

// certify writes an authority and a certificate for loopback into dir, of the
// kind that a global makes for itself, and returns the authority.
func certify(b *testing.B, dir string) []byte {
	b.Helper()
	ca, err := pki.NewCA(time.Now())
	require.NoError(b, err)
	cert, key, err := ca.IssueServer("etcd", pki.ServerHosts("", []string{"127.0.0.1:1"}, nil), time.Now())
	require.NoError(b, err)
	for name, data := range map[string][]byte{"ca.pem": ca.CertificatePEM(), "server.pem": cert, "server-key.pem": key} {
		require.NoError(b, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return ca.CertificatePEM()
}

// freePort returns a loopback address without a listener.
func freePort(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// await waits until every server takes a write.
func (e *etcd) await(b *testing.B) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	for i := range e.endpoints {
		put := e.writer(b, i)
		for {
			err := put(ctx, []byte("ready"), []byte("yes"))
			if err == nil {
				break
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				require.NoError(b, errors.Join(ctx.Err(), err))
			}
		}
	}
}

// writer connects to a server and returns what puts a value there. It speaks
// etcd's public API with a message made by hand: its client library would bring
// a hundred modules for two fields.
func (e *etcd) writer(b *testing.B, server int) func(ctx context.Context, key, value []byte) error {
	b.Helper()
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: e.ca, Source: "etcd"})
	require.NoError(b, err)
	conn, err := grpc.NewClient(e.endpoints[server], grpc.WithTransportCredentials(transport))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return func(ctx context.Context, key, value []byte) error {
		request := protowire.AppendTag(nil, 1, protowire.BytesType)
		request = protowire.AppendBytes(request, key)
		request = protowire.AppendTag(request, 2, protowire.BytesType)
		request = protowire.AppendBytes(request, value)
		var response []byte
		return conn.Invoke(ctx, "/etcdserverpb.KV/Put", &request, &response, grpc.ForceCodec(rawCodec{}))
	}
}

// rawCodec passes messages through as they are on the wire.
type rawCodec struct{}

var _ encoding.Codec = rawCodec{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

func (rawCodec) Name() string { return "proto" }
