package webhook

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"meridian/internal/resource"
)

var update = flag.Bool("update", false, "write the definitions of deploy/kubernetes instead of comparing with them")

// Kinds without a definition in the cluster: secrets, since every user who may
// read objects of a kind reads all of it there, and what control planes write to
// remember keys and tokens; and namespaces, which every cluster has.
func definedInClusters(d *resource.Descriptor) bool {
	return !d.Sensitive && !slices.Contains([]resource.Kind{resource.KindSigningKey, resource.KindTokenRevocation, resource.KindIssuedToken, resource.KindNamespace, resource.KindRollout}, d.Kind)
}

// Kinds whose objects stand beside what they describe: a workload, or the
// objects of the Gateway API whose shape they have. The names of all others are
// unique in the cluster, as they are here (§1.1).
func namespaced(d *resource.Descriptor) bool {
	return slices.Contains([]resource.Kind{"Dataplane", "Gateway", "HTTPRoute", "GRPCRoute", "AuthPolicy", "RateLimitPolicy"}, d.Kind)
}

// definitions is a CustomResourceDefinition of every kind. The content of a spec
// is for the webhook to judge, which says more than a schema could; the mesh
// stands beside metadata (§1.2).
var definitions = template.Must(template.New("definitions").Funcs(template.FuncMap{
	"lower":      func(k resource.Kind) string { return strings.ToLower(string(k)) },
	"plural":     func(d *resource.Descriptor) string { return strings.ReplaceAll(d.Plural, "-", "") },
	"meshScoped": func(d *resource.Descriptor) bool { return d.Scope == resource.MeshScoped },
	"namespaced": namespaced,
	// Kinds with a targetRef, whose policies hold for what is below their target, carry
	// the label by which tools of the Gateway API find policies (§5.1).
	"attached": func(d *resource.Descriptor) bool {
		return d.Class == resource.Inherited || d.Class == resource.TargetRef
	},
}).Parse(`# The kinds of Meridian as Kubernetes knows them: what ` + "`meridian explain KIND`" + `
# says of each, and no more, since the admission webhook judges their content.
# Generated from the table of kinds by
#   go test ./internal/service/webhook -run TestDefinitions -update
{{- range .}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {{plural .}}.kuma.io
  labels:
    app.kubernetes.io/name: meridian
{{- if attached .}}
    gateway.networking.k8s.io/policy: Inherited
{{- end}}
spec:
  group: kuma.io
  scope: {{if namespaced .}}Namespaced{{else}}Cluster{{end}}
  names:
    kind: {{.Kind}}
    listKind: {{.Kind}}List
    plural: {{plural .}}
    singular: {{lower .Kind}}
    categories: [meridian]
  versions:
    - name: v1alpha1
      served: true
      storage: true
{{- if meshScoped .}}
      additionalPrinterColumns:
        - {name: Mesh, type: string, jsonPath: .mesh}
        - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
{{- end}}
      schema:
        openAPIV3Schema:
          description: {{printf "%q" .Summary}}
          type: object
          properties:
{{- if meshScoped .}}
            mesh:
              description: The mesh that the object is in; default, where neither this nor the label kuma.io/mesh says.
              type: string
{{- end}}
            spec:
              type: object
              x-kubernetes-preserve-unknown-fields: true
{{- end}}
`))

func TestDefinitionsAreThoseOfTheKinds(t *testing.T) {
	var kinds []*resource.Descriptor
	for _, d := range resource.Kinds() {
		if definedInClusters(d) {
			kinds = append(kinds, d)
		}
	}
	var want bytes.Buffer
	require.NoError(t, definitions.Execute(&want, kinds))
	if *update {
		require.NoError(t, os.WriteFile(deployed+"definitions.yaml", want.Bytes(), 0o644))
	}
	have, err := os.ReadFile(deployed + "definitions.yaml")
	require.NoError(t, err)
	require.Equal(t, want.String(), string(have), "generate it anew: go test ./internal/service/webhook -run TestDefinitions -update")

	documents := bytes.Split(have, []byte("\n---\n"))[1:]
	require.Len(t, documents, len(kinds))
	for i, text := range documents {
		var d struct {
			Metadata struct{ Name string }
			Spec     struct{ Names struct{ Kind, Plural string } }
		}
		require.NoError(t, yaml.Unmarshal(text, &d))
		require.Equal(t, string(kinds[i].Kind), d.Spec.Names.Kind)
		require.Equal(t, d.Spec.Names.Plural+"."+Group, d.Metadata.Name)
		found, ok := resource.Lookup(d.Spec.Names.Plural)
		require.True(t, ok, "a plural that the command takes, too")
		require.Equal(t, kinds[i].Kind, found.Kind)
	}
}
