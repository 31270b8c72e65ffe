// Package operations checks what operators are given beside the programs: that
// every alert has a metric that exists, a severity, a sentence and a page that
// says what to do, and that the pages lead somewhere.
package operations
