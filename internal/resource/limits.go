package resource

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"meridian/internal/doctree"
)

// limits are what the tags of a field say about its value, or about the values
// of a list. They hold for what an author wrote: an absent field has none.
type limits struct {
	min, max, above *bound
	format          func(text string) string
	notEmpty        bool
}

// bound is a number, or a duration in nanoseconds, and how messages write it.
type bound struct {
	text  string
	value float64
}

// limitsOf reads the tags; nil when there are none. Tags that cannot be read are
// a bug in a spec's type, found by the table's test.
func limitsOf(tag reflect.StructTag) *limits {
	l := limits{min: boundOf(tag, "min"), max: boundOf(tag, "max"), above: boundOf(tag, "above"), notEmpty: tag.Get("notEmpty") == "true"}
	if name := tag.Get("format"); name != "" {
		if l.format = formats[name]; l.format == nil {
			panic(fmt.Sprintf("resource: unknown format %q", name))
		}
	}
	if l.min == nil && l.max == nil && l.above == nil && l.format == nil && !l.notEmpty {
		return nil
	}
	return &l
}

func boundOf(tag reflect.StructTag, name string) *bound {
	text := tag.Get(name)
	if text == "" {
		return nil
	}
	if value, err := strconv.ParseFloat(text, 64); err == nil {
		return &bound{text, value}
	}
	return &bound{text, float64(MustDuration(text).Value())}
}

// violation says which limit a value does not keep; empty when it keeps all.
func (l *limits) violation(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case Duration:
		return l.outside(float64(value.Value()), value.String(), "longer than")
	case string:
		switch {
		case l.notEmpty && value == "":
			return "must not be empty"
		case l.format != nil:
			return l.format(value)
		}
		return ""
	}
	switch {
	case v.CanUint():
		return l.outside(float64(v.Uint()), strconv.FormatUint(v.Uint(), 10), "greater than")
	case v.CanFloat():
		return l.outside(v.Float(), strconv.FormatFloat(v.Float(), 'g', -1, 64), "greater than")
	default:
		return ""
	}
}

func (l *limits) outside(value float64, text, more string) string {
	low, high := l.min != nil && value < l.min.value, l.max != nil && value > l.max.value
	switch {
	case l.above != nil && value <= l.above.value:
		return fmt.Sprintf("must be %s %s", more, l.above.text)
	case (low || high) && l.min != nil && l.max != nil:
		return fmt.Sprintf("must be between %s and %s, got %s", l.min.text, l.max.text, text)
	case low:
		return fmt.Sprintf("must be at least %s, got %s", l.min.text, text)
	case high:
		return fmt.Sprintf("must be at most %s, got %s", l.max.text, text)
	}
	return ""
}

// formats are the values of the tag `format`: each returns what is wrong with a
// text, or nothing.
var formats = map[string]func(text string) string{
	"base64": notBase64,
	"path":   notPath,
	"regex":  notRegex,
	"bandwidth": func(text string) string {
		if bandwidth.MatchString(text) {
			return ""
		}
		return fmt.Sprintf("must be a number and kbps, mbps or gbps, such as \"50 mbps\", got %q", doctree.Clip(text))
	},
	"host": func(text string) string {
		if hostName(text) {
			return ""
		}
		return fmt.Sprintf("%q is not a host name", doctree.Clip(text))
	},
	"wildcardHost": func(text string) string {
		if plain, wild := strings.CutPrefix(text, "*."); hostName(text) || wild && hostName(plain) {
			return ""
		}
		return fmt.Sprintf("%q is neither a host name nor *. and one", doctree.Clip(text))
	},
}

var bandwidth = regexp.MustCompile(`^[0-9]+(\.[0-9]+)? ?[kmg]bps$`)

// notBase64 says that text is not standard base64.
func notBase64(text string) string {
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		return fmt.Sprintf("must be base64 of the bytes, got %q", doctree.Clip(text))
	}
	return ""
}

// notPath says that text is not the path of a URL or a file.
func notPath(text string) string {
	if strings.HasPrefix(text, "/") {
		return ""
	}
	return fmt.Sprintf("must begin with /, got %q", doctree.Clip(text))
}

// notRegex says that text is not an RE2 regular expression.
func notRegex(text string) string {
	if _, err := CheckRegex(text); err != nil {
		return err.Error()
	}
	return ""
}
