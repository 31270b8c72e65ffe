// Package layers holds the order of the packages: imports point down only, and
// some packages never meet. It has no code of its own; its test asks the Go
// command what every package really imports.
package layers
