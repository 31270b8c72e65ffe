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
		{`{"mtls":{"enabledBackend":"b","backends":[{"name":"a","type":"builtin"},{"name":"b","type":"vault"}]}}`, "mtls.backends[1].type"},
		{`{"mtls":{"enabledBackend":"b","backends":[{"name":"b","type":"provided"}]}}`, "mtls.backends[0].conf"},
		{`{"mtls":{"enabledBackend":"b","backends":[{"name":"b","type":"provided","conf":{"cert":{"inline":"x"},"key":{"inline":"x"}}}]}}`, "mtls.backends[0].conf"},
		{`{"mtls":{"enabledBackend":"b","backends":[{"name":"b","type":"provided","conf":{"cert":{"secret":"certificate-authority.a"},"key":{"secret":"certificate-authority.b"}}}]}}`, "mtls.backends[0].conf"},
		{`{"mtls":{"enabledBackend":"b","backends":[{"name":"b","type":"provided","conf":{"cert":{"secret":"a"},"key":{"secret":"a"}}}]}}`, "mtls.backends[0].conf"},
		{`{"mtls":{"enabledBackend":"b","backends":[{"name":"b","type":"provided","conf":{"cert":{"secret":"certificate-authority.a"},"key":{"secret":"certificate-authority.a"}}}]}}`, ""},
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
		require.Contains(t, problems[0].Message, "of this mesh get no")
	}
}
