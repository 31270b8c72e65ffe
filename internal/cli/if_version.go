package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/resource"
)

// bindIfVersion defines --if-version.
func bindIfVersion(cmd *cobra.Command, values *[]string, usage string) {
	cmd.Flags().StringArrayVar(values, "if-version", nil, usage)
}

// asStored is the condition that a resource is stored as it was read: a resource that
// was deleted and created anew since may have the same version, and has another
// revision.
func asStored(r *resource.Resource) []*meridianv1.VersionCondition {
	m := r.Meta()
	return []*meridianv1.VersionCondition{{Key: messageKey(m.Key), Version: m.Version, Revision: uint64(m.Revision)}}
}

// ifVersions are the conditions of --if-version on resources of a batch. A value is
// VERSION, where the batch has one resource, or KIND/NAME=VERSION; VERSION may be
// VERSION@REVISION.
func ifVersions(values []string, batch []resource.Key) ([]*meridianv1.VersionCondition, error) {
	var conditions []*meridianv1.VersionCondition
	seen := map[resource.Key]bool{}
	for _, value := range values {
		name, number, named := strings.Cut(value, "=")
		if !named {
			name, number = "", value
		}
		version, revision, err := parseVersion(number)
		if err != nil {
			return nil, exit.Usagef("--if-version %q: write VERSION or KIND/NAME=VERSION, with a number such as 0 or 7, or 7@1842 for version 7 of revision 1842", value)
		}
		key, err := conditioned(value, name, batch)
		if err != nil {
			return nil, err
		}
		if seen[key] {
			return nil, exit.Usagef("--if-version %q: %s has a condition already", value, key)
		}
		seen[key] = true
		conditions = append(conditions, &meridianv1.VersionCondition{Key: messageKey(key), Version: version, Revision: revision})
	}
	return conditions, nil
}

// parseVersion reads VERSION or VERSION@REVISION. A revision is not zero, and goes
// with a version that is not.
func parseVersion(text string) (version, revision uint64, err error) {
	number, of, named := strings.Cut(text, "@")
	if version, err = strconv.ParseUint(number, 10, 64); err != nil || !named {
		return version, 0, err
	}
	revision, err = strconv.ParseUint(of, 10, 64)
	if err == nil && (version == 0 || revision == 0) {
		err = strconv.ErrRange
	}
	return version, revision, err
}

// conditioned finds the resource of a batch that a value of --if-version names.
func conditioned(value, name string, batch []resource.Key) (resource.Key, error) {
	if name == "" {
		if len(batch) != 1 {
			return resource.Key{}, exit.Usagef("--if-version is about one resource; the input holds %d: write KIND/NAME=VERSION", len(batch))
		}
		return batch[0], nil
	}
	names, err := parseNames([]string{name})
	if err != nil {
		return resource.Key{}, err
	}
	var found []resource.Key
	for _, key := range batch {
		if key.Kind == names[0].kind.Kind && key.Name == resource.ReadName(names[0].name) {
			found = append(found, key)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return resource.Key{}, exit.Usagef("--if-version %q: the input does not hold %s/%s", value, names[0].kind.Kind, names[0].name)
	}
	return resource.Key{}, exit.Usagef("--if-version %q: the input holds %s and %s; send them one at a time", value, found[0], found[1])
}

// documentVersions adds the conditions that documents carry: the version that each
// was read at (§1.2). They hold where a resource does not exist, so that an export
// can be applied elsewhere.
func documentVersions(resources []*resource.Resource, given []*meridianv1.VersionCondition) []*meridianv1.VersionCondition {
	explicit := map[resource.Key]bool{}
	for _, c := range given {
		k := c.GetKey()
		explicit[resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}] = true
	}
	for _, r := range resources {
		if m := r.Meta(); m.Version > 0 && !explicit[m.Key] {
			given = append(given, &meridianv1.VersionCondition{Key: messageKey(m.Key), Version: m.Version, OrMissing: true})
		}
	}
	return given
}

func keysOf(resources []*resource.Resource) []resource.Key {
	keys := make([]resource.Key, len(resources))
	for i, r := range resources {
		keys[i] = r.Key()
	}
	return keys
}
