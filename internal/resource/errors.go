package resource

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// DocumentError is everything that is wrong with one document.
type DocumentError struct {
	// Source is the file's name, "stdin", or empty for a spec that came alone.
	Source string
	// Index counts the documents of a source from 1; 0 when the source as a
	// whole is the problem.
	Index int
	// Line is where the document begins, from 1; 0 when unknown.
	Line int
	// Key is as much of the identity as could be read.
	Key Key
	// Identified says that Key is beyond doubt, and only the content is wrong.
	// DecodeObject alone finds out.
	Identified bool
	Problems   []Problem
}

// Error prints a line per problem that refuses the document.
func (e *DocumentError) Error() string {
	var lines []string
	for _, p := range e.Problems {
		if p.Severity == Error {
			lines = append(lines, e.where(p.Line)+p.String())
		}
	}
	return strings.Join(lines, "\n")
}

// where is the beginning of a message: as much of source, document, identity
// and line as is known.
func (e *DocumentError) where(line int) string {
	var b strings.Builder
	b.WriteString(e.Source)
	if e.Index > 0 {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString("document " + strconv.Itoa(e.Index))
	}
	if name := e.Key.String(); e.Key.Kind != "" {
		if b.Len() > 0 {
			b.WriteString(" (" + name + ")")
		} else {
			b.WriteString(name)
		}
	}
	if line > 0 {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString("line " + strconv.Itoa(line))
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	return b.String()
}

// DocumentErrors is everything that is wrong with a batch of documents.
type DocumentErrors []*DocumentError

// Error prints a line per problem.
func (e DocumentErrors) Error() string {
	lines := make([]string, len(e))
	for i, document := range e {
		lines[i] = document.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the single documents.
func (e DocumentErrors) Unwrap() []error {
	all := make([]error, len(e))
	for i, document := range e {
		all[i] = document
	}
	return all
}

// maxProblems bounds how many problems of one document are reported: more are
// not read at once, and the search for more costs time.
const maxProblems = 100

// curb cuts a report down to maxProblems and says so.
func (r *Report) curb() {
	if len(r.Problems) <= maxProblems {
		return
	}
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return cmp.Compare(a.Severity, b.Severity) })
	last := r.Problems[maxProblems]
	r.Problems = append(r.Problems[:maxProblems:maxProblems], Problem{Message: "there are more problems; fix these first", Severity: last.Severity})
}

// sourceError is a problem of a whole source.
func sourceError(source string, line int, message string) DocumentErrors {
	return DocumentErrors{{Source: source, Line: line, Problems: []Problem{{Message: message, Line: line}}}}
}
