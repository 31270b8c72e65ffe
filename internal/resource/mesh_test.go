package resource_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// A mesh that enables a backend by which zones issue no certificates is stored with a
// warning that names where that is.
func TestABackendThatIssuesNothingIsWarnedOf(t *testing.T) {
	for _, c := range []struct{ spec, path string }{
		{`{"mtls":{"enabledBackend":"b","backends":[{"name":"a","type":"builtin"},{"name":"b","type":"provided"}]}}`, "mtls.backends[1].type"},
		{`{"mtls":{"enabledBackend":"a","backends":[{"name":"a","type":"builtin"},{"name":"b","type":"provided"}]}}`, ""},
		{`{"mtls":{"backends":[{"name":"b","type":"provided"}]}}`, ""},
		{`{}`, ""},
	} {
		_, problems, err := resource.Build(resource.Meta{Key: key("Mesh", "", "m")}, []byte(c.spec))
		require.NoError(t, err)
		if c.path == "" {
			require.Empty(t, problems, c.spec)
			continue
		}
		require.Len(t, problems, 1, c.spec)
		require.EqualValues(t, c.path, problems[0].Path)
		require.Contains(t, problems[0].Message, "use type builtin")
	}
}
