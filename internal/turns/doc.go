// Package turns gives the work that requests make its turn: a bounded number of
// pieces at once, fairly between callers.
//
// Callers take turns: of those that wait, the one is served next that was served
// longest ago, so that many requests of one caller delay another's by the pieces
// that run already. One caller never has more than its share of the pieces at
// once, nor have those without credentials together. Pieces of large requests
// have limits of their own: they take memory and time in proportion, and never
// hold up small ones. A caller that sends more than may wait is refused, and told
// the limit; a caller that goes away gives up its place.
//
// Non-goals: interrupting work. It runs on the goroutine of its request, and looks
// at its context in its loops.
package turns
