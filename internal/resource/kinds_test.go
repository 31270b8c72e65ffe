package resource_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// The one table: every row is complete and can be found in every way a person
// may write it.
func TestTableOfKinds(t *testing.T) {
	seen := map[string]resource.Kind{}
	claim := func(name string, kind resource.Kind) {
		owner, taken := seen[name]
		require.False(t, taken && owner != kind, "%s and %s share the name %s", owner, kind, name)
		seen[name] = kind
	}
	for _, d := range resource.Kinds() {
		t.Run(string(d.Kind), func(t *testing.T) {
			claim(string(d.Kind), d.Kind)
			claim(d.Plural, d.Kind)
			for _, spelling := range d.Spellings {
				claim(string(spelling), d.Kind)
			}
			require.NotEmpty(t, d.Plural)
			require.True(t, strings.HasSuffix(d.Summary, "."), "a sentence: %q", d.Summary)
			require.NotNil(t, d.New())
			require.False(t, d.Synced && d.Owner != resource.OwnedByGlobal, "only the global's are synced (§1.3)")
			require.False(t, d.Sensitive && d.Synced, "secrets do not travel")
			require.Equal(t, d.Direction == 0, d.Class == resource.Infrastructure || d.Class == resource.AccessControl)
			for _, f := range resource.Fields(d.Kind) {
				require.NotEmpty(t, f.Doc, "%s.%s", d.Kind, f.Path)
				require.NotEmpty(t, f.Type, "%s.%s", d.Kind, f.Path)
			}
			described, ok := resource.Describe(d.Kind)
			require.True(t, ok)
			require.Same(t, d, described)
			for _, name := range []string{
				string(d.Kind), strings.ToLower(string(d.Kind)), strings.ToUpper(string(d.Kind)),
				d.Plural, strings.ReplaceAll(d.Plural, "-", ""), strings.ReplaceAll(d.Plural, "-", "_"), string(d.Kind) + "s",
			} {
				found, ok := resource.Lookup(name)
				require.True(t, ok, name)
				require.Equal(t, d.Kind, found.Kind, name)
			}
		})
	}
}

// §1.3: who owns what, and what travels.
func TestOwnersOfInfrastructure(t *testing.T) {
	type row struct {
		scope  resource.Scope
		owner  resource.Owner
		synced bool
	}
	for kind, want := range map[resource.Kind]row{
		"Mesh":            {resource.GlobalScoped, resource.OwnedByGlobal, true},
		"SigningKey":      {resource.GlobalScoped, resource.OwnedByGlobal, true},
		"TokenRevocation": {resource.GlobalScoped, resource.OwnedByGlobal, true},
		"IssuedToken":     {resource.GlobalScoped, resource.OwnedByEach, false},
		"Namespace":       {resource.GlobalScoped, resource.OwnedByGlobal, true},
		"Rollout":         {resource.GlobalScoped, resource.OwnedByGlobal, true},
		"Zone":            {resource.GlobalScoped, resource.OwnedByGlobal, false},
		"GlobalSecret":    {resource.GlobalScoped, resource.OwnedByEach, false},
		"Dataplane":       {resource.MeshScoped, resource.OwnedByZone, false},
		"Secret":          {resource.MeshScoped, resource.OwnedByZone, false},
	} {
		d, ok := resource.Describe(kind)
		require.True(t, ok, kind)
		require.Equal(t, want, row{d.Scope, d.Owner, d.Synced}, kind)
	}
}

// §4.1: a document may use another accepted spelling of its kind; the
// resource has the canonical one.
func TestSpellingsInDocuments(t *testing.T) {
	for _, d := range resource.Kinds() {
		for _, spelling := range d.Spellings {
			_, err := resource.Decode("in.yaml", []byte("type: "+string(spelling)+"\nname: A"), resource.DecodeOptions{})
			var failed resource.DocumentErrors
			require.ErrorAs(t, err, &failed, "the name is wrong")
			require.Equal(t, d.Kind, failed[0].Key.Kind, spelling)
		}
	}
}

func TestDescribeIsExact(t *testing.T) {
	for _, name := range []resource.Kind{"", "mesh", "Meshes", "meshes"} {
		_, ok := resource.Describe(name)
		require.False(t, ok, name)
	}
}

func TestNearestKind(t *testing.T) {
	for word, want := range map[string]resource.Kind{
		"Dataplan": "Dataplane", "mesh": "Mesh", "meshs": "Mesh", "Zoen": "Zone", "dataplanes": "Dataplane", "GlobalSecrets": "GlobalSecret",
	} {
		near, ok := resource.NearestKind(word)
		require.True(t, ok, word)
		require.Equal(t, want, near, word)
	}
	for _, word := range []string{"", "x", "ConfigMap", strings.Repeat("Mesh", 100)} {
		_, ok := resource.NearestKind(word)
		require.False(t, ok, word)
	}
}

func TestNearest(t *testing.T) {
	tests := []struct {
		word       string
		candidates []string
		want       string
	}{
		{"conectTimeout", []string{"connectTimeout", "requestTimeout"}, "connectTimeout"},
		{"CONNECTTIMEOUT", []string{"connectTimeout"}, "connectTimeout"},
		{"fiedl", []string{"field"}, "field"},
		{"tcp", []string{"http"}, ""},
		{"a", []string{"b"}, ""},
		{"ab", []string{"bb", "aa"}, "aa"},
		{"ab", []string{"aa", "bb"}, "aa"},
		{"backend", nil, ""},
	}
	for _, test := range tests {
		near, ok := resource.Nearest(test.word, test.candidates)
		require.Equal(t, test.want, near, test.word)
		require.Equal(t, test.want != "", ok, test.word)
	}
}

func TestFields(t *testing.T) {
	fields := map[string]resource.FieldDoc{}
	for _, f := range resource.Fields("Mesh") {
		fields[f.Path] = f
	}
	require.Equal(t, "object", fields["mtls"].Type)
	require.Equal(t, "list of objects", fields["mtls.backends"].Type)
	require.True(t, fields["mtls.backends[].name"].Required)
	require.Equal(t, "duration", fields["mtls.backends[].dpCert.rotation.expiration"].Type)
	require.Equal(t, []string{"STRICT", "PERMISSIVE"}, fields["mtls.backends[].mode"].Enum)
	require.Equal(t, "any", fields["mtls.backends[].conf"].Type)
	require.Equal(t, "percentage", fields["tracing.backends[].sampling"].Type)
	require.Equal(t, "boolean", fields["networking.outbound.passthrough"].Type)
	require.Equal(t, "map of strings", fields["constraints.dataplaneProxy.requirements[].tags"].Type)
	require.Nil(t, resource.Fields("Nonsense"))
}
