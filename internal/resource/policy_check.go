package resource

import (
	"encoding/base64"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"meridian/internal/doctree"
)

const (
	// maxTagName and maxTagValue bound tags as Kubernetes bounds label names
	// with their prefix, and names.
	maxTagName  = 253 + 1 + 63
	maxTagValue = 253
)

// checkSelectors refuses an absent or empty list and entries without tags
// (§2.1).
func checkSelectors(at Path, selectors []Selector, r *Report) {
	if len(selectors) == 0 {
		r.Errorf(at, "is required: write at least one `- match:` with a tag, such as %s: '*'", ServiceTag)
		return
	}
	for i, s := range selectors {
		match := at.Index(i).Field("match")
		if len(s.Match) == 0 {
			r.Errorf(match, "needs at least one tag, such as %s: '*'", ServiceTag)
			continue
		}
		checkTags(match, s.Match, r)
	}
}

// checkTags refuses tags that no dataplane could carry. '*' stands alone.
func checkTags(at Path, tags map[string]string, r *Report) {
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		path, value := doctree.MemberPath(at, name), tags[name]
		switch {
		case name == "":
			r.Errorf(path, "a tag needs a name")
		case len(name) > maxTagName:
			r.Errorf(path, "the tag's name is longer than %d bytes", maxTagName)
		case strings.ContainsFunc(name, notInTag) || strings.Contains(name, AnyValue):
			r.Errorf(path, "a tag's name has no spaces, control characters or '*'")
		}
		switch {
		case value == "":
			r.Errorf(path, "a tag needs a value; '*' matches any value")
		case len(value) > maxTagValue:
			r.Errorf(path, "the tag's value is longer than %d bytes", maxTagValue)
		case value != AnyValue && strings.Contains(value, AnyValue):
			r.Errorf(path, "'*' only stands alone and matches any value; %q would never match", doctree.Clip(value))
		case value != AnyValue && strings.ContainsFunc(value, notInTag):
			r.Errorf(path, "a tag's value has no spaces or control characters, got %q", doctree.Clip(value))
		}
	}
}

// notInTag reports characters that tags cannot hold.
func notInTag(c rune) bool {
	return unicode.IsSpace(c) || unicode.IsControl(c)
}

// checkAbove refuses a written duration of zero where zero makes no sense.
func checkAbove(at Path, d *Duration, r *Report) {
	if d != nil && d.Value() <= 0 {
		r.Errorf(at, "must be longer than 0s")
	}
}

// checkOrder refuses a maximum below its minimum.
func checkOrder(at Path, least, most *Duration, leastName string, r *Report) {
	if least != nil && most != nil && most.Value() < least.Value() {
		r.Errorf(at, "must not be shorter than %s (%s)", leastName, least)
	}
}

// number is any number that a field may hold.
type number interface {
	~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64 | ~float64
}

// checkBetween refuses a written number outside least..most.
func checkBetween[N number](at Path, value *N, least, most N, r *Report) {
	if value != nil && (*value < least || *value > most) {
		r.Errorf(at, "must be between %v and %v, got %v", least, most, *value)
	}
}

// checkAtLeastOne refuses a written count of zero.
func checkAtLeastOne[N number](at Path, value *N, r *Report) {
	if value != nil && *value < 1 {
		r.Errorf(at, "must be at least 1")
	}
}

// checkStatuses refuses numbers that are no HTTP status.
func checkStatuses(at Path, statuses []uint32, r *Report) {
	for i := range statuses {
		checkBetween(at.Index(i), &statuses[i], 100, 599, r)
	}
}

// checkRegex refuses what is not an RE2 regular expression.
func checkRegex(at Path, pattern string, r *Report) {
	if _, err := regexp.Compile(pattern); err != nil {
		r.Errorf(at, "is not a regular expression (RE2): %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
}

// checkBase64 refuses text that is not standard base64.
func checkBase64(at Path, text string, r *Report) {
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		r.Errorf(at, "must be base64 of the bytes, got %q", doctree.Clip(text))
	}
}

// checkText refuses a required text that was written empty.
func checkText(at Path, text string, r *Report) {
	if text == "" {
		r.Errorf(at, "must not be empty")
	}
}

// choice is a member of an object of which only one may be written.
type choice struct {
	name    string
	written bool
}

// checkOneOf refuses objects with none or several of their alternatives.
func checkOneOf(at Path, r *Report, choices ...choice) {
	var names, written []string
	for _, c := range choices {
		names = append(names, c.name)
		if c.written {
			written = append(written, c.name)
		}
	}
	switch len(written) {
	case 0:
		r.Errorf(at, "needs one of %s", strings.Join(names, ", "))
	case 1:
	default:
		r.Errorf(at, "has %s; keep one of them", strings.Join(written, " and "))
	}
}
