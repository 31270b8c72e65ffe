// Package global assembles and runs a server of the global control plane: where
// operators write meshes and policies once, and zones come to fetch them.
//
// It guarantees the order of start and stop: listeners are bound before
// anything is written, so that a start that fails leaves no trace; nothing is
// served before every committed write has been applied; a stop lets running
// calls finish, then ends the streams, then closes the log.
//
// It refuses to decide what a zone makes of a policy: questions about a
// dataplane are passed to the zone that has it.
package global
