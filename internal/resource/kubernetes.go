package resource

import "meridian/internal/doctree"

// DecodeObject decodes and validates one object as the API server of Kubernetes
// keeps it: a single JSON object in the Kubernetes form of §1.2, as
// strictly as any document. Status and what the API server adds to metadata,
// managed fields among it, are not read. A mesh-scoped object without a mesh is
// in DefaultMesh.
//
// The error is a *DocumentError. Its Identified tells whether at least the
// identity of the object is beyond doubt.
func DecodeObject(data []byte) (Document, error) {
	report := &Report{}
	e := &envelope{}
	values, repeats, err := doctree.ParseJSON(data)
	switch {
	case err != nil:
		report.Errorf(Root, "the object is not valid JSON: %s", err)
	case len(values) != 1:
		report.Errorf(Root, "expected one JSON object, got %d values", len(values))
	case values[0].Shape != doctree.Object:
		report.Errorf(Root, "expected an object with `apiVersion`, `kind` and `metadata`, got %s", values[0].Describe())
	default:
		if repeats {
			doctree.Duplicates(values[0], Root, report.repeated)
		}
		e.readKubernetes(values[0], DecodeOptions{}, report)
	}
	identified := !report.Failed()
	var spec Spec
	var canonical []byte
	if e.descriptor != nil && e.spec != nil {
		spec, canonical = decodeSpec(e.descriptor, e.spec, report)
	}
	report.curb()
	if report.Failed() {
		return Document{}, &DocumentError{Key: e.meta.Key, Identified: identified, Problems: report.Problems}
	}
	return Document{Resource: New(e.meta, spec, canonical), Problems: report.Problems}, nil
}
