// Package vocabulary holds the project to the words of docs/glossary.md.
//
// Guarantee: no file that a person reads (source, comment, message, test,
// documentation, protocol definition, script) contains a word that the glossary
// replaces.
//
// Non-goals: grammar, spelling and style.
package vocabulary
