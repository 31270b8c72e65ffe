// Package bench holds the whole system to its target figures: the programs as
// they are shipped, each in a process of its own, on loopback sockets and a real
// disk, watched from the outside only. What one package does alone is measured
// beside that package.
//
// A benchmark measures with its own clock and reports what an operator would
// ask about, under names that carry their unit; README.md says what each means
// and which target it has. A target that is missed is said in
// the output and fails nothing: a noisy neighbour is no defect. A wrong answer,
// such as a zone that reports itself in sync without every policy, fails.
//
// Everything is skipped under -short.
package bench
