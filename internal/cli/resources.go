package cli

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/resource"
)

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
		return nil, exit.Usagef("%s: %w", d.Kind, err)
	}
	key := &meridianv1.ResourceKey{Kind: string(d.Kind), Name: name}
	if d.Scope == resource.MeshScoped {
		key.Mesh = mesh
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
