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

var notAWord = strings.NewReplacer("_", " ", "-", " ")

// plain returns a line in lower case with its identifiers split into words: a word begins
// at a capital letter after another letter or a digit, of several capital letters at the
// last where a small one follows it.
func plain(line string) string {
	var split strings.Builder
	split.Grow(len(line) + len(line)/4)
	upper := func(i int) bool { return i < len(line) && 'A' <= line[i] && line[i] <= 'Z' }
	lower := func(i int) bool { return i < len(line) && 'a' <= line[i] && line[i] <= 'z' }
	for i := range len(line) {
		if i > 0 && upper(i) {
			digit := '0' <= line[i-1] && line[i-1] <= '9'
			if lower(i-1) || digit || upper(i-1) && lower(i+1) {
				split.WriteByte(' ')
			}
		}
		split.WriteByte(line[i])
	}
	return strings.ToLower(notAWord.Replace(split.String()))
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
		if !anyRule.MatchString(line) {
			continue // as nearly all
		}
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

// anyRule matches what one of the rules does: to look for each takes many times as long.
var anyRule = func() *regexp.Regexp {
	var patterns []string
	for _, r := range rules {
		patterns = append(patterns, r.pattern)
	}
	return regexp.MustCompile(`\b(` + strings.Join(patterns, "|") + `)\b`)
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
