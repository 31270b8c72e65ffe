// Package cli is the operator's command, `meridian`: it reads documents, asks
// control planes, evaluates files without any, and prints answers for people
// and for scripts.
//
// Guarantees. Data goes to standard output and everything else to standard
// error, so that a pipe never carries a message. The exit code is one of seven
// and is decided in one place (package exit). The first line of a failure begins
// with "Error: " and says what to do; nothing prompts. A write is sent with one
// request id per invocation, so that a retry takes effect once. What a server
// answers as JSON is printed as it came, and what is evaluated from files is
// computed by the same engine, so that the bytes agree.
//
// Non-goals: reading the process's environment (arguments, streams, variables and
// the context come from the caller of Run, which makes every command testable in
// the process) and reading a store.
//
// Packages: client connects, print formats, exit holds the exit codes; clitest is
// a control plane for tests.
package cli
