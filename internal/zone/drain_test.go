package zone

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDrainIsKept(t *testing.T) {
	dir := t.TempDir()
	draining, err := loadDrain(dir)
	require.NoError(t, err)
	require.False(t, draining)
	for _, want := range []bool{true, false, true} {
		require.NoError(t, saveDrain(dir, want))
		draining, err = loadDrain(dir)
		require.NoError(t, err)
		require.Equal(t, want, draining)
	}
	for _, broken := range []string{"", "{", `{"formatVersion":2}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, drainFile), []byte(broken), 0o600))
		_, err = loadDrain(dir)
		require.ErrorContains(t, err, "delete the file")
	}
}

// A zone drains as its global says also when that cannot be kept, which is tried again.
func TestDrainIsKeptLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		k := newDrainKeeper(dir, func() bool { return true }, slog.New(slog.DiscardHandler))
		ended := make(chan error, 1)
		go func() { ended <- k.run(ctx) }()
		k.save()
		k.save()
		<-time.After(3*retryDrain + time.Second) // it fails again and again
		require.NoError(t, os.Mkdir(dir, 0o700))
		<-time.After(retryDrain)
		synctest.Wait()
		stop()
		require.NoError(t, <-ended)
	})
	draining, err := loadDrain(dir)
	require.NoError(t, err)
	require.True(t, draining)
}
