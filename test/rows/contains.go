package rows

import "reflect"

// Contains reports whether a decoded JSON value, or a part of it, has all that another
// has: the members of objects, and equal values otherwise.
func Contains(value, want any) bool {
	if has(value, want) {
		return true
	}
	switch v := value.(type) {
	case map[string]any:
		for _, part := range v {
			if Contains(part, want) {
				return true
			}
		}
	case []any:
		for _, part := range v {
			if Contains(part, want) {
				return true
			}
		}
	}
	return false
}

func has(value, want any) bool {
	members, ok := want.(map[string]any)
	if !ok {
		return reflect.DeepEqual(value, want)
	}
	v, ok := value.(map[string]any)
	for name, member := range members {
		ok = ok && has(v[name], member)
	}
	return ok
}
