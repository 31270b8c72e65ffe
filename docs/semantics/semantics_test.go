package semantics_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/docs/semantics"
)

func TestFind(t *testing.T) {
	for _, number := range []string{"3.3", "§3.3"} {
		r, ok := semantics.Find(number)
		require.True(t, ok)
		require.Equal(t, "Rank", r.Title)
		require.Equal(t, "3-source-destination.md", r.Page)
		require.True(t, strings.HasPrefix(r.Text, "Policies that match one attachment are compared"), r.Text)
		require.NotContains(t, r.Text, "Tie-break\n", "the next rule is not part of it")
		require.NotContains(t, r.Text, "<a id", "nor is its anchor")
	}
	chapter, ok := semantics.Find("§3")
	require.True(t, ok)
	require.True(t, chapter.Chapter())
	_, ok = semantics.Find("3.30")
	require.False(t, ok)
}

func TestNearest(t *testing.T) {
	for number, want := range map[string]string{
		"§3.30": "3.7", "3.8": "3.7", "9": "7", "9.9": "7.7", "0.1": "1.1", "x": "1",
	} {
		require.Equal(t, want, semantics.Nearest(number).Number, number)
	}
}

func TestPlain(t *testing.T) {
	r, _ := semantics.Find("3.7")
	require.Contains(t, r.Plain(), "| `{web, v1}` beats `{web, *}` | exact-beats-wildcard |")
	for _, r := range semantics.Rules() {
		require.NotEmpty(t, r.Plain(), r.Number)
		require.NotContains(t, r.Plain(), "](", r.Number)
		require.NotContains(t, r.Plain(), "Tests:", r.Number)
	}
}

// Numbers are stable: rules follow each other without gaps.
func TestNumbers(t *testing.T) {
	last := map[string]int{"1": 5, "2": 3, "3": 7, "4": 11, "5": 9, "6": 11, "7": 7}
	count := map[string]int{}
	for _, r := range semantics.Rules() {
		if !r.Chapter() {
			chapter, _, _ := strings.Cut(r.Number, ".")
			count[chapter]++
		}
	}
	for chapter, n := range last {
		require.GreaterOrEqual(t, count[chapter], n, "a rule of chapter %s is missing", chapter)
	}
}
