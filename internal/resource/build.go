package resource

import (
	"bytes"
	"encoding/json"
	"fmt"

	"meridian/internal/doctree"
)

// MaxSpecBytes bounds the canonical JSON of one spec: 1 MiB. It keeps a batch
// of one within every limit of log, frame and message.
const MaxSpecBytes = 1 << 20

// maxSpecDepth bounds how deeply a spec may nest; the rest of what a document may
// is for what stands around it.
const maxSpecDepth = doctree.MaxDepth - 8

// Build decodes and validates one spec from JSON: what a server does with a
// request, and a store or a zone with what it reads. meta.Kind must be the
// canonical spelling. Its labels are retained.
//
// The error is a *DocumentError with every problem; the problems returned are
// the warnings and advice of a spec that is accepted.
func Build(meta Meta, specJSON []byte) (*Resource, []Problem, error) {
	return build(meta, specJSON, nil)
}

// BuildInZone is Build for a dataplane of a zone: one that has no kuma.io/zone where WithZone
// would add it gets the tag before it is decoded, and so is decoded once.
func BuildInZone(meta Meta, specJSON []byte, zone ZoneName) (*Resource, []Problem, error) {
	return build(meta, specJSON, func(spec *doctree.Node) { addZoneTag(spec, zone) })
}

// build is Build, of a spec that edit, unless nil, may change before it is decoded.
func build(meta Meta, specJSON []byte, edit func(spec *doctree.Node)) (*Resource, []Problem, error) {
	spec, canonical, report := check(meta, specJSON, edit)
	if report.Failed() {
		return nil, nil, &DocumentError{Key: meta.Key, Problems: report.Problems}
	}
	return New(meta, spec, canonical), report.Problems, nil
}

// check is build with everything that is wrong in the report.
func check(meta Meta, specJSON []byte, edit func(spec *doctree.Node)) (spec Spec, canonical []byte, report *Report) {
	report = &Report{}
	readSpec(meta, specJSON, report, func(d *Descriptor, n *doctree.Node) {
		if edit != nil {
			edit(n)
		}
		spec, canonical = decodeTree(d, n, report), canonicalOf(n, len(specJSON), report)
	})
	report.curb()
	return spec, canonical, report
}

// decodeStored decodes and validates a spec from its canonical JSON.
func decodeStored(meta Meta, canonical []byte) (Spec, error) {
	report := &Report{}
	var spec Spec
	readSpec(meta, canonical, report, func(d *Descriptor, n *doctree.Node) { spec = decodeTree(d, n, report) })
	if report.Failed() {
		report.curb()
		return nil, &DocumentError{Key: meta.Key, Problems: report.Problems}
	}
	return spec, nil
}

// readSpec reads one spec and calls decode with its tree, which is valid during the call,
// unless it could not be read. What is wrong is in the report.
func readSpec(meta Meta, specJSON []byte, report *Report, decode func(d *Descriptor, n *doctree.Node)) {
	descriptor, ok := Describe(meta.Kind)
	if !ok {
		report.Errorf("type", "%s", unknownKind(string(meta.Kind)))
		return
	}
	checkKey(descriptor, meta.Key, report)
	if _, ok := meta.Labels[LabelMesh]; ok {
		report.Errorf(Path("labels").Key(LabelMesh), "the mesh is part of the identity; leave the label out")
	}
	doctree.ReadJSON(specJSON, func(values []*doctree.Node, repeats bool, err error) {
		switch {
		case err != nil:
			report.Errorf(Root, "the spec is not valid JSON: %s", err)
		case len(values) != 1:
			report.Errorf(Root, "expected one JSON object as the spec, got %d values", len(values))
		case repeats:
			doctree.Duplicates(values[0], Root, report.repeated)
		}
		if !report.Failed() {
			decode(descriptor, values[0])
		}
	})
}

// checkKey reports a name or mesh that cannot be, given the kind's scope.
func checkKey(d *Descriptor, key Key, report *Report) {
	if err := CheckName(key.Name); err != nil {
		report.Errorf("name", "%s", err)
	}
	switch {
	case d.Scope == GlobalScoped && key.Mesh != "":
		report.Errorf("mesh", "a %s does not live in a mesh; leave the mesh out", d.Kind)
	case d.Scope == MeshScoped:
		if err := CheckName(string(key.Mesh)); err != nil {
			report.Errorf("mesh", "%s", err)
		}
	}
	checkMeshTestName(key, report)
}

