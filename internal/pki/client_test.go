package pki

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
)

// The authorities in a file can be replaced while clients run: what counts is what the file
// has, or had last while it has none that can be used.
func TestAuthoritiesInAFileAreReplaced(t *testing.T) {
	before, after := openPKI(t, testPKI(t, t.TempDir(), time.Now())), openPKI(t, testPKI(t, t.TempDir(), time.Now()))
	path := filepath.Join(t.TempDir(), "ca.pem")
	write := func(content []byte) { require.NoError(t, os.WriteFile(path, content, 0o600)) }

	_, err := FileTransport(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	write(nil)
	_, err = FileTransport(path)
	require.EqualError(t, err, path+": the file is empty")
	write([]byte("no PEM"))
	_, err = FileTransport(path)
	require.EqualError(t, err, "there is no CA certificate in "+path)

	write(before.CAPEM())
	client, err := FileTransport(path)
	require.NoError(t, err)
	connect := func(to *PKI) error {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = credentials.NewTLS(to.ServerTLS()).ServerHandshake(theirs) // the client's error is looked at
			_ = theirs.Close()
		}()
		_, _, err := client.Clone().ClientHandshake(t.Context(), "localhost", ours)
		_ = ours.Close()
		<-done
		return err
	}
	require.NoError(t, connect(before))
	require.EqualError(t, connect(after), "connecting to localhost: the server's certificate is not signed by the CA in "+path)

	write(after.CAPEM())
	require.NoError(t, connect(after))
	require.Error(t, connect(before))

	for _, unusable := range []func(){func() { write(nil) }, func() { write([]byte("no PEM")) }, func() { require.NoError(t, os.Remove(path)) }} {
		unusable()
		require.NoError(t, connect(after))
	}
}
