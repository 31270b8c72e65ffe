package resource

import (
	"fmt"

	"meridian/internal/doctree"
)

// Path is the place of a value in a document, as users read it:
// `conf.to[0].targetRef.kind`.
type Path = doctree.Path

// Root is the path of the spec.
const Root = doctree.Root

// Severity tells a refusal from advice.
type Severity int

const (
	// Error refuses the document.
	Error Severity = iota
	// Warning lets the document through and tells the user about it.
	Warning
	// Info tells the user something they may want to know, such as which of two
	// policies has priority.
	Info
)

// Problem is one thing to tell the author of a document: where, what, and how
// to fix it.
type Problem struct {
	Path     Path
	Message  string
	Severity Severity
	// Line is the line in the source, from 1; 0 when unknown. The codec fills it
	// in from Path.
	Line int
	// Cause says what is so of every resource that has the problem for one reason,
	// where the message speaks of this resource alone. Empty is the message.
	Cause string
	// Code says what kind of finding it is, where it does not refuse the document; empty
	// is CodeDocument.
	Code Code
}

// String prints "path: message", or the message alone at the root.
func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return string(p.Path) + ": " + p.Message
}

// Report collects the problems of one document, in the order they were found.
// The zero value is ready for use; it is not safe for concurrent use.
type Report struct {
	Problems []Problem
	// found counts the problems of each severity. Of one no more are kept than curb
	// keeps, and one that says that there are more.
	found [Info + 1]int
}

// Errorf adds a problem that refuses the document. The message says what is
// wrong and what to write instead.
func (r *Report) Errorf(at Path, format string, args ...any) {
	r.add(Error, at, format, args...)
}

// Warnf adds a warning.
func (r *Report) Warnf(at Path, format string, args ...any) {
	r.add(Warning, at, format, args...)
}

// Infof adds advice.
func (r *Report) Infof(at Path, format string, args ...any) {
	r.add(Info, at, format, args...)
}

// Findf adds a finding: advice of the severity of its code, or a warning where that is
// Error, which would refuse the document.
func (r *Report) Findf(code Code, at Path, format string, args ...any) {
	before := len(r.Problems)
	r.add(max(code.Explanation().Severity, Warning), at, format, args...)
	if len(r.Problems) > before {
		r.Problems[before].Code = code
	}
}

// Tie adds advice that one resource shares with others: cause says what is so of all
// of them, and the message what follows for this one.
func (r *Report) Tie(at Path, cause, format string, args ...any) {
	before := len(r.Problems)
	r.Findf(CodeTie, at, format, args...)
	if len(r.Problems) > before {
		r.Problems[before].Cause = cause
	}
}

func (r *Report) add(s Severity, at Path, format string, args ...any) {
	if r.found[s]++; r.found[s] > maxProblems+1 {
		return
	}
	r.Problems = append(r.Problems, Problem{Path: at, Message: fmt.Sprintf(format, args...), Severity: s})
}

// repeated is what doctree.Duplicates calls for a name that an object repeats.
func (r *Report) repeated(at Path, first int) {
	r.Errorf(at, "written twice, first in line %d; keep one of them", first)
}

// Failed reports whether any problem refuses the document.
func (r *Report) Failed() bool {
	for _, p := range r.Problems {
		if p.Severity == Error {
			return true
		}
	}
	return false
}
