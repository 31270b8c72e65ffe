package resource

import (
	"maps"
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
		if tagsValid(s.Match) { // before paths are made
			continue
		}
		match := at.Index(i).Field("match")
		if len(s.Match) == 0 {
			r.Errorf(match, "needs at least one tag, such as %s: '*'", ServiceTag)
			continue
		}
		checkTags(match, s.Match, r)
	}
}

// tagsValid reports whether there are tags, and checkTags finds nothing wrong with them.
func tagsValid(tags map[string]string) bool {
	for name, value := range tags {
		if name == "" || len(name) > maxTagName || strings.Contains(name, AnyValue) || strings.ContainsFunc(name, notInTag) {
			return false
		}
		if value != AnyValue && (value == "" || len(value) > maxTagValue || strings.Contains(value, AnyValue) || strings.ContainsFunc(value, notInTag)) {
			return false
		}
	}
	return len(tags) > 0
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
			r.Errorf(path, "a tag's name has no spaces, characters that do not print or '*'")
		}
		switch {
		case value == "":
			r.Errorf(path, "a tag needs a value; '*' matches any value")
		case len(value) > maxTagValue:
			r.Errorf(path, "the tag's value is longer than %d bytes", maxTagValue)
		case value != AnyValue && strings.Contains(value, AnyValue):
			r.Errorf(path, "'*' only stands alone and matches any value; %q would never match", doctree.Clip(value))
		case value != AnyValue && strings.ContainsFunc(value, notInTag):
			r.Errorf(path, "a tag's value has no spaces or characters that do not print, got %q", doctree.Clip(value))
		}
	}
}

// notInTag reports characters that tags cannot hold.
func notInTag(c rune) bool {
	return unicode.IsSpace(c) || unprintable(c)
}

// unprintable reports characters that a terminal does not show: control and format
// characters, such as those that change the direction of text.
func unprintable(c rune) bool { return !unicode.IsPrint(c) }

// checkOrder refuses a maximum below its minimum.
func checkOrder(at Path, least, most *Duration, leastName string, r *Report) {
	if least != nil && most != nil && most.Value() < least.Value() {
		r.Errorf(at, "must not be shorter than %s (%s)", leastName, least)
	}
}

// checkRegex refuses what is not an RE2 regular expression, where only another
// field says that it has to be one.
func checkRegex(at Path, pattern string, r *Report) {
	if problem := notRegex(pattern); problem != "" {
		r.Errorf(at, "%s", problem)
	}
}

// checkPath refuses what is not a path.
func checkPath(at Path, path string, r *Report) {
	if problem := notPath(path); problem != "" {
		r.Errorf(at, "%s", problem)
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
