// Package answer turns what matching decided into the documents of
// docs/contract.md: what takes effect on a dataplane, who may talk to whom, where a
// policy takes effect, and why.
//
// It is the one place that builds these documents and the one place that spells
// them: a zone, the global that passes a question on, and offline evaluation
// give the same bytes for the same resources. It decides nothing itself; every
// verdict and every reason comes from the steps that matching used.
//
// It refuses to read anything but the matcher it is given, and to know whether
// its reader is a person or a program: documents are built first and rendered
// as text from there.
package answer
