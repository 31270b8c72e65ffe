// Package server is what every Meridian server process has in common: its
// configuration from flags, environment and file; its listeners; health and
// metrics; signals and an orderly stop.
//
// It guarantees that a setting means the same wherever it is written (flag,
// then environment, then file, then default), that a misspelt one is refused by
// name, that no listener is half open when a start fails, and that a second
// signal always ends the process.
//
// Non-goals: what the process is for. The global and the zone assemble themselves
// in their own packages, on controlplane.Base.
package server
