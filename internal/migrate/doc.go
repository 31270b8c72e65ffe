// Package migrate translates policies of one generation into those of the next, and
// proves on dataplanes that the effective configuration stays the same.
//
// Guarantees. Every document is either translated or named with the reason why it is not;
// the policies of a kind in a mesh are translated together or not at all, because where
// both generations meet the older one has no effect (§4.11). The proof compares what
// matching says before and after, for every attachment and every connection of the
// dataplanes that are given, and nothing of it depends on how the translation was made.
//
// Non-goals: reading and writing files; policies that are the same only for the dataplanes
// that there happen to be (the proof tells, and the reader decides).
package migrate
