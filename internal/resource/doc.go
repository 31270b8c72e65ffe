// Package resource defines what Meridian stores and what operators write:
// identities, envelopes, the table of kinds with their typed specs, and the codec
// between documents and resources.
//
// It guarantees that a resource is immutable and valid: one exists only after
// its document has been decoded strictly and its spec has been validated on its
// own (§1, §2.1). A spec's canonical JSON is made once, from the tree
// of the document itself and not from the Go struct, so that nothing an author
// wrote is lost, rounded or rewritten on its way through log, store, frame and
// zone: equal content has equal bytes, and equal bytes have equal hashes.
// Whatever Encode writes, Decode reads back unchanged.
//
// Unknown kinds and fields, repeated names, wrong types, values that YAML versions
// read differently, and documents made to exhaust memory are errors; each names
// the place, what is wrong, and what to write instead.
//
// Non-goals: rules about more than one resource. Whether a mesh, a backend or a
// target exists is checked by packages that have a view of the store.
//
// # How it works
//
// A source is parsed, as JSON or as YAML 1.2, into one small tree per document
// (package doctree). The envelope is read off the tree in whichever form it has
// (document.go); what remains is the spec. A reflection walk decodes it into the
// kind's Go type by struct tags (decode.go documents them, limits.go the limits
// among them), marks nulls as absent, and collects problems; Validate adds its own. The tree is then written
// out as canonical JSON.
//
// A new kind is one row in the table (kinds.go) and one Spec.
package resource
