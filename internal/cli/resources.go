package cli

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meridian/internal/cli/exit"
	"meridian/internal/resource"
)

// splitSlash lets TYPE/NAME, as it is printed, stand for TYPE NAME.
func splitSlash(args []string) []string {
	if len(args) == 1 {
		if kind, name, ok := strings.Cut(args[0], "/"); ok {
			return []string{kind, resource.ReadName(name)}
		}
	}
	if len(args) == 2 {
		return []string{args[0], resource.ReadName(args[1])}
	}
	return args
}

// keyOf returns the identity of a named resource of a kind in the command's
// mesh.
func keyOf(d *resource.Descriptor, mesh, name string) (resource.Key, error) {
	name = resource.ReadName(name)
	if err := resource.CheckName(name); err != nil {
		return resource.Key{}, exit.Usagef("%s: %w", d.Kind, err)
	}
	key := resource.Key{Kind: d.Kind, Name: name}
	if d.Scope == resource.MeshScoped {
		key.Mesh = resource.MeshName(mesh)
	}
	return key, nil
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
	return a.Age(t.AsTime())
}
