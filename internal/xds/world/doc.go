// Package world holds what the configuration of proxies needs besides the policies
// that matching finds: the endpoints behind every selector of tags, the settings of
// meshes, the routes of services, and the dataplanes themselves.
//
// A World follows a policy.Matcher, so that both always show the same revision.
//
// Guarantees. What it returns depends on the set of resources only, not on the
// changes that led there. The work of a change grows with what it touches. Endpoints
// that did not change are the same pointer as before, and Drain names exactly those
// that did.
//
// Non-goals: policies, which matching knows, and messages for proxies, which package
// generate makes.
package world
