package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionComesFromTheBestSourceThereIs(t *testing.T) {
	vcs := []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"},
		{Key: "vcs.modified", Value: "true"},
	}
	for name, tc := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"module version": {debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: vcs}, "v1.2.3"},
		"modified tree":  {debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: vcs}, "0123456789ab-dirty"},
		"clean tree":     {debug.BuildInfo{Settings: vcs[:1]}, "0123456789ab"},
		"nothing known":  {debug.BuildInfo{}, "devel"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, fromBuildInfo(&tc.info))
		})
	}
}

func TestStampWins(t *testing.T) {
	stamped = "v9.9.9"
	t.Cleanup(func() { stamped = "" })
	require.Equal(t, "v9.9.9", String())
}
