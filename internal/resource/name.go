package resource

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"meridian/internal/doctree"
)

// DefaultMesh is the mesh of documents that name none.
const DefaultMesh MeshName = "default"

// maxName is the longest name of a resource or mesh (§1.1).
const maxName = 253

// CheckName refuses what is not a DNS-1123 subdomain of at most 253 characters:
// lower-case letters, digits, - and ., a letter or digit at both ends of every
// part (§1.1). The error is a clause that shows what is wrong and,
// where one exists, a name that would do.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a name is required")
	case len(name) > maxName:
		return fmt.Errorf("%q is %d characters long; a name has at most %d", doctree.Clip(name), utf8.RuneCountInString(name), maxName)
	}
	for _, r := range name {
		if !nameRune(r) {
			return fmt.Errorf("%q cannot hold %q: a name is made of lower-case letters, digits, - and .%s", doctree.Clip(name), r, validNameHint(name))
		}
	}
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || strings.HasPrefix(part, "-") || strings.HasSuffix(part, "-") {
			return fmt.Errorf("%q must begin and end with a letter or digit, before and after every dot too%s", doctree.Clip(name), validNameHint(name))
		}
	}
	return nil
}

func nameRune(r rune) bool {
	return (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') || r == '-' || r == '.'
}

// validNameHint proposes the nearest valid name.
func validNameHint(name string) string {
	var parts []string
	for part := range strings.SplitSeq(strings.ToLower(name), ".") {
		part = strings.Map(func(r rune) rune {
			if nameRune(r) {
				return r
			}
			return '-'
		}, part)
		if part = strings.Trim(part, "-"); part != "" {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("; %q would do", doctree.Clip(strings.Join(parts, ".")))
}