// unknownKind says so, with the kind that was probably meant.
func unknownKind(name string) string {
	if near, ok := NearestKind(name); ok {
		return fmt.Sprintf("unknown kind %q; did you mean %q?", doctree.Clip(name), near)
	}
	return fmt.Sprintf("unknown kind %q; `meridian explain` lists the kinds", doctree.Clip(name))
}

// DecodeInto decodes a tree into what target points to by the conventions of specs, and
// returns everything that is wrong with it. A part that stands beside specs is read
// with it, such as a test of policies.
func DecodeInto(target any, n *doctree.Node) []Problem {
	report := &Report{}
	if n.Deeper(maxSpecDepth) {
		report.Errorf(Root, "nested more than %d levels deep", maxSpecDepth)
		return report.Problems
	}
	doctree.Duplicates(n, Root, report.repeated)
	dec := &decoder{}
	dec.into(target, n, Root)
	report.Problems = append(report.Problems, dec.report.Problems...)
	report.curb()
	locate(n, report.Problems)
	return report.Problems
}

// decodeSpec decodes and validates the tree of a spec and returns it with its
// canonical JSON. What is wrong goes to report.
func decodeSpec(d *Descriptor, n *doctree.Node, report *Report) (Spec, []byte) {
	spec := decodeTree(d, n, report)
	return spec, canonicalOf(n, 0, report)
}

// decodeTree decodes and validates the tree of a spec. What is wrong goes to report.
func decodeTree(d *Descriptor, n *doctree.Node, report *Report) Spec {
	spec := d.New()
	if n.Deeper(maxSpecDepth) {
		report.Errorf(Root, "nested more than %d levels deep", maxSpecDepth)
		return spec
	}
	dec := &decoder{}
	dec.into(spec, n, Root)
	report.Problems = append(report.Problems, dec.report.Problems...)

	// Validation sees a spec without the fields that could not be decoded. What
	// it says about those, or about what is inside them, is noise.
	validation := &Report{}
	spec.Validate(Root, validation)
	for _, p := range validation.Problems {
		if !dec.undecodedAt(p.Path) {
			report.Problems = append(report.Problems, p)
		}
	}
	return spec
}

// canonicalOf returns the canonical JSON of the tree of a spec, which probably takes size
// bytes. Where it is too large, that goes to report.
func canonicalOf(n *doctree.Node, size int, report *Report) []byte {
	if n.Deeper(maxSpecDepth) {
		return nil
	}
	canonical := n.Canonical(make([]byte, 0, size))
	if len(canonical) < size { // the rest would stay with it
		canonical = bytes.Clone(canonical)
	}
	if len(canonical) > MaxSpecBytes {
		report.Errorf(Root, "the content takes %d bytes; at most %d are allowed", len(canonical), MaxSpecBytes)
	}
	return canonical
}

// undecodedAt reports whether a path is, contains or is inside one that could not be
// decoded.
func (d *decoder) undecodedAt(at Path) bool {
	for _, path := range d.undecoded {
		if doctree.Within(at, path) || doctree.Within(path, at) {
			return true
		}
	}
	return false
}

// Canonicalize returns the canonical form of a JSON value: members sorted
// bytewise, no insignificant space, numbers in their shortest exact decimal
// form, strings with the fewest escapes; everything else, durations among it,
// as written. Equal values have equal canonical forms.
func Canonicalize(value []byte) (json.RawMessage, error) {
	values, repeats, err := doctree.ParseJSON(value)
	switch {
	case err != nil:
		return nil, fmt.Errorf("canonicalize: %w", err)
	case len(values) != 1:
		return nil, fmt.Errorf("canonicalize: expected one JSON value, got %d", len(values))
	case repeats:
		report := &Report{}
		doctree.Duplicates(values[0], Root, report.repeated)
		return nil, fmt.Errorf("canonicalize: %s", report.Problems[0])
	}
	return values[0].Canonical(nil), nil
}
