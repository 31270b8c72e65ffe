package resource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"meridian/internal/doctree"
)

// DecodeOptions is what a command knows that a document may leave out.
type DecodeOptions struct {
	// Mesh is the mesh of mesh-scoped documents that name none; empty means
	// DefaultMesh.
	Mesh MeshName
	// MeshExplicit says that the user asked for Mesh: a document that names
	// another one is then refused (§1.2).
	MeshExplicit bool
	// Flat makes Load read directories without the directories below them.
	Flat bool
	// Large makes Load read sources of any size, as long as they are documents that lines
	// of `---` separate, some of these at a time, and keep no decoded specs: each is
	// decoded again when it is asked for.
	Large bool
	// Tests receives every document of kind PolicyTestKind, which is no resource, with
	// its source. nil leaves them out.
	Tests func(source string, document *doctree.Node)
}

// PolicyTestKind is the kind of documents with tests of policies, which stand beside
// resources.
const PolicyTestKind = "PolicyTest"

// isTest reports whether a document has tests of policies.
func isTest(n *doctree.Node) bool {
	if n.Shape != doctree.Object {
		return false
	}
	for _, field := range []string{"type", "kind"} {
		if kind := n.Get(field); kind != nil && kind.Shape == doctree.Text && kind.Text == PolicyTestKind {
			return true
		}
	}
	return false
}

func (o DecodeOptions) mesh() MeshName {
	if o.Mesh == "" {
		return DefaultMesh
	}
	return o.Mesh
}

// Document is one accepted document and where it came from.
type Document struct {
	Resource *Resource
	Source   string
	// Index counts the documents of the source, from 1.
	Index int
	// Line is where the document begins, from 1.
	Line int
	// CaseLines are where the cases of a MeshTest begin, from 1; nil for other kinds.
	CaseLines []int
	// Problems are warnings and advice.
	Problems []Problem
}

// Decode reads every document of a source: YAML or JSON, one or many, in either
// form of §1.2. It accepts all of them or none; the error is then
// DocumentErrors with every problem of every document. A source without
// documents is no error here.
//
// source appears in messages; when it ends in ".json", nothing but JSON is
// accepted.
func Decode(source string, data []byte, opts DecodeOptions) ([]Document, error) {
	documents, failed := decodeAll(source, data, opts, &place{})
	failed = append(failed, duplicates(documents)...)
	if len(failed) > 0 {
		return nil, failed
	}
	return documents, nil
}

// decodeAll returns what was accepted and what was not. begin is where the data begins in
// its source; the documents in it are counted there.
func decodeAll(source string, data []byte, opts DecodeOptions, begin *place) ([]Document, DocumentErrors) {
	wantJSON := strings.HasSuffix(strings.ToLower(source), ".json")
	roots, repeats, err := doctree.Parse(data, wantJSON)
	var documents []Document
	var failed DocumentErrors
	index := begin.documents
	defer func() {
		begin.documents = index
		begin.move(documents, failed)
	}()
	for _, root := range roots {
		for _, n := range splitList(root) {
			index++
			if isTest(n) {
				if opts.Tests != nil {
					opts.Tests(source, n)
				}
				continue
			}
			document, problem := decodeDocument(n, repeats, opts)
			if problem != nil {
				problem.Source, problem.Index, problem.Line = source, index, n.Line
				failed = append(failed, problem)
				continue
			}
			document.Source, document.Index, document.Line = source, index, n.Line
			documents = append(documents, document)
		}
	}
	if err != nil {
		line := 0
		if syntax := (*doctree.SyntaxError)(nil); errors.As(err, &syntax) {
			line = syntax.Line
		}
		failed = append(failed, sourceError(source, line, err.Error())...)
	}
	return documents, failed
}

