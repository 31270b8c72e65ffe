package vocabulary

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// root is the top of the repository.
const root = "../.."

// exempt are the pages that are about words, licences, and what tools write.
var exempt = []string{
	"docs/glossary.md", "docs/style.md", "test/vocabulary", "LICENSE",
	"go.mod", "go.sum", "tools", "bin", "internal/service/webhook/testdata/reviews",
}

var generated = regexp.MustCompile(`(\.pb\.go|\.test|\.prof|\.out)$|/testdata/(rapid|fuzz)/`)

var (
	hump     = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	acronym  = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
	notAWord = strings.NewReplacer("_", " ", "-", " ")
)

// plain returns a line in lower case with its identifiers split into words.
func plain(line string) string {
	line = acronym.ReplaceAllString(hump.ReplaceAllString(line, "$1 $2"), "$1 $2")
	return strings.ToLower(notAWord.Replace(line))
}

// within reports whether a file is one of the named files or below one of the
// named directories.
func within(path string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return path == name || strings.HasPrefix(path, name+"/")
	})
}

// findings returns the forbidden words in a file, one line each.
func findings(path, text string) []string {
	var found []string
	report := func(line int, r rule, word string) {
		found = append(found, fmt.Sprintf("%s:%d: %q: write %s", path, line, word, r.instead))
	}
	for i, line := range strings.Split(text, "\n") {
		line = plain(line)
		for _, c := range compiled {
			if within(path, c.allowed) {
				continue
			}
			if word := c.re.FindString(line); word != "" {
				report(i+1, c.rule, word)
			}
		}
	}
	for _, c := range compiled {
		if word := c.re.FindString(plain(path)); word != "" && !within(path, c.allowed) {
			report(0, c.rule, word)
		}
	}
	return found
}

type compiledRule struct {
	rule
	re *regexp.Regexp
}

var compiled = func() []compiledRule {
	var all []compiledRule
	for _, r := range rules {
		all = append(all, compiledRule{rule: r, re: regexp.MustCompile(`\b(` + r.pattern + `)\b`)})
	}
	return all
}()

// files calls visit with the path and the content of every text file of the
// repository that a person wrote.
func files(t *testing.T, visit func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		path := filepath.ToSlash(strings.TrimPrefix(full, root+string(filepath.Separator)))
		switch {
		case err != nil || full == root:
			return err
		case d.IsDir():
			if path == ".git" || path == ".cache" || within(path, exempt) || generated.MatchString("/"+path+"/") {
				return filepath.SkipDir
			}
			return nil
		case !d.Type().IsRegular() || path == ".git" || within(path, exempt) || generated.MatchString("/"+path):
			return nil
		}
		text, err := os.ReadFile(full)
		if err == nil && utf8.Valid(text) {
			visit(path, string(text))
		}
		return err
	})
	require.NoError(t, err)
}

// Every file uses the words of the glossary.
func TestVocabulary(t *testing.T) {
	var found []string
	files(t, func(path, text string) {
		found = append(found, findings(path, text)...)
	})
	const most = 200
	if len(found) > most {
		found = append(found[:most:most], fmt.Sprintf("and %d more", len(found)-most))
	}
	require.Empty(t, found, "docs/glossary.md names the words to use:\n%s", strings.Join(found, "\n"))
}

// Identifiers are read as the words that they consist of.
func TestIdentifiersAreSplit(t *testing.T) {
	for text, word := range map[string]string{
		"func (l *Limiter) StrangersWrite() {": "strangers",
		"strangers_total":                      "strangers",
		"n.mendLocked(ctx)":                    "mend",
		"HTTPDoor":                             "door",
		"the caller, whoever it is":            "whoever",
	} {
		require.Len(t, findings("x.go", text), 1, text)
		require.Contains(t, findings("x.go", text)[0], fmt.Sprintf("%q", word))
	}
	require.Empty(t, findings("x.go", "recommended amendments to bedrooms"))
}
