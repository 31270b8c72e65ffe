package resource

import (
	"encoding/json"
	"fmt"
	"reflect"

	"meridian/internal/doctree"
)

// ConnectionSpec is implemented by the policies between a source and a
// destination (§3.1). The slices must not be modified.
type ConnectionSpec interface {
	Spec
	SourceSelectors() []TagSelector
	DestinationSelectors() []TagSelector
}

// DataplaneSpec is implemented by the kinds that select dataplanes with
// `selectors`. The slice must not be modified.
type DataplaneSpec interface {
	Spec
	DataplaneSelectors() []TagSelector
}

// ConfSpec is implemented by the source/destination kinds.
type ConfSpec interface {
	Spec
	// ConfTree returns `conf` as a tree of map[string]any, []any, string, bool,
	// json.Number and nil, durations as written; nil when the document has no
	// conf. Every call builds a new tree, which the caller owns.
	ConfTree() map[string]any
}

// BackendUse is what a policy wants from a backend that its Mesh defines.
type BackendUse string

const (
	// LoggingBackend names an entry of the Mesh's logging backends.
	LoggingBackend BackendUse = "logging"
	// TracingBackend names an entry of the Mesh's tracing backends.
	TracingBackend BackendUse = "tracing"
	// MetricsBackend names an entry of the Mesh's metrics backends.
	MetricsBackend BackendUse = "metrics"
)

// BackendRef is a place in a policy that names a backend of the Mesh. A name
// that the Mesh does not define is accepted with a warning (§1.4).
type BackendRef struct {
	Path Path
	Use  BackendUse
	Name string
}

// BackendReferrer is implemented by the policies that may name backends.
type BackendReferrer interface {
	// BackendRefs lists the references in the order of the document.
	BackendRefs() []BackendRef
}

// Selector is one alternative of `sources`, `destinations` or `selectors`.
type Selector struct {
	Match TagSelector `json:"match" doc:"Tags that must all be present with these values; '*' accepts any value of a tag that is present."`
}

// ConnectionMatch says between whom a policy holds.
type ConnectionMatch struct {
	Sources      []Selector `json:"sources,omitzero" required:"validated" doc:"Dataplanes that open the connections; one matching entry is enough."`
	Destinations []Selector `json:"destinations,omitzero" required:"validated" doc:"Services or dataplanes that the connections go to; one matching entry is enough."`
}

// SourceSelectors returns the tags of every entry of `sources`.
func (m *ConnectionMatch) SourceSelectors() []TagSelector { return selectorTags(m.Sources) }

// DestinationSelectors returns the tags of every entry of `destinations`.
func (m *ConnectionMatch) DestinationSelectors() []TagSelector {
	return selectorTags(m.Destinations)
}

// Validate reports missing sides and selectors without tags (§2.1).
func (m *ConnectionMatch) Validate(at Path, r *Report) {
	checkSelectors(at.Field("sources"), m.Sources, r)
	checkSelectors(at.Field("destinations"), m.Destinations, r)
}

// checker is what the conf of a kind knows about itself.
type checker interface{ check(at Path, r *Report) }

// checkerOf is a pointer to C that can check itself.
type checkerOf[C any] interface {
	*C
	checker
}

// Connection is the shape of every policy between sources and destinations
// whose content is a conf of type C.
type Connection[C any, P checkerOf[C]] struct {
	ConnectionMatch
	Conf *C `json:"conf,omitzero" doc:"What the policy configures; without it the policy only takes the place of less specific ones."`
}

// Validate reports everything wrong with the selectors and the conf.
func (p *Connection[C, P]) Validate(at Path, r *Report) {
	p.ConnectionMatch.Validate(at, r)
	checkConf[C, P](at.Field("conf"), p.Conf, r)
}

// checkConf reports what is wrong with a conf. An empty one is accepted: it is as
// good as none (§1.2).
func checkConf[C any, P checkerOf[C]](at Path, conf *C, r *Report) {
	switch {
	case conf == nil:
	case reflect.ValueOf(conf).Elem().IsZero():
		r.Findf(CodeNoEffect, at, "is empty: the policy configures nothing")
	default:
		P(conf).check(at, r)
	}
}

// ConfTree implements ConfSpec.
func (p *Connection[C, P]) ConfTree() map[string]any { return confTree(p.Conf) }

// DataplaneMatch says which dataplanes a policy configures.
type DataplaneMatch struct {
	Selectors []Selector `json:"selectors,omitzero" required:"validated" doc:"Dataplanes to configure, by the tags of any inbound or of the gateway; one matching entry is enough."`
}

// DataplaneSelectors returns the tags of every entry of `selectors`.
func (m *DataplaneMatch) DataplaneSelectors() []TagSelector { return selectorTags(m.Selectors) }

// Validate reports missing selectors and selectors without tags.
func (m *DataplaneMatch) Validate(at Path, r *Report) {
	checkSelectors(at.Field("selectors"), m.Selectors, r)
}

// DataplanePolicy is the shape of every policy that configures whole dataplanes
// with a conf of type C.
type DataplanePolicy[C any, P checkerOf[C]] struct {
	DataplaneMatch
	Conf *C `json:"conf,omitzero" doc:"What the policy configures; without it the policy only takes the place of less specific ones."`
}

// Validate reports everything wrong with the selectors and the conf.
func (p *DataplanePolicy[C, P]) Validate(at Path, r *Report) {
	p.DataplaneMatch.Validate(at, r)
	checkConf[C, P](at.Field("conf"), p.Conf, r)
}

// ConfTree implements ConfSpec.
func (p *DataplanePolicy[C, P]) ConfTree() map[string]any { return confTree(p.Conf) }

func selectorTags(selectors []Selector) []TagSelector {
	tags := make([]TagSelector, len(selectors))
	for i, s := range selectors {
		tags[i] = s.Match
	}
	return tags
}

// confTree turns typed configuration into the tree that engines merge; nil for
// nil.
func confTree[C any](conf *C) map[string]any {
	if conf == nil {
		return nil
	}
	return treeOf(conf)
}

// treeOf turns a typed object that came from the decoder into a tree of JSON
// values. Going through JSON keeps one description of the fields, their tags.
func treeOf(conf any) map[string]any {
	text, err := json.Marshal(conf)
	if err != nil {
		panic(fmt.Sprintf("resource: a decoded %T cannot be encoded: %v", conf, err)) // a spec type holds a value without JSON form
	}
	tree, ok := plain(text).(map[string]any)
	if !ok {
		panic(fmt.Sprintf("resource: %T does not encode to an object: %s", conf, text))
	}
	return tree
}

// plain returns the value of a JSON text that came from the decoder.
func plain(text []byte) (value any) {
	doctree.ReadJSON(text, func(values []*doctree.Node, _ bool, err error) {
		if err != nil || len(values) != 1 {
			panic(fmt.Sprintf("resource: what the decoder let through is not JSON: %s: %v", text, err))
		}
		value = values[0].Plain()
	})
	return value
}
