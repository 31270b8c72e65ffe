package condition

import (
	"encoding/json"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// adapter lets expressions read JSON trees in place, without a copy. Integral
// numbers become CEL ints, others doubles (§5.6).
type adapter struct{ types.Adapter }

// NativeToValue implements types.Adapter.
func (a adapter) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case json.Number:
		return number(v)
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	default:
		return a.Adapter.NativeToValue(value)
	}
}

func number(n json.Number) ref.Val {
	if i, err := n.Int64(); err == nil {
		return types.Int(i)
	}
	f, err := n.Float64()
	if err != nil {
		return types.NewErr("%q is not a number that fits", n.String())
	}
	if i := int64(f); f == float64(i) && i > -1<<53 && i < 1<<53 {
		return types.Int(i)
	}
	return types.Double(f)
}
