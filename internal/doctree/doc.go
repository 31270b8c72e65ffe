// Package doctree reads YAML and JSON into one small tree per document, and
// writes trees back.
//
// It guarantees that a tree is what the document says: every digit of a number,
// every repeated name, the order of members and the line of each value are kept.
// YAML is read by the core schema of version 1.2; a value that versions 1.1 and
// 1.2 read differently is an error. Depth and the expansion of aliases are
// bounded. Equal values have equal canonical JSON. What WriteYAML writes, every
// parser of YAML 1.1 and 1.2 reads alike.
//
// Non-goals: YAML beyond what configuration uses (complex keys, custom tags),
// comments, which are not kept, and what a document means.
package doctree
