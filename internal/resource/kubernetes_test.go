package resource

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const storedPermission = `{
	"apiVersion": "kuma.io/v1alpha1", "kind": "TrafficPermission", "mesh": "demo",
	"metadata": {
		"name": "web", "uid": "4b8", "resourceVersion": "77", "generation": 2, "creationTimestamp": "2026-01-02T03:04:05Z",
		"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
		"managedFields": [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:sources": {}, ".": {}}}}]
	},
	"spec": {"sources": [{"match": {"kuma.io/service": "web"}}], "destinations": [{"match": {"kuma.io/service": "backend"}}]},
	"status": {"anything": ["goes"]}
}`

// §1.2: an object is a document; what the API server adds to it is
// not.
func TestAnObjectOfKubernetes(t *testing.T) {
	document, err := DecodeObject([]byte(storedPermission))
	require.NoError(t, err)
	require.Equal(t, Key{Kind: "TrafficPermission", Mesh: "demo", Name: "web"}, document.Resource.Key())
	require.Len(t, document.Resource.Spec().(*TrafficPermission).Sources, 1)
	require.NotContains(t, string(document.Resource.Canonical()), "anything")

	document, err = DecodeObject([]byte(strings.Replace(storedPermission, `"mesh": "demo",`, "", 1)))
	require.NoError(t, err)
	require.Equal(t, DefaultMesh, document.Resource.Key().Mesh)
}

func TestObjectsThatAreRefused(t *testing.T) {
	change := func(old, with string) string { return strings.Replace(storedPermission, old, with, 1) }
	tests := map[string]struct {
		object, want string
		identified   bool
	}{
		"not JSON":            {object: "kind: Mesh", want: "the object is not valid JSON"},
		"nothing":             {object: " ", want: "expected one JSON object, got 0 values"},
		"two objects":         {object: "{}{}", want: "expected one JSON object, got 2 values"},
		"a list":              {object: "[" + storedPermission + "]", want: "expected an object with `apiVersion`"},
		"a List":              {object: `{"apiVersion": "v1", "kind": "List", "items": [` + storedPermission + `]}`, want: `unknown kind "List"`},
		"universal form":      {object: `{"type": "Mesh", "name": "demo"}`, want: "unknown field `type`"},
		"both forms":          {object: change(`"kind"`, `"type": "Mesh", "kind"`), want: "unknown field `type`"},
		"unknown kind":        {object: change("TrafficPermission", "TrafficPermision"), want: `did you mean "TrafficPermission"?`},
		"two meshes":          {object: change(`"name": "web"`, `"name": "web", "labels": {"kuma.io/mesh": "other"}`), want: "keep one of them"},
		"a name twice":        {object: change(`"mesh": "demo"`, `"mesh": "demo", "mesh": "other"`), want: "mesh"},
		"no name yet":         {object: change(`"name": "web"`, `"generateName": "web-"`), want: "metadata.name: is required"},
		"misspelled field":    {object: change(`"destinations"`, `"destination"`), want: "did you mean `destinations`?", identified: true},
		"spec without shape":  {object: change(`"spec": {`, `"spec": [], "x": {`), want: "expected an object"},
		"content not allowed": {object: change(`{"kuma.io/service": "web"}`, `{}`), want: "sources[0].match", identified: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeObject([]byte(tt.object))
			var document *DocumentError
			require.ErrorAs(t, err, &document)
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, tt.identified, document.Identified)
			if tt.identified {
				require.Equal(t, Key{Kind: "TrafficPermission", Mesh: "demo", Name: "web"}, document.Key)
			}
		})
	}
}

// §1.2: apiVersion is a group and version of the kind.
func TestAPIVersions(t *testing.T) {
	for apiVersion, accepted := range map[string]string{
		"kuma.io/v1alpha1":                   "Mesh Gateway HTTPRoute GRPCRoute AuthPolicy RateLimitPolicy",
		"gateway.networking.k8s.io/v1":       "Gateway HTTPRoute GRPCRoute",
		"gateway.networking.k8s.io/v1beta1":  "Gateway HTTPRoute",
		"gateway.networking.k8s.io/v1alpha2": "GRPCRoute",
		"kuadrant.io/v1":                     "AuthPolicy RateLimitPolicy",
		"kuadrant.io/v1beta2":                "AuthPolicy RateLimitPolicy",
		"apps/v1":                            "",
		"v1alpha1":                           "",
	} {
		for _, kind := range []string{"Mesh", "Gateway", "HTTPRoute", "GRPCRoute", "AuthPolicy", "RateLimitPolicy"} {
			_, err := Decode("a.yaml", []byte("apiVersion: "+apiVersion+"\nkind: "+kind+"\nmetadata: {name: a}\n"), DecodeOptions{})
			said := err != nil && strings.Contains(err.Error(), "apiVersion:")
			require.Equal(t, !strings.Contains(" "+accepted+" ", " "+kind+" "), said, "%s of %s: %v", kind, apiVersion, err)
		}
	}
	_, err := Decode("a.yaml", []byte("apiVersion: kuadrant.io/v1\nkind: Mesh\nmetadata: {name: a}\n"), DecodeOptions{})
	require.ErrorContains(t, err, `apiVersion: "kuadrant.io/v1" is not a version of Mesh; write kuma.io/v1alpha1`)
}

// Whatever is accepted is what the general decoder makes of the same text.
func FuzzDecodeObject(f *testing.F) {
	f.Add([]byte(storedPermission))
	f.Add([]byte(`{"apiVersion":"kuma.io/v1alpha1","kind":"Mesh","metadata":{"name":"demo"}}`))
	f.Add([]byte(`{"kind":"AccessRole","metadata":{"name":"r"},"spec":{"rules":[{"access":["CREATE"]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		document, err := DecodeObject(data)
		if err != nil {
			var refused *DocumentError
			require.ErrorAs(t, err, &refused)
			if refused.Identified {
				report := &Report{}
				d, ok := Describe(refused.Key.Kind)
				require.True(t, ok)
				checkKey(d, refused.Key, report)
				require.False(t, report.Failed(), "an identity beyond doubt is a valid one: %v", report.Problems)
			}
			return
		}
		same, err := Decode("x.json", data, DecodeOptions{})
		require.NoError(t, err)
		require.Len(t, same, 1)
		require.Equal(t, same[0].Resource.Key(), document.Resource.Key())
		require.Equal(t, same[0].Resource.Hash(), document.Resource.Hash())
	})
}
