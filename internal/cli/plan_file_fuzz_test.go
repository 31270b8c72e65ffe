package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPlanFile: whatever a plan file has, it is a change or refused, and what it is can be
// said.
func FuzzPlanFile(f *testing.F) {
	f.Add([]byte(`{"kind":"MeridianPlan","format":1,"written":[{"type":"Mesh","name":"default"}],"stored":[],"effect":"00"}`))
	f.Add([]byte(`{"kind":"MeridianPlan","format":1,"deleted":[{"kind":"Timeout","mesh":"default","name":"slow"}],"stored":[{"kind":"Timeout","mesh":"default","name":"slow","version":3}],"effect":"00"}`))
	f.Add([]byte(`{"kind":"MeridianPlan","format":1,"rollback":{"to":7},"stored":[],"effect":"00"}`))
	f.Add([]byte(`{}`))
	path := filepath.Join(f.TempDir(), "change.plan")
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		change, _, err := readPlan(path)
		if err != nil {
			require.Nil(t, change)
			return
		}
		require.True(t, change.rollback != nil || len(change.written)+len(change.deleted) > 0)
		change.concerns()
	})
}

// A plan file without an end is not read to it.
func TestPlanOfADevice(t *testing.T) {
	out := newHarness(t).run("apply", "/dev/zero")
	require.Equal(t, 2, out.code)
	require.Contains(t, out.stderr, "it has more than")
}
