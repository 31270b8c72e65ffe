package raftnet

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func TestClosedConnectionsAreNoErrors(t *testing.T) {
	var out strings.Builder
	log := NewLogger(slog.New(slog.NewTextHandler(&out, nil)))
	log.Error("failed to decode incoming command", "error", fmt.Errorf("read: %w", net.ErrClosed))
	log.Error("failed to decode incoming command", "error", raft.ErrTransportShutdown)
	require.Empty(t, out.String())
	log.Error("failed to decode incoming command", "error", fmt.Errorf("unknown rpc type 9"))
	require.Contains(t, out.String(), "level=ERROR")
	require.Contains(t, out.String(), "unknown rpc type 9")
}

func TestWhatRaftRepeatsWhileAServerRestartsIsForDebugging(t *testing.T) {
	var out strings.Builder
	log := NewLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.Error("failed to heartbeat to", "peer", "b", "error", fmt.Errorf("connection refused"))
	log.Warn("failed to contact", "server-id", "b")
	require.Equal(t, 2, strings.Count(out.String(), "level=DEBUG"), out.String())
	log.Warn("failed to contact quorum of nodes, stepping down")
	require.Equal(t, 1, strings.Count(out.String(), "level=WARN"), out.String())
}
