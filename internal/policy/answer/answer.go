package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// ErrNotFound means that the question names something that does not exist. The
// error it is wrapped in says what, and names the nearest thing that does.
var ErrNotFound = errors.New("not found")

// ErrInvalid means that the question makes no sense, such as asking for the
// attachments of a kind that is no policy.
var ErrInvalid = errors.New("invalid question")

// Marshal spells a document, always the same way: indented by two spaces,
// nothing escaped for HTML, with a newline at the end.
func Marshal(document any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(document); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b.Bytes(), nil
}

// Unmarshal reads a document that Marshal has written, such as one that came
// from a server, into one of this package's types.
func Unmarshal(data []byte, document any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(document); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

// Considered says what became of one policy that selects the dataplane.
type Considered struct {
	Policy string `json:"policy"`
	Used   bool   `json:"used"`
	// Rule is the number of the deciding rule in docs/semantics.
	Rule   string `json:"rule"`
	Reason string `json:"reason"`
}

// Successor is the kind that holds for an attachment in place of its sibling, with
// its policies (§4.11).
type Successor struct {
	Kind     resource.Kind `json:"kind"`
	Policies []string      `json:"policies"`
}

func successor(by *policy.Superseded) *Successor {
	if by == nil {
		return nil
	}
	return &Successor{by.Kind, names(by.By)}
}

// String names the successor for people.
func (s *Successor) String() string { return string(s.Kind) + " " + commas(s.Policies) }

// CallerRule is one entry of an inbound's ordered list: what holds for the
// callers that match.
type CallerRule struct {
	Match  resource.TagSelector `json:"match"`
	Conf   policy.Tree          `json:"conf"`
	Policy string               `json:"policy"`
	// ShadowedBy names the policy of the first earlier entry that matches all
	// these callers and sets all these fields; empty when there is none.
	ShadowedBy string `json:"shadowedBy"`
}

func considered(rule *policy.Rule) []Considered {
	list := []Considered{}
	for _, v := range rule.Verdicts() {
		list = append(list, Considered{v.Policy.Name, v.Used, v.Rule, v.Reason})
	}
	return list
}

func callerRules(rule *policy.Rule) []CallerRule {
	list := make([]CallerRule, len(rule.Steps))
	for i, shadow := range rule.Shadows() {
		s := &rule.Steps[i]
		list[i] = CallerRule{Match: s.Match, Conf: s.Conf, Policy: s.Origin.Name}
		if s.Match == nil {
			list[i].Match = resource.TagSelector{}
		}
		if s.Conf == nil {
			list[i].Conf = policy.Tree{}
		}
		if shadow >= 0 {
			list[i].ShadowedBy = rule.Steps[shadow].Origin.Name
		}
	}
	return list
}

// names lists policies by name, never nil.
func names(keys []resource.Key) []string {
	list := make([]string, len(keys))
	for i, k := range keys {
		list[i] = k.Name
	}
	return list
}

// fieldNames is a fold's provenance by policy name, never nil.
func fieldNames(fold *policy.Fold) map[policy.Pointer]string {
	fields := map[policy.Pointer]string{}
	for p, key := range fold.Fields() {
		fields[p] = key.Name
	}
	return fields
}

// origins lists the policies of steps, each once, in order.
func origins(steps []policy.Step) []string {
	list := []string{}
	for _, s := range steps {
		if !slices.Contains(list, s.Origin.Name) {
			list = append(list, s.Origin.Name)
		}
	}
	return list
}

// findDataplane returns a dataplane or an ErrNotFound that helps.
func findDataplane(r *policy.Reading, mesh resource.MeshName, name string) (*policy.Shape, error) {
	shape, err := r.Dataplane(policy.DataplaneKey(mesh, name))
	if err == nil {
		return shape, nil
	}
	var here []string
	elsewhere := ""
	for key := range r.Dataplanes("") {
		if key.Mesh == mesh {
			here = append(here, key.Name)
		} else if key.Name == name {
			elsewhere = fmt.Sprintf("; there is one in mesh %q", key.Mesh)
		}
	}
	return nil, notFound(fmt.Sprintf("dataplane %q in mesh %q", name, mesh), name, here, elsewhere)
}

// notFound says what is missing, and the candidate that was probably meant.
func notFound(what, name string, candidates []string, hint string) error {
	if near, ok := resource.Nearest(name, candidates); ok && hint == "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return fmt.Errorf("%s: %w%s", what, ErrNotFound, hint)
}
