// Package expectation runs tests of policies: documents of kind PolicyTest that stand
// beside the policies and say which connections are allowed, what a setting is, what
// holds for every dataplane, connection or route, and who may change what.
//
// Guarantees. A case is decided by the answer that inspect, eval and `auth can-i` give to
// the same question. Every case of every file has a result, whatever became of the
// others. Expressions are bounded as the conditions of policies are (§5.6).
//
// Non-goals: reading files and asking servers, which a Source does; deciding anything.
package expectation
