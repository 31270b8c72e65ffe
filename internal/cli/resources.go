package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
)

// encodeMessage turns a document's resource into what a server takes. Times,
// version and revision are the server's to assign.
func encodeMessage(r *resource.Resource) *meridianv1.Resource {
	m := r.Meta()
	return &meridianv1.Resource{
		Kind: string(m.Kind), Mesh: string(m.Mesh), Name: m.Name, Labels: m.Labels, Spec: r.Canonical(),
	}
}

// decodeMessage turns what a server stored into a resource to print. The spec
// is kept as it came, without a Go type: a server newer than this command may
// know fields and kinds that are not known here.
func decodeMessage(m *meridianv1.Resource) *resource.Resource {
	meta := resource.Meta{
		Key: resource.Key{
			Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName(),
		},
		Labels:   m.GetLabels(),
		Version:  m.GetVersion(),
		Revision: resource.Revision(m.GetRevision()),
	}
	if t := m.GetCreationTime(); t != nil {
		meta.CreationTime = t.AsTime()
	}
	if t := m.GetModificationTime(); t != nil {
		meta.ModificationTime = t.AsTime()
	}
	return resource.New(meta, nil, m.GetSpec())
}

// lookupKind finds a kind by what a person types.
func lookupKind(name string) (*resource.Descriptor, error) {
	if d, ok := resource.Lookup(name); ok {
		return d, nil
	}
	if near, ok := resource.NearestKind(name); ok {
		return nil, usagef("unknown kind %q; did you mean %q?", name, near)
	}
	return nil, usagef("unknown kind %q; `meridian explain` lists the kinds", name)
}

// splitSlash lets TYPE/NAME, as it is printed, stand for TYPE NAME.
func splitSlash(args []string) []string {
	if len(args) == 1 {
		if kind, name, ok := strings.Cut(args[0], "/"); ok {
			return []string{kind, name}
		}
	}
	return args
}

// keyOf returns the identity of a named resource of a kind in the command's
// mesh.
func keyOf(d *resource.Descriptor, mesh, name string) (*meridianv1.ResourceKey, error) {
	if err := resource.CheckName(name); err != nil {
		return nil, usagef("%s: %w", d.Kind, err)
	}
	key := &meridianv1.ResourceKey{Kind: string(d.Kind), Name: name}
	if d.Scope == resource.MeshScoped {
		key.Mesh = mesh
	}
	return key, nil
}

// list reads all resources of the kinds, of one mesh or, when it is empty, of
// all, from one revision, in key order.
func (c *client) list(ctx context.Context, request *meridianv1.ListRequest) ([]*resource.Resource, error) {
	var found []*resource.Resource
	err := c.call(ctx, func(ctx context.Context) error {
		found = nil
		stream, err := c.List(ctx, request)
		if err != nil {
			return err
		}
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, m := range part.GetResources() {
				found = append(found, decodeMessage(m))
			}
		}
	})
	return found, err
}

// printResources prints a list of resources. kind is that of all of them, or
// nil when they are mixed; status are further columns of a table.
func (a *app) printResources(f format, resources []*resource.Resource, kind *resource.Descriptor, status ...statusColumn) error {
	var out bytes.Buffer
	switch f {
	case formatJSON:
		if err := resource.Encode(&out, resource.FormatJSONList, resources...); err != nil {
			return err
		}
	case formatYAML:
		if err := resource.Encode(&out, resource.FormatYAML, resources...); err != nil {
			return err
		}
	case formatName:
		for _, r := range resources {
			out.WriteString(string(r.Key().Kind) + "/" + r.Key().Name + "\n")
		}
	default:
		if len(resources) == 0 {
			return nil
		}
		out.WriteString(a.resourceTable(resources, kind, f == formatWide, status).String())
	}
	return a.write(out.Bytes())
}

// printResource prints one resource by itself: in JSON and YAML the document
// that apply takes back.
func (a *app) printResource(f format, r *resource.Resource, kind *resource.Descriptor, status ...statusColumn) error {
	if f != formatJSON {
		return a.printResources(f, []*resource.Resource{r}, kind, status...)
	}
	var out bytes.Buffer
	if err := resource.Encode(&out, resource.FormatJSON, r); err != nil {
		return err
	}
	return a.write(out.Bytes())
}

// notSensitive returns the kinds whose content every user may read.
func notSensitive() []*resource.Descriptor {
	return slices.DeleteFunc(slices.Clone(resource.Kinds()), func(d *resource.Descriptor) bool { return d.Sensitive })
}

func kindNames(kinds []*resource.Descriptor) []string {
	names := make([]string, len(kinds))
	for i, d := range kinds {
		names[i] = string(d.Kind)
	}
	return names
}

// ago prints how long ago something was, "-" when it is not known.
func (a *app) ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return a.age(t.AsTime())
}
