package limits

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// However often clients come and go, the log gets 1,000 lines at once and 100 a second, and
// says how many were left out.
func TestLines(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	lines, now := NewLines(), time.Unix(1, 0)
	for range 5000 {
		lines.Info(now, log, "closed", "client", "x")
	}
	require.Equal(t, lineBurst, strings.Count(out.String(), "\n"))
	require.NotContains(t, out.String(), "left_out")
	out.Reset()
	for range 5000 {
		lines.Info(now.Add(time.Second), log, "closed", "client", "x")
	}
	require.Equal(t, lineRate, strings.Count(out.String(), "\n"))
	require.Equal(t, 1, strings.Count(out.String(), "left_out=4000 client=x\n"), "the first one")
}
