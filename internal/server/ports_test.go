package server

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that may have any port takes the one that others know it by.
func TestPortsOfTheLastRunAreTakenAgain(t *testing.T) {
	dir := t.TempDir()
	o := Options{DataDir: dir, GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", WebhookAddr: "127.0.0.1:0"}
	first, err := OpenListeners(o)
	require.NoError(t, err)
	addresses := first.Addresses()
	addresses.Raft, addresses.Gossip = addresses.HTTP, addresses.Webhook // ports that are free below
	require.NoError(t, RememberPorts(dir, addresses))
	require.NoError(t, first.Close())

	last := LastPorts(dir)
	require.Equal(t, addresses.Raft, last.Free("raft-addr", "127.0.0.1:0"))
	require.Equal(t, "127.0.0.1:1234", last.Free("raft-addr", "127.0.0.1:1234"), "a port that is named is the port")
	require.Equal(t, "nonsense", last.Free("raft-addr", "nonsense"))
	again, err := OpenListeners(o)
	require.NoError(t, err)
	require.Equal(t, addresses.GRPC, again.Addresses().GRPC)
	require.Equal(t, addresses.HTTP, again.Addresses().HTTP)
	require.Equal(t, addresses.Webhook, again.Addresses().Webhook)

	// Where it is in use by now, any other is used.
	other, err := OpenListeners(o)
	require.NoError(t, err)
	require.NotEqual(t, addresses.GRPC, other.Addresses().GRPC)
	require.Equal(t, "127.0.0.1:0", last.Free("raft-addr", "127.0.0.1:0"))
	require.NoError(t, other.Close())
	require.NoError(t, again.Close())
	udp, err := net.ListenPacket("udp", addresses.Gossip)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:0", last.Free("gossip-addr", "127.0.0.1:0"), "gossip needs both")
	require.NoError(t, udp.Close())
}

func TestPortsThatCannotBeReadAreNotKnown(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, LastPorts(dir))
	for _, text := range []string{"", "[]", `{"grpc-addr": "x"}`, `{"grpc-addr": -1}`, `{"grpc-addr": 65536}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, PortsFile), []byte(text), 0o600))
		_, ok := LastPorts(dir).Again("grpc-addr", "127.0.0.1:0")
		require.False(t, ok, text)
	}
}

// A connection that would take one of the last files is hung up on.
func TestFilesAreSpared(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	limit, known := openFiles()
	if !known {
		t.Skip("files have no numbers here")
	}
	require.Equal(t, reservingListener{l, limit - min(reservedFiles, limit/4)}, reserveFiles(l))
	ended := make(chan error, 1)
	go func() {
		_, err := reservingListener{l, 0}.Accept()
		ended <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err, "it is not free")
	require.NoError(t, conn.Close())
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)

	l, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	conn, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	taken, err := reserveFiles(l).Accept()
	require.NoError(t, err)
	require.IsType(t, &net.TCPConn{}, taken, "as it is, for those who set options")
	require.NoError(t, taken.Close())
}
