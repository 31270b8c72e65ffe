package vocabulary

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	packageClause = regexp.MustCompile(`(?m)^package (\w+)$`)
	errorText     = regexp.MustCompile(`\b(?:errors\.New|fmt\.Errorf)\("(\w+): `)
)

// An error says what was attempted and on what. It does not begin with the name
// of a package: an operator would have to skip it.
func TestErrorsDoNotNamePackages(t *testing.T) {
	packages := map[string]bool{}
	texts := map[string][]string{}
	files(t, func(path, text string) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "internal/") {
			return
		}
		if name := packageClause.FindStringSubmatch(text); name != nil {
			packages[name[1]] = true
		}
		for _, found := range errorText.FindAllStringSubmatch(text, -1) {
			texts[found[1]] = append(texts[found[1]], path)
		}
	})
	require.Contains(t, packages, "zonesync")
	var found []string
	for name, paths := range texts {
		if packages[name] {
			found = append(found, fmt.Sprintf("%q in %s", name+": ", strings.Join(paths, ", ")))
		}
	}
	require.Empty(t, found, "errors begin with the name of a package")
}
