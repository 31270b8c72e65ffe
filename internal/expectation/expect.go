package expectation

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// comparisons are the operators that an expectation may begin with, the longer ones
// first.
var comparisons = []string{"<=", ">=", "!=", "==", "<", ">"}

// meets reports whether a value is as expected. The error says why they cannot be
// compared.
func meets(expect json.RawMessage, value any) (bool, error) {
	want, err := decoded(expect)
	if err != nil {
		return false, err
	}
	text, ok := want.(string)
	if !ok {
		return same(want, value)
	}
	for _, operator := range comparisons {
		rest, found := strings.CutPrefix(text, operator)
		if !found {
			continue
		}
		rest = strings.TrimSpace(rest)
		order, err := compare(value, rest)
		if err != nil {
			return false, err
		}
		switch operator {
		case "<=":
			return order <= 0, nil
		case ">=":
			return order >= 0, nil
		case "<":
			return order < 0, nil
		case ">":
			return order > 0, nil
		case "==":
			return order == 0, nil
		default:
			return order != 0, nil
		}
	}
	if order, err := compare(value, text); err == nil && order == 0 {
		return true, nil
	}
	return same(want, value)
}

// decoded returns the value of a JSON text, numbers as json.Number.
func decoded(data []byte) (any, error) {
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, fmt.Errorf("read the expectation: %w", err)
	}
	return value, nil
}

// same reports whether two values have the same canonical JSON.
func same(a, b any) (bool, error) {
	x, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := json.Marshal(b)
	if err != nil {
		return false, err
	}
	return string(x) == string(y), nil
}

// compare orders a value and the text of another: durations by length, numbers by size.
func compare(value any, text string) (int, error) {
	if value == nil {
		return 0, fmt.Errorf("nothing is set, which cannot be compared with %q", text)
	}
	have := fmt.Sprint(value)
	if _, isText := value.(string); isText {
		a, errA := resource.ParseDuration(have)
		b, errB := resource.ParseDuration(text)
		if errA == nil && errB == nil {
			switch x, y := a.Value(), b.Value(); {
			case x < y:
				return -1, nil
			case x > y:
				return 1, nil
			}
			return 0, nil
		}
	}
	a, okA := new(big.Rat).SetString(have)
	b, okB := new(big.Rat).SetString(text)
	if okA && okB {
		return a.Cmp(b), nil
	}
	if have == text {
		return 0, nil
	}
	return 0, fmt.Errorf("%s and %q are neither two numbers nor two durations", show(value), text)
}

// field returns the value of a configuration at a path, as a.b.c or /a/b/c; nil if it is
// not there.
func field(conf policy.Tree, path string) any {
	if !strings.HasPrefix(path, "/") {
		path = "/" + strings.ReplaceAll(path, ".", "/")
	}
	var value any = conf
	for name := range strings.SplitSeq(path[1:], "/") {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
	}
	return value
}

// pointer returns a path as the documents of inspect write it.
func pointer(path string) policy.Pointer {
	if strings.HasPrefix(path, "/") {
		return policy.Pointer(path)
	}
	return policy.Pointer("/" + strings.ReplaceAll(path, ".", "/"))
}

// show prints a value for a message.
func show(value any) string {
	if value == nil {
		return "nothing"
	}
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(data)
}
