package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tick is the unit of processor time in /proc, the same on every Linux.
const tick = 10 * time.Millisecond

// procfs skips a benchmark where the system does not tell what a process uses.
func procfs(b *testing.B) {
	b.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		b.Skip("there is no /proc here")
	}
}

// processor is the processor time that a process has used, in user and kernel
// mode together, to a tick.
func (p *process) processor(b *testing.B) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	require.NoError(b, err)
	// The second field is the program's name, which may hold anything; fields
	// are counted from after it. utime and stime are the 14th and 15th.
	_, rest, found := strings.Cut(string(data), ") ")
	require.True(b, found)
	fields := strings.Fields(rest)
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		require.NoError(b, err)
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// memory returns a size in MB from /proc/PID/status: VmRSS is what is resident,
// VmHWM the most that ever was.
func (p *process) memory(b *testing.B, field string) float64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(b, err)
	for l := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(l, ":")
		if name != field {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		require.NoError(b, err)
		return kib * 1024 / 1e6
	}
	require.Fail(b, "no such field", field)
	return 0
}
