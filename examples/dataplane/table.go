package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	meridianv1 "meridian/api/meridian/v1"
)

// table is what a proxy has been told, by target.
type table struct {
	entries map[string]*meridianv1.EffectiveEntry
}

// take applies a configuration, whole or not at all. A real proxy would put it in
// force here, and return why it cannot.
func (t *table) take(c *meridianv1.ConnectResponse) error {
	next := map[string]*meridianv1.EffectiveEntry{}
	if !c.GetFull() {
		maps.Copy(next, t.entries)
	}
	for _, e := range c.GetSet() {
		if !e.GetPerCaller() && !json.Valid(e.GetConf()) {
			return fmt.Errorf("%s: the configuration is not JSON", describe(e.GetTarget()))
		}
		next[describe(e.GetTarget())] = e
	}
	for _, target := range c.GetRemoved() {
		delete(next, describe(target))
	}
	t.entries = next
	return nil
}

// describe names a target so that two are equal when their names are.
func describe(t *meridianv1.EffectiveTarget) string {
	if t.GetType() == "dataplane" {
		return t.GetKind() + " on the dataplane"
	}
	text := fmt.Sprintf("%s on %s %s:%d", t.GetKind(), t.GetType(), t.GetService(), t.GetPort())
	if t.GetRoute() != "" {
		text += " route " + t.GetRoute()
	}
	return text + " " + tagText(t.GetTags())
}

func tagText(tags map[string]string) string {
	parts := make([]string, 0, len(tags))
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		parts = append(parts, tag+"="+tags[tag])
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// print shows what came, and what the proxy made of it.
func (c *client) print(m *meridianv1.ConnectResponse, refused string) error {
	if c.format == "json" {
		line, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
		if err != nil {
			return err
		}
		// protojson varies its spacing; lines are for programs.
		var compact any
		if err := json.Unmarshal(line, &compact); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(compact)
	}
	what := "change"
	if m.GetFull() {
		what = "full"
	}
	fmt.Printf("#%d revision %d, %s: %d set, %d removed, %d in force\n",
		m.GetSequence(), m.GetRevision(), what, len(m.GetSet()), len(m.GetRemoved()), len(c.table.entries))
	for _, e := range m.GetSet() {
		fmt.Printf("  + %s  by %s\n", describe(e.GetTarget()), strings.Join(e.GetPolicies(), ", "))
		if !e.GetPerCaller() {
			fmt.Printf("      %s\n", e.GetConf())
		}
		for _, r := range e.GetRules() {
			callers := "any caller"
			if len(r.GetMatch()) > 0 {
				callers = "callers " + tagText(r.GetMatch())
			}
			fmt.Printf("      %s: %s\n", callers, r.GetConf())
		}
	}
	for _, target := range m.GetRemoved() {
		fmt.Printf("  - %s\n", describe(target))
	}
	if refused != "" {
		fmt.Printf("  refused: %s\n", refused)
	}
	return nil
}

func (c *client) note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// readHello makes the hello: of a Dataplane in universal form, or of one that an
// operator has applied.
func readHello(o options) (*meridianv1.DataplaneHello, error) {
	switch {
	case o.caFile == "" || o.tokenFile == "":
		return nil, fmt.Errorf("--ca-file and --token-file are required")
	case o.dataplane == "" && o.name == "":
		return nil, fmt.Errorf("give the dataplane to register with --dataplane FILE, or one that is applied already with --name")
	case o.dataplane == "":
		return &meridianv1.DataplaneHello{Mesh: o.mesh, Name: o.name}, nil
	}
	data, err := os.ReadFile(o.dataplane)
	if err != nil {
		return nil, fmt.Errorf("--dataplane: %w", err)
	}
	var document struct {
		Type       string          `json:"type"`
		Mesh       string          `json:"mesh"`
		Name       string          `json:"name"`
		Networking json.RawMessage `json:"networking"`
	}
	if err := yaml.UnmarshalStrict(data, &document); err != nil {
		return nil, fmt.Errorf("--dataplane %s: %w", o.dataplane, err)
	}
	if document.Type != "Dataplane" || document.Name == "" {
		return nil, fmt.Errorf("--dataplane %s: not a Dataplane with a name", o.dataplane)
	}
	spec, err := json.Marshal(map[string]json.RawMessage{"networking": document.Networking})
	if err != nil {
		return nil, fmt.Errorf("--dataplane %s: %w", o.dataplane, err)
	}
	if document.Mesh == "" {
		document.Mesh = o.mesh
	}
	return &meridianv1.DataplaneHello{Mesh: document.Mesh, Name: document.Name, Spec: spec}, nil
}
