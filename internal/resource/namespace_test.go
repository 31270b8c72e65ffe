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

// §5.1: a Namespace is what Kubernetes prints, or a universal document; its labels
// are those of the resource and its name.
func TestNamespaceDocuments(t *testing.T) {
	for name, tt := range map[string]struct {
		document, want string
	}{
		"as kubectl prints it": {
			"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n  labels: {kubernetes.io/metadata.name: shop, tier: gold}\n  uid: x\nspec:\n  finalizers: [kubernetes]\nstatus: {phase: Active}\n", "",
		},
		"universal":                {"type: Namespace\nname: shop\nlabels: {tier: gold}\n", ""},
		"in a mesh":                {"type: Namespace\nmesh: default\nname: shop\n", "does not live in a mesh"},
		"in a namespace":           {"kind: Namespace\napiVersion: v1\nmetadata: {name: shop, namespace: bank}\n", "a Namespace is in no other namespace"},
		"with the name of another": {"type: Namespace\nname: shop\nlabels: {kubernetes.io/metadata.name: bank}\n", `is always the name of the namespace, "shop"`},
		"another apiVersion":       {"kind: Namespace\napiVersion: v2\nmetadata: {name: shop}\n", "is not a version of Namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			documents, err := resource.Decode("test.yaml", []byte(tt.document), resource.DecodeOptions{})
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, map[string]string{"tier": "gold", resource.LabelNamespaceName: "shop"}, resource.NamespaceLabels(documents[0].Resource))
		})
	}
}

// §5.1: a selection of namespaces that selects nothing, or has no effect, is said.
func TestSelectionsOfNamespaces(t *testing.T) {
	for namespaces, want := range map[string]string{
		`{from: Selector}`:                                  "namespaces.selector: is needed with from Selector",
		`{from: Same, selector: {}}`:                        "namespaces.selector: has no effect: from is not Selector",
		`{from: Selector, selector: {matchLabels: {a: b}}}`: "",
		`{from: Selector, selector: {matchExpressions: [{key: a, operator: In}]}}`:                  "values: is needed with operator In",
		`{from: Selector, selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}`: "values: has no effect with operator Exists",
	} {
		documents, err := resource.Decode("test.yaml", []byte("type: Gateway\nname: g\nlisteners: [{name: l, port: 80, protocol: HTTP, allowedRoutes: {namespaces: "+namespaces+"}}]\n"), resource.DecodeOptions{})
		require.NoError(t, err)
		var said []string
		for _, p := range documents[0].Problems {
			said = append(said, p.String())
		}
		if want == "" {
			require.Empty(t, said)
			continue
		}
		require.Contains(t, strings.Join(said, "\n"), want)
	}
}

// §4.2: no route is about a service named *.
func TestAnyServiceIsRefusedInRoutes(t *testing.T) {
	for spec, want := range map[string]string{
		"parentRefs: [{kind: Service, name: '*'}]":                       "parentRefs[0].name: '*' is not the name of a service",
		"parentRefs: [{kind: MeshService, name: '*'}]":                   "parentRefs[0].name: '*' is not the name of a service",
		"parentRefs: [{name: g}], rules: [{backendRefs: [{name: '*'}]}]": "rules[0].backendRefs[0].name: '*' is not the name of a service",
	} {
		for _, kind := range []string{"HTTPRoute", "GRPCRoute"} {
			_, err := resource.Decode("test.yaml", []byte("{type: "+kind+", name: r, "+spec+"}"), resource.DecodeOptions{})
			require.ErrorContains(t, err, want, kind)
		}
	}
}
