package resource

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"meridian/internal/doctree"
)

// Limits of a Rollout.
const (
	// MaxRolloutStages is how many stages a rollout has at most.
	MaxRolloutStages = 16
	// MaxRolloutChanges is how many resources a rollout changes at most.
	MaxRolloutChanges = 10_000
	// maxRolloutZones is how many zones a stage, or the status, names at most.
	maxRolloutZones = 10_000
	// maxRolloutCondition is the longest condition that halts a rollout, in bytes.
	maxRolloutCondition = 4 << 10
	// maxRolloutText is the longest reason or name of an author, in bytes.
	maxRolloutText = 4 << 10
)

// RolloutPhase says how far a rollout has come.
type RolloutPhase string

// The phases of a rollout. The last two end it.
const (
	// RolloutProgressing: the zones of the current stage have the change, or are getting it.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutHalted: the zones of the current stage have the change, and no others get it.
	RolloutHalted RolloutPhase = "Halted"
	// RolloutCompleted: the change was written, for all zones.
	RolloutCompleted RolloutPhase = "Completed"
	// RolloutAborted: no zone has the change.
	RolloutAborted RolloutPhase = "Aborted"
)

// Finished reports whether a rollout in this phase is over: it shows nothing in any zone.
func (p RolloutPhase) Finished() bool { return p == RolloutCompleted || p == RolloutAborted }

// Rollout is a change of several resources that some zones have before others. Until it
// is completed, the global keeps the resources as they were, and the zones of its status
// show them changed.
type Rollout struct {
	Stages   []RolloutStage  `json:"stages" required:"true" doc:"Which zones have the change, stage by stage; each stage adds zones to those before it, and the last one is for all."`
	Interval Duration        `json:"interval,omitzero" max:"720h" doc:"How long all connected zones of a stage must have the change before the next stage begins; at once when absent."`
	Manual   bool            `json:"manual,omitzero" doc:"Whether the next stage begins by 'meridian rollout promote' only."`
	HaltOn   string          `json:"haltOn,omitzero" doc:"CEL condition on a zone; the rollout halts where it is true of a zone that has the change."`
	Changes  []RolloutChange `json:"changes" required:"true" doc:"What is changed, each resource once."`
	Status   RolloutStatus   `json:"status" required:"true" doc:"How far the rollout has come; written by the control plane."`
}

// RolloutStage says which zones a stage adds, in one of three ways.
type RolloutStage struct {
	Zones   []string `json:"zones,omitzero" doc:"Names of zones; '*' stands for any characters."`
	Percent *uint32  `json:"percent,omitzero" min:"1" max:"100" doc:"Share of all zones, rounded up."`
	All     bool     `json:"all,omitzero" doc:"All zones, also those that are added later."`
}

// RolloutChange is the change of one resource: one of Put and Delete.
type RolloutChange struct {
	Put    *RolloutDocument `json:"put,omitzero" doc:"The new resource, in the universal form, with its content under 'spec'."`
	Delete *RolloutKey      `json:"delete,omitzero" doc:"The resource to delete."`
	// Replaces is compared wherever the change is shown, so that one that was made for
	// another version never hides what was written since.
	Replaces uint64 `json:"replaces,omitzero" doc:"Version of the resource that is changed; 0 where it is created."`
}

// RolloutKey names a resource.
type RolloutKey struct {
	Type Kind     `json:"type" required:"true" doc:"Kind of the resource."`
	Mesh MeshName `json:"mesh,omitzero" doc:"Mesh of the resource, where its kind lives in one."`
	Name string   `json:"name" required:"true" doc:"Name of the resource."`
}

// Key returns the identity.
func (k RolloutKey) Key() Key { return Key{Kind: k.Type, Mesh: k.Mesh, Name: k.Name} }

// RolloutStatus is how far a rollout has come.
type RolloutStatus struct {
	Phase   RolloutPhase `json:"phase" required:"true" enum:"Progressing|Halted|Completed|Aborted" doc:"Whether it continues, waits for an operator, or is over."`
	Stage   uint32       `json:"stage" required:"true" min:"1" doc:"Number of the current stage, from 1."`
	Zones   []ZoneName   `json:"zones,omitzero" doc:"Zones that have the change, sorted by name, each once."`
	All     bool         `json:"all,omitzero" doc:"That every zone has the change."`
	Since   string       `json:"since,omitzero" doc:"When the phase or the stage began, RFC 3339."`
	Settled string       `json:"settled,omitzero" doc:"Since when all connected zones of the stage have the change, RFC 3339."`
	Reason  string       `json:"reason,omitzero" doc:"Why it is in its phase, for people."`
	Author  string       `json:"author,omitzero" doc:"The user who began it."`
	// SkippedTests were skipped by a caller with the right to delete them.
	SkippedTests []MeshName `json:"skippedTests,omitzero" doc:"Meshes whose tests do not stop it, sorted by name, each once."`
}

