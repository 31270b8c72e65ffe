package consensus

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClosedConnectionsAreNoErrors(t *testing.T) {
	var out strings.Builder
	log := newRaftLogger(slog.New(slog.NewTextHandler(&out, nil)))
	log.Error("failed to decode incoming command", "error", fmt.Errorf("read: %w", net.ErrClosed))
	require.Empty(t, out.String())
	log.Error("failed to decode incoming command", "error", fmt.Errorf("unknown rpc type 9"))
	require.Contains(t, out.String(), "level=ERROR")
	require.Contains(t, out.String(), "unknown rpc type 9")
}
