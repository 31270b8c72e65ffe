package resource

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"meridian/internal/doctree"
)

// Limits on the labels of a resource (§1.1).
const (
	// MaxLabels is how many labels a resource has at most.
	MaxLabels = 64
	// MaxLabelValue is the longest value, in bytes.
	MaxLabelValue = 4 << 10
	// MaxLabelBytes bounds all keys and values of a resource together, in bytes.
	MaxLabelBytes = 16 << 10
	// maxLabelName is the longest key without its prefix, as in Kubernetes.
	maxLabelName = 63
)

// labelName is the key of a label without its prefix, as in Kubernetes.
var labelName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// CheckLabels reports what is wrong with the labels that an author gives a
// resource (§1.1). at is their path. Resources that are stored already are not
// checked again: an earlier release did not limit labels.
func CheckLabels(key Key, labels map[string]string, at Path, report *Report) {
	if name, written := labels[LabelNamespaceName]; written && key.Kind == KindNamespace && name != key.Name {
		report.Errorf(at.Key(LabelNamespaceName), "is always the name of the namespace, %q; leave it out", key.Name)
	}
	if len(labels) > MaxLabels {
		report.Errorf(at, "there are %d labels; a resource has at most %d", len(labels), MaxLabels)
		return
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		size += len(key) + len(value)
		if wrong := wrongLabelKey(key); wrong != "" {
			report.Errorf(at, "the key %q %s", doctree.Clip(key), wrong)
			continue
		}
		if wrong := wrongLabelValue(value); wrong != "" {
			report.Errorf(at.Key(key), "%s", wrong)
		}
	}
	if size > MaxLabelBytes {
		report.Errorf(at, "keys and values take %d bytes together; the labels of a resource take at most %d", size, MaxLabelBytes)
	}
}

// wrongLabelKey says what keeps a text from being the key of a label in
// Kubernetes, or nothing.
func wrongLabelKey(key string) string {
	name := key
	if prefix, rest, prefixed := strings.Cut(key, "/"); prefixed {
		name = rest
		if CheckName(prefix) != nil {
			return "must have a DNS name of lower-case letters, digits, - and . before the slash"
		}
	}
	switch {
	case len(name) > maxLabelName:
		return fmt.Sprintf("is too long; a key has at most %d characters, beside a DNS name and a slash", maxLabelName)
	case !labelName.MatchString(name):
		return "must be letters, digits, -, _ and ., with a letter or digit at both ends; a DNS name and a slash may stand before it"
	}
	return ""
}

// wrongLabelValue says what keeps a text from being the value of a label, or
// nothing. Control characters, and those that change the direction of what
// follows, would change what a terminal shows.
func wrongLabelValue(value string) string {
	if len(value) > MaxLabelValue {
		return fmt.Sprintf("takes %d bytes; the value of a label takes at most %d", len(value), MaxLabelValue)
	}
	if !utf8.ValidString(value) {
		return "is not UTF-8"
	}
	for _, r := range value {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return fmt.Sprintf("cannot hold the control character %U", r)
		}
	}
	return ""
}

// labelOverhead estimates what a label takes beside its text: the headers of two
// strings, and its place in a map or the tags of a message.
const labelOverhead = 32

// Size estimates the memory that a resource keeps alive and the space that it
// takes in a message, in bytes: identity, labels and specification. Every limit
// on the size of several resources counts by it.
func (r *Resource) Size() int {
	size := len(r.meta.Kind) + len(r.meta.Mesh) + len(r.meta.Name) + len(r.canonical)
	for key, value := range r.meta.Labels {
		size += len(key) + len(value) + labelOverhead
	}
	return size
}
