// Package plan says what a change would do before it is made: which connections would be
// allowed or denied otherwise, which values would be in effect, on which routes, and who
// would gain or lose which rights.
//
// Guarantees. What is predicted of a matcher is what the same matcher answers once the
// change is made. Only the meshes of the change are looked at, and in them only what it
// touches. A plan has a bounded size, says what it leaves out, and names the zones that it
// knows nothing or too little of.
//
// Non-goals: deciding whether the change may be made, and making it.
package plan
