// Package semantics holds the rules of Meridian: the pages of this directory,
// cut into one rule per section number, so that the command can print them and
// a test can check citations.
//
// Guarantees: every heading of a page that starts with a section number is a
// rule; rules are in the order of their numbers; looking one up reads no file.
//
// Non-goals: rendering Markdown. Plain drops only what has no meaning in a
// terminal.
package semantics

import (
	"embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

//go:embed [1-9]*.md
var pages embed.FS

// Rule is one section of the pages.
type Rule struct {
	// Number is the section number without its sign, such as "3.3". A chapter
	// has no dot.
	Number string
	Title  string
	// Page is the file that has the rule.
	Page string
	// Text is the Markdown below the heading, up to the next section.
	Text string
}

// Chapter reports whether the rule is the introduction of a chapter.
func (r Rule) Chapter() bool { return !strings.Contains(r.Number, ".") }

var heading = regexp.MustCompile(`(?m)^(?:<a id="[^"]*"></a>\n)?##? §([0-9]+(?:\.[0-9]+)?) (.+)\n`)

// Rules returns every rule, in the order of the pages. The caller must not
// change the slice.
var Rules = sync.OnceValue(func() []Rule {
	entries, err := pages.ReadDir(".")
	if err != nil {
		panic(fmt.Sprintf("list the embedded pages: %v", err)) // embedding guarantees the directory
	}
	var rules []Rule
	for _, entry := range entries { // sorted by name, and names start with the chapter
		content, err := pages.ReadFile(entry.Name())
		if err != nil {
			panic(fmt.Sprintf("read the embedded page %s: %v", entry.Name(), err))
		}
		rules = append(rules, cut(entry.Name(), string(content))...)
	}
	return rules
})

// cut splits a page at its numbered headings.
func cut(page, text string) []Rule {
	found := heading.FindAllStringSubmatchIndex(text, -1)
	rules := make([]Rule, len(found))
	for i, at := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		rules[i] = Rule{
			Number: text[at[2]:at[3]], Title: text[at[4]:at[5]], Page: page,
			Text: strings.TrimSpace(text[at[1]:end]),
		}
	}
	return rules
}

// Find returns the rule with a number, written with or without its sign.
func Find(number string) (Rule, bool) {
	number = strings.TrimPrefix(number, "§")
	for _, r := range Rules() {
		if r.Number == number {
			return r, true
		}
	}
	return Rule{}, false
}

// Nearest returns the rule whose number is closest to one that does not exist:
// in its chapter if there is one, else the closest chapter.
func Nearest(number string) Rule {
	chapter, section := split(strings.TrimPrefix(number, "§"))
	var best Rule
	distance := -1
	for _, r := range Rules() {
		c, s := split(r.Number)
		const chapters = 1 << 16 // a chapter is further away than any section
		if d := abs(c-chapter)*chapters + abs(s-section); distance < 0 || d < distance {
			best, distance = r, d
		}
	}
	return best
}

func split(number string) (chapter, section int) {
	first, second, _ := strings.Cut(number, ".")
	chapter, _ = strconv.Atoi(first) // what is no number is 0
	section, _ = strconv.Atoi(second)
	return chapter, section
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

var (
	tests = regexp.MustCompile(`(?m)^Tests: .*\n?`)
	link  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// Plain returns the text for a terminal: links as their words, without the list
// of tests, which only the source tree has.
func (r Rule) Plain() string {
	return strings.TrimSpace(link.ReplaceAllString(tests.ReplaceAllString(r.Text, ""), "$1"))
}
