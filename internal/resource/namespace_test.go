package resource_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// §1.1: two documents of one name in two namespaces are two resources, in one batch
// too, and both forms of a resource are the same one.
func TestNamespacesAreTwoResources(t *testing.T) {
	const text = `
{kind: Timeout, metadata: {name: slow, namespace: team-a}, spec: {sources: [{match: {kuma.io/service: "*"}}], destinations: [{match: {kuma.io/service: "*"}}], conf: {connectTimeout: 5s}}}
---
{kind: Timeout, metadata: {name: slow, namespace: team-b}, spec: {sources: [{match: {kuma.io/service: "*"}}], destinations: [{match: {kuma.io/service: "*"}}], conf: {connectTimeout: 6s}}}
---
{kind: Timeout, metadata: {name: slow}, spec: {sources: [{match: {kuma.io/service: "*"}}], destinations: [{match: {kuma.io/service: "*"}}], conf: {connectTimeout: 7s}}}
`
	documents, err := resource.Decode("x.yaml", []byte(text), resource.DecodeOptions{})
	require.NoError(t, err)
	var names, shown []string
	for _, d := range documents {
		meta := d.Resource.Meta()
		names, shown = append(names, meta.Name), append(shown, meta.Shown())
		for _, form := range []resource.Format{resource.FormatYAML, resource.FormatKubernetesYAML} {
			var out bytes.Buffer
			require.NoError(t, resource.Encode(&out, form, d.Resource))
			again, err := resource.Decode("y.yaml", out.Bytes(), resource.DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, meta, again[0].Resource.Meta(), out.String())
		}
	}
	require.Equal(t, []string{"slow.team-a", "slow.team-b", "slow"}, names)
	require.Equal(t, []string{"team-a/slow", "team-b/slow", "slow"}, shown)

	_, err = resource.Decode("z.yaml", []byte("{kind: Zone, metadata: {namespace: team, name: "+strings.Repeat("a", 250)+"}}"), resource.DecodeOptions{})
	require.ErrorContains(t, err, "is stored as NAME.NAMESPACE, which has 255 characters")
}

// What an earlier release stored under the name alone keeps its name, its label and
// its references.
func TestANamespaceThatIsOnlyALabel(t *testing.T) {
	const text = "type: Zone\nname: east\nlabels: {k8s.kuma.io/namespace: kong}\n"
	documents, err := resource.Decode("x.yaml", []byte(text), resource.DecodeOptions{})
	require.NoError(t, err)
	meta := documents[0].Resource.Meta()
	require.Equal(t, "east", meta.Name)
	require.Equal(t, "other", meta.Refer("other", nil))
	var out bytes.Buffer
	require.NoError(t, resource.Encode(&out, resource.FormatKubernetesYAML, documents[0].Resource))
	again, err := resource.Decode("y.yaml", out.Bytes(), resource.DecodeOptions{})
	require.NoError(t, err)
	require.Equal(t, meta, again[0].Resource.Meta(), out.String())
}

// §1.1: how names are written, and what a reference means.
func TestNamesOfNamespaces(t *testing.T) {
	for text, want := range map[string]string{"web": "web", "web.team-a": "web.team-a", "team-a/web": "web.team-a", "default/web": "web", "/web": "/web"} {
		require.Equal(t, want, resource.ReadName(text))
	}
	other, standard := "team-b", "default"
	inside := resource.Meta{Key: resource.Key{Name: "p.team-a"}, Labels: map[string]string{resource.LabelNamespace: "team-a"}}
	require.Equal(t, "r.team-a", inside.Refer("r", nil))
	require.Equal(t, "r.team-b", inside.Refer("r", &other))
	require.Equal(t, "r", inside.Refer("r", &standard))
	require.Equal(t, "r", (&resource.Meta{Key: resource.Key{Name: "p"}}).Refer("r", nil))
}
