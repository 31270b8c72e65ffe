package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A part ends only where a line separates documents: not within a word or a line, not
// where the line may continue, and not between a document and its directives.
func TestPartsEndBetweenDocuments(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\n---\nb: 2\n":                 "a: 1\n",
		"a: 1\n--- # comment\nb: 2\n":       "a: 1\n",
		"a: 1\n---\r\nb: |\n  ---\n  x\n":   "a: 1\n",
		"a: 1\n---\nb: x\n---y: 3\n":        "a: 1\n",
		"a: 1\n---\nb: 2\n---":              "a: 1\n",
		"a: 1\n...\n%YAML 1.2\n---\nb: 2\n": "",
		"%YAML 1.2\n---\nb: 2\n---\nc: 3\n": "%YAML 1.2\n---\nb: 2\n",
		"---\na: 1\n":                       "",
		"":                                  "",
	} {
		require.Equal(t, want, text[:lastSeparator([]byte(text))], "%q", text)
	}
}
