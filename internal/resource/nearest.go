package resource

import (
	"strings"
)

// maxSuggestWord is the longest word a suggestion is looked for: longer
// words are rarely mistyped, and the search is quadratic.
const maxSuggestWord = 64

// Nearest returns the candidate that word is most probably a misspelling of.
// Letter case does not count; one edit is allowed per three letters, three at
// most. Among equally near candidates the bytewise first is returned, whatever
// their order.
func Nearest(word string, candidates []string) (string, bool) {
	if len(word) > maxSuggestWord {
		return "", false
	}
	lower := strings.ToLower(word)
	best, bestDistance := "", min(3, max(1, (len(word)+1)/3))+1
	for _, candidate := range candidates {
		if len(candidate) > maxSuggestWord || abs(len(candidate)-len(word)) > bestDistance {
			continue // at least as many edits as the lengths differ by
		}
		d := editDistance(lower, strings.ToLower(candidate))
		if d >= len(candidate) { // nothing of the candidate was left
			continue
		}
		if d < bestDistance || (d == bestDistance && best != "" && candidate < best) {
			best, bestDistance = candidate, d
		}
	}
	return best, best != ""
}

func abs(n int) int { return max(n, -n) }

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func editDistance(a, b string) int {
	previous, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			replace := row[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			next[j] = min(replace, row[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], previous[j-2]+1)
			}
		}
		previous, row, next = row, next, previous
	}
	return row[len(b)]
}

// didYouMean is the tail of a message about an unknown word, or nothing.
func didYouMean(word string, candidates []string) string {
	if near, ok := Nearest(word, candidates); ok {
		return "; did you mean `" + near + "`?"
	}
	return ""
}