// splitList returns the documents inside a list, a `{"items": […]}` or a
// Kubernetes List; any other document alone.
func splitList(root *doctree.Node) []*doctree.Node {
	if root.Shape == doctree.List {
		return root.Items
	}
	items := root.Get("items")
	if items == nil || items.Shape != doctree.List || root.Get("type") != nil || root.Get("spec") != nil {
		return []*doctree.Node{root}
	}
	if kind := root.Get("kind"); kind != nil && !strings.HasSuffix(kind.Text, "List") {
		return []*doctree.Node{root}
	}
	for _, m := range root.Members {
		switch m.Name {
		case "items", "apiVersion", "kind", "metadata", "total", "next", "revision":
		default:
			return []*doctree.Node{root} // its own error will say what does not belong
		}
	}
	return items.Items
}

// envelope is what surrounds a spec in either form.
type envelope struct {
	descriptor *Descriptor
	meta       Meta
	spec       *doctree.Node
	// misplaced are fields of the spec that stand beside it: that they are
	// missing in it need not be said as well.
	misplaced []Path
}

func decodeDocument(n *doctree.Node, repeats bool, opts DecodeOptions) (Document, *DocumentError) {
	report := &Report{}
	e := &envelope{}
	if repeats {
		doctree.Duplicates(n, Root, report.repeated)
	}
	e.read(n, opts, report)
	checkMeshTestName(e.meta.Key, report)
	report.curb()
	locate(n, report.Problems)
	var resource *Resource
	var caseLines []int
	if e.descriptor != nil && e.spec != nil {
		content, below := &Report{}, n // where the paths of the spec begin
		if n.Get("spec") == e.spec {
			below = e.spec
		}
		spec, canonical := decodeSpec(e.descriptor, e.spec, content)
		content.Problems = slices.DeleteFunc(content.Problems, func(p Problem) bool { return slices.Contains(e.misplaced, p.Path) })
		content.curb()
		locate(below, content.Problems)
		report.Problems = append(report.Problems, content.Problems...)
		if resource = New(e.meta, spec, canonical); opts.Large {
			resource = again(e.meta, canonical)
		}
		if tests, ok := spec.(*MeshTest); ok {
			for i := range tests.Cases {
				caseLines = append(caseLines, doctree.LineAt(below, Path("cases").Index(i)))
			}
		}
	}
	if report.Failed() {
		slices.SortStableFunc(report.Problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
		return Document{}, &DocumentError{Key: e.meta.Key, Problems: report.Problems}
	}
	return Document{Resource: resource, CaseLines: caseLines, Problems: report.Problems}, nil
}

// locate fills in the lines of problems below n.
func locate(n *doctree.Node, problems []Problem) {
	for i := range problems {
		problems[i].Line = doctree.LineAt(n, problems[i].Path)
	}
}

// read takes the envelope off a document. Without a descriptor or a spec
// afterwards, report says why.
func (e *envelope) read(n *doctree.Node, opts DecodeOptions, report *Report) {
	if n.Shape != doctree.Object {
		report.Errorf(Root, "expected an object with `type` and `name`, got %s", n.Describe())
		return
	}
	universal := n.Get("type") != nil
	kubernetes := n.Get("kind") != nil || n.Get("apiVersion") != nil || n.Get("metadata") != nil
	switch {
	case universal && kubernetes:
		report.Errorf("type", "the document mixes two forms; write either `type` and `name`, or `apiVersion`, `kind` and `metadata`")
	case universal:
		e.readUniversal(n, opts, report)
	case kubernetes:
		e.readKubernetes(n, opts, report)
	default:
		report.Errorf("type", "is required: the kind of the resource, such as TrafficPermission")
	}
}

// readKind finds the descriptor.
func (e *envelope) readKind(n *doctree.Node, field string, report *Report) {
	name, ok := readText(n, field, Path(field), report)
	if !ok {
		return
	}
	e.meta.Kind = Kind(doctree.Clip(name))
	d, known := kinds().exact[Kind(name)]
	if !known {
		report.Errorf(Path(field), "%s", unknownKind(name))
		return
	}
	e.descriptor, e.meta.Kind = d, d.Kind
}

// Names of the envelope's fields in the universal form. A spec with a field of
// one of these names has to stand under `spec`.
var universalFields = []string{"type", "mesh", "name", "labels", "creationTime", "modificationTime", "version", "revision", "rollout", "spec"}

func (e *envelope) readUniversal(n *doctree.Node, opts DecodeOptions, report *Report) {
	e.readKind(n, "type", report)
	e.readName(n, "name", report)
	e.readLabels(n, "labels", report)
	e.readStamps(n, report)
	e.readMesh(n, "labels", opts, report)

	rest := &doctree.Node{Shape: doctree.Object, Line: n.Line}
	for _, m := range n.Members {
		if !slices.Contains(universalFields, m.Name) {
			rest.Members = append(rest.Members, m)
		}
	}
	e.spec = rest
	spec := n.Get("spec")
	if spec == nil {
		return
	}
	e.spec = specObject(spec, report)
	for _, m := range rest.Members {
		path := doctree.MemberPath(Root, m.Name)
		if e.descriptor != nil && !slices.Contains(e.fieldNames(), m.Name) {
			report.Errorf(path, "unknown field `%s`%s", doctree.Clip(m.Name), didYouMean(m.Name, append(e.fieldNames(), universalFields...)))
			continue
		}
		report.Errorf(path, "stands beside `spec`; the fields of a %s go either all under `spec` or all at the top level", e.meta.Kind)
	}
}

// specObject returns the spec, an empty object for one without content.
func specObject(spec *doctree.Node, report *Report) *doctree.Node {
	switch spec.Shape {
	case doctree.Object:
		return spec
	case doctree.Null:
		return &doctree.Node{Shape: doctree.Object, Line: spec.Line}
	default:
		report.Errorf("spec", "expected an object, got %s", spec.Describe())
		return nil
	}
}

// fieldNames lists the top-level fields of the kind's spec.
func (e *envelope) fieldNames() []string {
	return slices.Clone(planOf(specType(e.descriptor)).names)
}

// Names of the envelope's fields in the Kubernetes form. Status belongs to
// the server of the object and is not read.
var kubernetesFields = []string{"apiVersion", "kind", "metadata", "mesh", "spec", "status", "creationTime", "modificationTime", "version", "revision", "rollout"}

// Names in metadata. Those that no rule uses are what Kubernetes adds to every
// object.
var metadataFields = []string{
	"name", "namespace", "labels", "annotations", "creationTimestamp",
	"uid", "resourceVersion", "generation", "generateName", "managedFields", "ownerReferences",
	"finalizers", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds",
}

func (e *envelope) readKubernetes(n *doctree.Node, opts DecodeOptions, report *Report) {
	e.readKind(n, "kind", report)
	if n.Get("apiVersion") != nil {
		e.readAPIVersion(n, report)
	}
	e.readStamps(n, report)
	metadata := n.Get("metadata")
	switch {
	case metadata == nil || metadata.Shape == doctree.Null:
		report.Errorf("metadata.name", "is required")
	case metadata.Shape != doctree.Object:
		report.Errorf("metadata", "expected an object with `name`, got %s", metadata.Describe())
	default:
		e.readMetadata(metadata, report)
	}
	e.readMesh(n, "metadata.labels", opts, report)

	for _, m := range n.Members {
		if slices.Contains(kubernetesFields, m.Name) {
			continue
		}
		hint := didYouMean(m.Name, kubernetesFields)
		if e.descriptor != nil && slices.Contains(e.fieldNames(), m.Name) {
			hint = "; it goes under `spec`"
			e.misplaced = append(e.misplaced, doctree.MemberPath(Root, m.Name))
		}
		report.Errorf(doctree.MemberPath(Root, m.Name), "unknown field `%s`%s", doctree.Clip(m.Name), hint)
	}
	e.spec = &doctree.Node{Shape: doctree.Object, Line: n.Line}
	if spec := n.Get("spec"); spec != nil {
		e.spec = specObject(spec, report)
	}
}

// readAPIVersion refuses a group and version that the kind does not have.
func (e *envelope) readAPIVersion(n *doctree.Node, report *Report) {
	version, ok := readText(n, "apiVersion", "apiVersion", report)
	if !ok || e.descriptor == nil {
		return
	}
	if known := apiVersions(e.meta.Kind); !slices.Contains(known, version) {
		report.Errorf("apiVersion", "%q is not a version of %s; write %s", doctree.Clip(version), e.meta.Kind, strings.Join(known, " or "))
	}
}

// apiVersions lists the groups and versions of a kind: Kuma's, and for the kinds
// of other projects theirs.
func apiVersions(kind Kind) []string {
	switch kind {
	case KindGateway, KindHTTPRoute:
		return []string{APIVersion, "gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"}
	case KindGRPCRoute:
		return []string{APIVersion, "gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2"}
	case KindNamespace:
		return []string{APIVersion, "v1"}
	case KindAuthPolicy, KindRateLimitPolicy:
		return []string{APIVersion, "kuadrant.io/v1", "kuadrant.io/v1beta3", "kuadrant.io/v1beta2"}
	default:
		return []string{APIVersion}
	}
}

func (e *envelope) readMetadata(metadata *doctree.Node, report *Report) {
	e.readName(metadata, "metadata.name", report)
	e.readLabels(metadata, "metadata.labels", report)
	if namespace := metadata.Get("namespace"); namespace != nil && namespace.Shape != doctree.Null {
		switch text, ok := readText(metadata, "namespace", "metadata.namespace", report); {
		case !ok || text == "":
		case CheckName(text) != nil:
			report.Errorf("metadata.namespace", "%s", CheckName(text))
		case e.meta.Kind == KindNamespace:
			report.Errorf("metadata.namespace", "a Namespace is in no other namespace; leave it out")
		default:
			e.setLabel(LabelNamespace, text)
			if name := Namespaced(text, e.meta.Name); e.meta.Name != "" && name != e.meta.Name {
				if len(name) > maxName {
					report.Errorf("metadata.name", "is stored as NAME.NAMESPACE, which has %d characters; at most %d are allowed", len(name), maxName)
				}
				e.meta.Name = name
			}
		}
	}
	if stamp := metadata.Get("creationTimestamp"); stamp != nil && stamp.Shape != doctree.Null && e.meta.CreationTime.IsZero() {
		e.meta.CreationTime = readTime(stamp, "metadata.creationTimestamp", report)
	}
	if annotations := metadata.Get("annotations"); annotations != nil && annotations.Get(LabelMesh) != nil {
		report.Errorf(Path("metadata.annotations").Key(LabelMesh), "the mesh is named by `mesh` at the top level or by the label %s, not by an annotation", LabelMesh)
	}
	for _, m := range metadata.Members {
		if !slices.Contains(metadataFields, m.Name) {
			report.Errorf(doctree.MemberPath("metadata", m.Name), "unknown field `%s`%s", doctree.Clip(m.Name), didYouMean(m.Name, metadataFields))
		}
	}
}

// readName reads the last step of the path from n.
func (e *envelope) readName(n *doctree.Node, at Path, report *Report) {
	name, ok := readText(n, "name", at, report)
	if !ok {
		return
	}
	e.meta.Name = doctree.Clip(name)
	if err := CheckName(name); err != nil {
		report.Errorf(at, "%s", err)
		return
	}
	e.meta.Name = name
}

func (e *envelope) readLabels(n *doctree.Node, at Path, report *Report) {
	labels := n.Get("labels")
	if labels == nil || labels.Shape == doctree.Null {
		return
	}
	dec := &decoder{}
	var written map[string]string
	dec.into(&written, labels, at)
	report.Problems = append(report.Problems, dec.report.Problems...)
	CheckLabels(e.meta.Key, written, at, report)
	for name, value := range written {
		e.setLabel(name, value)
	}
}

func (e *envelope) setLabel(name, value string) {
	if e.meta.Labels == nil {
		e.meta.Labels = map[string]string{}
	}
	e.meta.Labels[name] = value
}

// readStamps reads what a server had assigned when the document was exported.
func (e *envelope) readStamps(n *doctree.Node, report *Report) {
	if t := n.Get("creationTime"); t != nil && t.Shape != doctree.Null {
		e.meta.CreationTime = readTime(t, "creationTime", report)
	}
	if t := n.Get("modificationTime"); t != nil && t.Shape != doctree.Null {
		e.meta.ModificationTime = readTime(t, "modificationTime", report)
	}
	e.meta.Version = readCount(n, "version", report)
	e.meta.Revision = Revision(readCount(n, "revision", report))
	if rollout := n.Get("rollout"); rollout != nil && rollout.Shape != doctree.Null {
		e.meta.Rollout, _ = readText(n, "rollout", "rollout", report)
	}
}

// readMesh applies §1.2: the mesh at the top level or in a label, and
// the command's when the document names none.
func (e *envelope) readMesh(n *doctree.Node, labelsAt Path, opts DecodeOptions, report *Report) {
	at, mesh := Path("mesh"), ""
	if written := n.Get("mesh"); written != nil && written.Shape != doctree.Null {
		mesh, _ = readText(n, "mesh", "mesh", report)
	}
	if label, ok := e.meta.Labels[LabelMesh]; ok {
		// The mesh is part of the identity; a label that repeats it would only
		// make equal resources differ.
		if delete(e.meta.Labels, LabelMesh); len(e.meta.Labels) == 0 {
			e.meta.Labels = nil
		}
		switch {
		case mesh == "":
			mesh, at = label, labelsAt.Key(LabelMesh)
		case mesh != label:
			report.Errorf("mesh", "says %q and the label %s says %q; keep one of them", doctree.Clip(mesh), LabelMesh, doctree.Clip(label))
			return
		}
	}
	if e.descriptor == nil {
		return
	}
	if e.descriptor.Scope == GlobalScoped {
		if mesh != "" {
			report.Errorf(at, "a %s does not live in a mesh; leave the mesh out", e.meta.Kind)
		}
		return
	}
	if mesh == "" {
		e.meta.Mesh = opts.mesh()
		if err := CheckName(string(e.meta.Mesh)); err != nil {
			report.Errorf(at, "the command's mesh: %s", err)
		}
		return
	}
	e.meta.Mesh = MeshName(doctree.Clip(mesh))
	if err := CheckName(mesh); err != nil {
		report.Errorf(at, "%s", err)
		return
	}
	e.meta.Mesh = MeshName(mesh)
	if opts.MeshExplicit && e.meta.Mesh != opts.mesh() {
		report.Errorf(at, "the document is for mesh %q, the command for mesh %q; leave out one of them", mesh, opts.mesh())
	}
}

// readText reads a string member of n that has to be there.
func readText(n *doctree.Node, name string, at Path, report *Report) (string, bool) {
	value := n.Get(name)
	if value == nil || value.Shape == doctree.Null {
		report.Errorf(at, "is required")
		return "", false
	}
	var text string
	dec := &decoder{}
	dec.into(&text, value, at)
	report.Problems = append(report.Problems, dec.report.Problems...)
	return text, !dec.report.Failed()
}

func readTime(n *doctree.Node, at Path, report *Report) time.Time {
	if n.Shape == doctree.Text {
		if t, err := time.Parse(time.RFC3339, n.Text); err == nil {
			return t.UTC()
		}
	}
	report.Errorf(at, "expected a time such as 2026-01-31T20:00:00Z, got %s", n.Describe())
	return time.Time{}
}

func readCount(n *doctree.Node, name string, report *Report) uint64 {
	value := n.Get(name)
	if value == nil || value.Shape == doctree.Null {
		return 0
	}
	count, err := strconv.ParseUint(value.Text, 10, 64)
	if value.Shape != doctree.Number || err != nil {
		report.Errorf(Path(name), "expected a whole number, got %s", value.Describe())
	}
	return count
}

// duplicates reports every document whose identity an earlier one has.
func duplicates(documents []Document) DocumentErrors {
	var failed DocumentErrors
	first := make(map[Key]*Document, len(documents))
	for i := range documents {
		d := &documents[i]
		key := d.Resource.Key()
		earlier, again := first[key]
		if !again {
			first[key] = d
			continue
		}
		failed = append(failed, &DocumentError{
			Source: d.Source, Index: d.Index, Line: d.Line, Key: key,
			Problems: []Problem{{Line: d.Line, Message: fmt.Sprintf("%s is already defined in %s, document %d, line %d; keep one of them",
				key, earlier.Source, earlier.Index, earlier.Line)}},
		})
	}
	return failed
}