// Began returns when the phase or the stage began, the zero time where that is unknown.
func (s *RolloutStatus) Began() time.Time {
	t, err := time.Parse(time.RFC3339, s.Since)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// SettledSince returns since when all connected zones of the stage have the change, the
// zero time where they have not.
func (s *RolloutStatus) SettledSince() time.Time {
	t, err := time.Parse(time.RFC3339, s.Settled)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// Shows reports whether a zone has the change of a rollout with this status.
func (s *RolloutStatus) Shows(zone ZoneName) bool {
	if s.Phase.Finished() {
		return false
	}
	_, named := slices.BinarySearch(s.Zones, zone)
	return named || s.All
}

// InRollouts reports whether resources of a kind can be changed stage by stage: those
// that every zone is sent, but for rollouts and for what says which tokens are valid.
func InRollouts(kind Kind) bool {
	d, ok := Describe(kind)
	return ok && d.Synced && kind != KindRollout && kind != KindSigningKey && kind != KindTokenRevocation
}

// RolloutDocument is a resource inside a Rollout.
type RolloutDocument struct{ resource *Resource }

// NewRolloutDocument returns the document of a resource. Only identity, labels and
// content are in it.
func NewRolloutDocument(r *Resource) *RolloutDocument {
	return &RolloutDocument{r.WithMeta(Meta{Key: r.meta.Key, Labels: r.meta.Labels})}
}

// Resource returns the resource, without times, version and revision.
func (d *RolloutDocument) Resource() *Resource { return d.resource }

// MarshalJSON implements json.Marshaler.
func (d RolloutDocument) MarshalJSON() ([]byte, error) {
	meta := d.resource.meta
	return json.Marshal(struct {
		Type   Kind              `json:"type"`
		Mesh   MeshName          `json:"mesh,omitempty"`
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels,omitempty"`
		Spec   json.RawMessage   `json:"spec"`
	}{meta.Kind, meta.Mesh, meta.Name, meta.Labels, json.RawMessage(bytes.Clone(d.resource.canonical))})
}

func (RolloutDocument) fieldType() string { return "document" }

// rolloutDocumentFields are the fields of a document in a rollout.
var rolloutDocumentFields = []string{"type", "mesh", "name", "labels", "spec"}

// decodeNode reads a document as Decode does, in one form only and with its mesh, so
// that what is stored says everything itself.
func (d *RolloutDocument) decodeNode(n *doctree.Node, dec *decoder) {
	if n.Shape != doctree.Object {
		dec.errorf("expected a document with `type`, `name` and `spec`, got %s", n.Describe())
		return
	}
	for _, m := range n.Members {
		if !slices.Contains(rolloutDocumentFields, m.Name) {
			dec.errorAt(doctree.MemberPath(dec.path(), m.Name), "unknown field `%s`; known here: %s", doctree.Clip(m.Name), strings.Join(rolloutDocumentFields, ", "))
			return
		}
	}
	if n.Get("spec") == nil {
		dec.errorAt(dec.path().Field("spec"), "is required")
		return
	}
	e, around, content := &envelope{}, &Report{}, &Report{}
	e.readUniversal(n, DecodeOptions{}, around)
	if e.descriptor != nil {
		switch {
		case !InRollouts(e.meta.Kind):
			around.Errorf("type", "resources of kind %s cannot be changed stage by stage", e.meta.Kind)
		case e.meta.Mesh != "" && n.Get("mesh") == nil:
			around.Errorf("mesh", "is required")
		case e.spec != nil:
			spec, canonical := decodeSpec(e.descriptor, e.spec, content)
			d.resource = New(e.meta, spec, canonical)
		}
	}
	dec.refusals(dec.path(), around)
	dec.refusals(dec.path().Field("spec"), content)
}

// refusals adds the problems of a part of the document that refuse it.
func (d *decoder) refusals(at Path, of *Report) {
	for _, p := range of.Problems {
		if p.Severity == Error {
			d.errorAt(pathBelow(at, p.Path), "%s", p.Message)
		}
	}
}

// pathBelow is the path of what is at inner in the value at outer.
func pathBelow(outer, inner Path) Path {
	if inner == Root || strings.HasPrefix(string(inner), "[") {
		return outer + inner
	}
	return outer.Field(string(inner))
}

// Validate implements Spec.
func (o *Rollout) Validate(at Path, r *Report) {
	o.checkStages(at.Field("stages"), r)
	if len(o.HaltOn) > maxRolloutCondition {
		r.Errorf(at.Field("haltOn"), "takes %d bytes; a condition takes at most %d", len(o.HaltOn), maxRolloutCondition)
	}
	o.checkChanges(at.Field("changes"), r)
	o.Status.check(at.Field("status"), len(o.Stages), r)
}

func (o *Rollout) checkStages(at Path, r *Report) {
	if len(o.Stages) == 0 || len(o.Stages) > MaxRolloutStages {
		r.Errorf(at, "has %d stages; a rollout has 1 to %d", len(o.Stages), MaxRolloutStages)
		return
	}
	for i := range o.Stages {
		stage, path := &o.Stages[i], at.Index(i)
		ways := 0
		for _, chosen := range []bool{stage.Zones != nil, stage.Percent != nil, stage.All} {
			if chosen {
				ways++
			}
		}
		if ways != 1 {
			r.Errorf(path, "needs exactly one of zones, percent and all")
		}
		if stage.All != (i == len(o.Stages)-1) {
			r.Errorf(path.Field("all"), "belongs to the last stage, and the last stage needs it")
		}
		if stage.Zones != nil && len(stage.Zones) == 0 {
			r.Errorf(path.Field("zones"), "needs at least one zone")
		}
		if len(stage.Zones) > maxRolloutZones {
			r.Errorf(path.Field("zones"), "has %d entries; a stage has at most %d: write '*' for a part of the name", len(stage.Zones), maxRolloutZones)
			continue
		}
		for j, zone := range stage.Zones {
			// With a letter in place of each '*', a pattern is a name.
			if err := CheckName(strings.ReplaceAll(zone, AnyValue, "x")); err != nil {
				r.Errorf(path.Field("zones").Index(j), "%s", err)
			}
		}
	}
}

func (o *Rollout) checkChanges(at Path, r *Report) {
	if len(o.Changes) == 0 || len(o.Changes) > MaxRolloutChanges {
		r.Errorf(at, "has %d changes; a rollout has 1 to %d", len(o.Changes), MaxRolloutChanges)
		return
	}
	seen := make(map[Key]int, len(o.Changes))
	for i := range o.Changes {
		change, path := &o.Changes[i], at.Index(i)
		if (change.Put == nil) == (change.Delete == nil) {
			r.Errorf(path, "needs exactly one of put and delete")
			continue
		}
		if change.Delete != nil {
			change.Delete.check(path.Field("delete"), r)
			if change.Replaces == 0 {
				r.Errorf(path.Field("replaces"), "is required: a resource that does not exist cannot be deleted")
			}
		}
		if change.Put != nil && change.Put.resource == nil {
			continue // could not be decoded
		}
		if first, twice := seen[change.Key()]; twice {
			r.Errorf(path, "%s is changed by %s already; keep one of them", change.Key(), at.Index(first))
		} else {
			seen[change.Key()] = i
		}
	}
}

// Key names the resource that is changed.
func (c *RolloutChange) Key() Key {
	if c.Put != nil {
		return c.Put.resource.Key()
	}
	return c.Delete.Key()
}

func (k *RolloutKey) check(at Path, r *Report) {
	d, known := Describe(k.Type)
	switch {
	case !known:
		r.Errorf(at.Field("type"), "%s", unknownKind(string(k.Type)))
	case !InRollouts(k.Type):
		r.Errorf(at.Field("type"), "resources of kind %s cannot be changed stage by stage", k.Type)
	default:
		of := &Report{}
		checkKey(d, k.Key(), of)
		for _, p := range of.Problems {
			r.Errorf(pathBelow(at, p.Path), "%s", p.Message)
		}
	}
}

func (s *RolloutStatus) check(at Path, stages int, r *Report) {
	if int64(s.Stage) > int64(stages) {
		r.Errorf(at.Field("stage"), "is %d of %d stages", s.Stage, stages)
	}
	if len(s.Zones) > maxRolloutZones {
		r.Errorf(at.Field("zones"), "has %d zones; at most %d can be named", len(s.Zones), maxRolloutZones)
		return
	}
	for i, zone := range s.Zones {
		path := at.Field("zones").Index(i)
		if err := CheckName(string(zone)); err != nil {
			r.Errorf(path, "%s", err)
		}
		if i > 0 && s.Zones[i-1] >= zone {
			r.Errorf(path, "zones are sorted by name, and each is there once")
		}
	}
	if len(s.SkippedTests) > MaxRolloutChanges {
		r.Errorf(at.Field("skippedTests"), "has %d meshes; at most %d can be named", len(s.SkippedTests), MaxRolloutChanges)
		return
	}
	for i, mesh := range s.SkippedTests {
		path := at.Field("skippedTests").Index(i)
		if err := CheckName(string(mesh)); err != nil {
			r.Errorf(path, "%s", err)
		}
		if i > 0 && s.SkippedTests[i-1] >= mesh {
			r.Errorf(path, "meshes are sorted by name, and each is there once")
		}
	}
	if s.Phase.Finished() && (len(s.Zones) > 0 || s.All) {
		r.Errorf(at.Field("zones"), "no zone has the change of a rollout that is over")
	}
	for _, moment := range []struct{ name, value string }{{"since", s.Since}, {"settled", s.Settled}} {
		if moment.value != "" {
			readTime(&doctree.Node{Shape: doctree.Text, Text: moment.value}, at.Field(moment.name), r)
		}
	}
	for _, text := range []struct{ name, value string }{{"reason", s.Reason}, {"author", s.Author}} {
		if len(text.value) > maxRolloutText {
			r.Errorf(at.Field(text.name), "takes %d bytes; at most %d are allowed", len(text.value), maxRolloutText)
		}
	}
}
