package admin

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/authz/authztest"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
	"meridian/internal/store"
)

func reviewed(t *testing.T, text string) *resource.Resource {
	t.Helper()
	documents, err := resource.Decode("x.yaml", []byte(text), resource.DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, documents, 1)
	return documents[0].Resource
}

// A resource that another system stores is validated as if it were applied, and
// nothing is written.
func TestReview(t *testing.T) {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	var service *Service
	f := newFixture(t, func(c *Config) {
		c.Check = compiler.Check
		c.Prepare = func(_ store.Reader, r *resource.Resource) (*resource.Resource, error) {
			if r.Key().Name == "unprepared" {
				return nil, errors.New("it has the tag of another zone")
			}
			return r, nil
		}
		service = New(*c)
	})
	before := f.store.View()
	tests := map[string]struct{ text, warning, refused string }{
		"nothing to say":      {text: "type: Mesh\nname: other\n"},
		"advice":              {text: "type: TrafficLog\nmesh: default\nname: a\nsources: [{match: {kuma.io/service: '*'}}]\ndestinations: [{match: {kuma.io/service: '*'}}]\nconf: {backend: nowhere}\n", warning: "nowhere"},
		"not owned here":      {text: "type: Dataplane\nmesh: default\nname: a\nnetworking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}]}\n", warning: "apply it on the zone"},
		"no such mesh":        {text: "type: TrafficTrace\nmesh: nowhere\nname: a\nselectors: [{match: {kuma.io/service: '*'}}]\n", warning: `mesh "nowhere"`},
		"not to be completed": {text: "type: TrafficTrace\nmesh: default\nname: unprepared\nselectors: [{match: {kuma.io/service: '*'}}]\n", warning: "the tag of another zone"},
		"useless everywhere":  {text: "type: AuthPolicy\nname: a\ntargetRef: {kind: Gateway, name: g}\noverrides: {when: 'spec.a >', rules: {authentication: {a: 1}}}\n", refused: "overrides.when"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			warnings, err := service.Review(authztest.Admin(), reviewed(t, tt.text))
			if tt.refused != "" {
				var document *resource.DocumentError
				require.ErrorAs(t, err, &document)
				require.ErrorContains(t, err, tt.refused)
				return
			}
			require.NoError(t, err)
			if tt.warning == "" {
				require.Empty(t, warnings)
				return
			}
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0], tt.warning)
		})
	}
	require.Equal(t, before.Changed(), f.store.View().Changed())

	_, err = f.apply("tests", message("Mesh", "", "demo", securedMesh), allow("web", "web", "backend"), lasting("soon", "5s"), carriedTests(carriedSpec))
	require.NoError(t, err)
	warnings, err := service.Review(authztest.Admin(), reviewed(t, "type: Timeout\nmesh: demo\nname: late\nsources: [{match: {kuma.io/service: '*'}}]\ndestinations: [{match: {kuma.io/service: '*'}}]\nconf: {connectTimeout: 45s}\n"))
	require.NoError(t, err)
	require.Contains(t, warnings, "the change breaks 1 of the 3 tests that mesh demo carries: applied here, it is refused")
}
