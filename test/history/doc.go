// Package history keeps what the clients of a cluster asked for and were told,
// what its servers and zones showed, and which faults occurred, and checks it
// against the promises of replication and sync.
//
// A History is plain data: a test fills one while a cluster runs, simulated or
// as real processes, and Check reads it when everything has settled. Each promise is a
// function of its own that is named after it, so that a failure says which
// promise was broken, and so that a doctored history can show that the function
// is able to fail.
//
// What clients were told is checked per key by porcupine, which decides whether
// some order of the operations explains all answers. A write whose outcome its
// client never learnt may have taken effect at any later time, or never; where
// the history holds every commit, what became of it is known.
//
// The package knows neither clocks nor clusters: time is what the recorder's
// owner says it is.
package history
