package past

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"meridian/internal/resource"
)

// Write is one write of a resource.
type Write struct {
	Revision resource.Revision
	Time     time.Time
	// User and Batch are empty where they are not known.
	User, Batch string
	// Resource is what was written, nil for a deletion.
	Resource *resource.Resource
}

// Set says which write gave a field the value that it has.
type Set struct {
	// Field is a JSON pointer into the document, such as "/conf/connectTimeout"; for a
	// label "/labels/NAME".
	Field string
	// By is the write, nil where it is older than what is kept.
	By *Write
}

// Blame returns, in the order of their names, the leaves of the newest content with the
// write that set each: the first after which it has had its present value without
// interruption. writes are newest first; first is what was stored before the oldest of
// them, nil for nothing. The elements of a list are followed by their position.
func Blame(writes []Write, first *resource.Resource) ([]Set, error) {
	if len(writes) == 0 || writes[0].Resource == nil {
		return nil, nil
	}
	now, err := leaves(writes[0].Resource)
	if err != nil {
		return nil, err
	}
	by := make(map[string]*Write, len(now))
	open := maps.Clone(now) // leaves whose write is not known yet
	for i := range writes {
		older := first
		if i+1 < len(writes) {
			older = writes[i+1].Resource
		}
		before, err := leaves(older)
		if err != nil {
			return nil, err
		}
		for field, value := range open {
			if was, ok := before[field]; !ok || was != value {
				by[field] = &writes[i]
				delete(open, field)
			}
		}
		if len(open) == 0 {
			break
		}
	}
	var sets []Set
	for _, field := range slices.Sorted(maps.Keys(now)) {
		sets = append(sets, Set{Field: field, By: by[field]})
	}
	return sets, nil
}

// Difference is a field that differs between two contents, as Set names it.
type Difference struct {
	Field string `json:"field"`
	// Before and After are its values as JSON, nil where there is none.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// Compare returns, in the order of their names, the leaves that differ between two
// contents, either of which may be nil.
func Compare(before, after *resource.Resource) ([]Difference, error) {
	was, err := leaves(before)
	if err != nil {
		return nil, err
	}
	is, err := leaves(after)
	if err != nil {
		return nil, err
	}
	both := maps.Clone(was)
	maps.Copy(both, is)
	out := []Difference{}
	for _, field := range slices.Sorted(maps.Keys(both)) {
		if was[field] == is[field] {
			continue
		}
		d := Difference{Field: field}
		if value, ok := was[field]; ok {
			d.Before = json.RawMessage(value)
		}
		if value, ok := is[field]; ok {
			d.After = json.RawMessage(value)
		}
		out = append(out, d)
	}
	return out, nil
}

// leaves are the values of a resource that hold no others, as JSON, by pointer.
func leaves(r *resource.Resource) (map[string]string, error) {
	out := map[string]string{}
	if r == nil {
		return out, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(r.Canonical()))
	decoder.UseNumber() // every digit counts
	var spec any
	if err := decoder.Decode(&spec); err != nil {
		return nil, fmt.Errorf("%s: the stored spec: %w", r.Key(), err)
	}
	if err := walk("", spec, out); err != nil {
		return nil, err
	}
	for name, value := range r.Meta().Labels {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		out["/labels/"+escape(name)] = string(text)
	}
	return out, nil
}

func walk(at string, value any, out map[string]string) error {
	switch v := value.(type) {
	case map[string]any:
		if len(v) > 0 || at == "" {
			for name, element := range v {
				if err := walk(at+"/"+escape(name), element, out); err != nil {
					return err
				}
			}
			return nil
		}
	case []any:
		if len(v) > 0 {
			for i, element := range v {
				if err := walk(at+"/"+strconv.Itoa(i), element, out); err != nil {
					return err
				}
			}
			return nil
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	out[at] = string(text)
	return nil
}

// escape writes a name as a part of a JSON pointer (RFC 6901).
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
