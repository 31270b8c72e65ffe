package resource

import (
	"maps"
	"strings"
)

// Namespace is a Kubernetes namespace (§5.1). What matters of it are the labels of
// the resource.
type Namespace struct {
	Finalizers []string `json:"finalizers,omitzero" doc:"What Kubernetes does before it removes the namespace; without effect here."`
}

// Validate implements Spec; there is nothing a Namespace could get wrong.
func (*Namespace) Validate(Path, *Report) {}

// LabelNamespaceName is the label that every Kubernetes namespace has: its name.
const LabelNamespaceName = "kubernetes.io/metadata.name"

// NamespaceLabels returns the labels by which a Namespace is selected: its own and
// LabelNamespaceName.
func NamespaceLabels(namespace *Resource) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, namespace.meta.Labels)
	labels[LabelNamespaceName] = namespace.meta.Name
	return labels
}

// DefaultNamespace is the Kubernetes namespace that is no part of a name: that of
// documents without one (§1.1).
const DefaultNamespace = "default"

// Namespaced returns the name under which a resource of a Kubernetes namespace is
// stored (§1.1): NAME.NAMESPACE, and the name alone in the default one.
func Namespaced(namespace, name string) string {
	if namespace == "" || namespace == DefaultNamespace {
		return name
	}
	return name + "." + namespace
}

// Namespace returns the namespace that is part of the name and the name within it.
// The namespace is empty for resources of the default one, and for those that an
// earlier release stored under the name alone.
func (m *Meta) Namespace() (namespace, name string) {
	namespace = m.Labels[LabelNamespace]
	if namespace == "" || namespace == DefaultNamespace {
		return "", m.Name
	}
	if base, ok := strings.CutSuffix(m.Name, "."+namespace); ok && base != "" {
		return namespace, base
	}
	return "", m.Name
}

// Shown is how people are shown the name: NAMESPACE/NAME where the namespace is
// part of it.
func (m *Meta) Shown() string {
	if namespace, name := m.Namespace(); namespace != "" {
		return namespace + "/" + name
	}
	return m.Name
}

// Refer returns the stored name of a resource that this one refers to: of the
// namespace that the reference names, else of its own (§1.1).
func (m *Meta) Refer(name string, namespace *string) string {
	if namespace != nil {
		return Namespaced(*namespace, name)
	}
	own, _ := m.Namespace()
	return Namespaced(own, name)
}

// ReadName reads a name as users write it: NAME, NAME.NAMESPACE or NAMESPACE/NAME.
func ReadName(text string) string {
	if namespace, name, ok := strings.Cut(text, "/"); ok && namespace != "" {
		return Namespaced(namespace, name)
	}
	return text
}
