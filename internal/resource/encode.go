package resource

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"meridian/internal/doctree"
)

// Format is a way to write resources (§1.2). Decode reads them all.
type Format int

const (
	// FormatYAML is the universal form, a YAML document per resource.
	FormatYAML Format = iota
	// FormatJSON is the universal form as one indented JSON object, for exactly
	// one resource.
	FormatJSON
	// FormatJSONList is {"items": […]} with universal forms.
	FormatJSONList
	// FormatKubernetesYAML is the Kubernetes form, a YAML document per resource.
	FormatKubernetesYAML
)

// APIVersion is the apiVersion of the Kubernetes form.
const APIVersion = "kuma.io/v1alpha1"

// Encode writes resources so that Decode gives back the same identity, envelope
// and canonical specs. Nothing is written unless everything can be.
func Encode(w io.Writer, format Format, resources ...*Resource) error {
	var b bytes.Buffer
	switch format {
	case FormatYAML, FormatKubernetesYAML:
		documents := make([]*doctree.Node, len(resources))
		for i, r := range resources {
			document, err := documentOf(r, format)
			if err != nil {
				return err
			}
			documents[i] = document
		}
		if err := doctree.WriteYAML(&b, documents...); err != nil {
			return fmt.Errorf("encode: %w", err)
		}
	case FormatJSON:
		if len(resources) != 1 {
			return fmt.Errorf("encode: a JSON object holds one resource, not %d", len(resources))
		}
		document, err := documentOf(resources[0], format)
		if err != nil {
			return err
		}
		if err := json.Indent(&b, document.Ordered(nil), "", "  "); err != nil {
			return fmt.Errorf("encode %s: %w", resources[0].Key(), err)
		}
		b.WriteByte('\n')
	case FormatJSONList:
		list := &doctree.Node{Shape: doctree.List}
		for _, r := range resources {
			document, err := documentOf(r, format)
			if err != nil {
				return err
			}
			list.Items = append(list.Items, document)
		}
		whole := doctree.NewObject(doctree.Member{Name: "items", Value: list})
		if err := json.Indent(&b, whole.Ordered(nil), "", "  "); err != nil {
			return fmt.Errorf("encode list: %w", err)
		}
		b.WriteByte('\n')
	default:
		return fmt.Errorf("encode: unknown format %d", format)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return nil
}

// documentOf builds the tree of a resource's document.
func documentOf(r *Resource, format Format) (*doctree.Node, error) {
	values, _, err := doctree.ParseJSON(r.canonical)
	if err != nil || len(values) != 1 || values[0].Shape != doctree.Object {
		return nil, fmt.Errorf("encode %s: its spec is not a JSON object", r.Key())
	}
	if format == FormatKubernetesYAML {
		return kubernetesDocument(r.meta, values[0]), nil
	}
	return universalDocument(r.meta, values[0]), nil
}

func universalDocument(meta Meta, spec *doctree.Node) *doctree.Node {
	n := doctree.NewObject(textMember("type", string(meta.Kind)))
	if meta.Mesh != "" {
		n.Members = append(n.Members, textMember("mesh", string(meta.Mesh)))
	}
	n.Members = append(n.Members, textMember("name", meta.Name))
	n.Members = append(n.Members, stamps(meta)...)
	if len(meta.Labels) > 0 {
		n.Members = append(n.Members, doctree.Member{Name: "labels", Value: labelObject(meta.Labels)})
	}
	for _, m := range spec.Members {
		if slices.Contains(universalFields, m.Name) {
			// The spec has a field that would be taken for the envelope's.
			n.Members = append(n.Members, doctree.Member{Name: "spec", Value: spec})
			return n
		}
	}
	n.Members = append(n.Members, spec.Members...)
	return n
}

func kubernetesDocument(meta Meta, spec *doctree.Node) *doctree.Node {
	labels := maps.Clone(meta.Labels)
	namespace, name := meta.Namespace()
	if labels[LabelNamespace] == DefaultNamespace {
		namespace = DefaultNamespace
	}
	metadata := doctree.NewObject(textMember("name", name))
	if namespace != "" {
		metadata.Members = append(metadata.Members, textMember("namespace", namespace))
		delete(labels, LabelNamespace)
	}
	if len(labels) > 0 {
		metadata.Members = append(metadata.Members, doctree.Member{Name: "labels", Value: labelObject(labels)})
	}
	n := doctree.NewObject(textMember("apiVersion", APIVersion), textMember("kind", string(meta.Kind)))
	if meta.Mesh != "" {
		n.Members = append(n.Members, textMember("mesh", string(meta.Mesh)))
	}
	n.Members = append(n.Members, doctree.Member{Name: "metadata", Value: metadata})
	n.Members = append(n.Members, stamps(meta)...)
	n.Members = append(n.Members, doctree.Member{Name: "spec", Value: spec})
	return n
}

// stamps are the members that a server has assigned.
func stamps(meta Meta) []doctree.Member {
	var members []doctree.Member
	if !meta.CreationTime.IsZero() {
		members = append(members, textMember("creationTime", meta.CreationTime.UTC().Format(time.RFC3339Nano)))
	}
	if !meta.ModificationTime.IsZero() {
		members = append(members, textMember("modificationTime", meta.ModificationTime.UTC().Format(time.RFC3339Nano)))
	}
	if meta.Version != 0 {
		members = append(members, numberMember("version", meta.Version))
	}
	if meta.Revision != 0 {
		members = append(members, numberMember("revision", uint64(meta.Revision)))
	}
	if meta.Rollout != "" {
		members = append(members, textMember("rollout", meta.Rollout))
	}
	return members
}

func labelObject(labels map[string]string) *doctree.Node {
	n := doctree.NewObject()
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		n.Members = append(n.Members, textMember(name, labels[name]))
	}
	return n
}

func textMember(name, text string) doctree.Member {
	return doctree.Member{Name: name, Value: &doctree.Node{Shape: doctree.Text, Text: text}}
}

func numberMember(name string, value uint64) doctree.Member {
	return doctree.Member{Name: name, Value: &doctree.Node{Shape: doctree.Number, Text: strconv.FormatUint(value, 10)}}
}
