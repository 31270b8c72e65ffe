package resource

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// marshalInline encodes a struct with the fields by which it is decoded: those of
// a field marked inline stand among its own. encoding/json does so for embedded
// fields only, and a type parameter cannot be embedded.
func marshalInline(of any) ([]byte, error) {
	v := reflect.ValueOf(of)
	object := []byte{'{'}
	for _, f := range planOf(v.Type()).fields {
		value := v.FieldByIndex(f.index)
		if strings.HasSuffix(v.Type().FieldByIndex(f.index).Tag.Get("json"), ",omitzero") && value.IsZero() {
			continue
		}
		text, err := json.Marshal(value.Interface())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if len(object) > 1 {
			object = append(object, ',')
		}
		object = append(object, fmt.Sprintf("%q:", f.name)...)
		object = append(object, text...)
	}
	return append(object, '}'), nil
}

// MarshalJSON implements json.Marshaler.
func (i Item[C]) MarshalJSON() ([]byte, error) { return marshalInline(i) }

// MarshalJSON implements json.Marshaler.
func (b Block[T]) MarshalJSON() ([]byte, error) { return marshalInline(b) }

// MarshalJSON implements json.Marshaler.
func (p ItemPolicy[C, PC, S, PS]) MarshalJSON() ([]byte, error) { return marshalInline(p) }
