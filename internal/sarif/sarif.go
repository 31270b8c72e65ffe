// Package sarif writes what checks of files found as SARIF 2.1.0 (OASIS), which code
// hosts show beside the lines.
//
// Non-goals: reading SARIF; fingerprints, code flows and everything else that its readers
// do without.
package sarif

import (
	"encoding/json"
	"io"
	"path/filepath"
)

// Rule is something that is checked.
type Rule struct {
	ID, Text string
	// Help says what to do; empty where there is nothing to say.
	Help string
}

// Result is something that was found. Level is "error", "warning" or "note".
type Result struct {
	RuleID, Level, Text string
	// File is empty where it is in no file; Line is at least 1.
	File string
	Line int
}

type (
	log struct {
		Version string `json:"version"`
		Schema  string `json:"$schema"`
		Runs    []run  `json:"runs"`
	}
	run struct {
		Tool    tool     `json:"tool"`
		Results []result `json:"results"`
	}
	tool struct {
		Driver driver `json:"driver"`
	}
	driver struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		Rules   []rule `json:"rules"`
	}
	rule struct {
		ID               string `json:"id"`
		ShortDescription text   `json:"shortDescription"`
		Help             *text  `json:"help,omitempty"`
	}
	text struct {
		Text string `json:"text"`
	}
	result struct {
		RuleID    string     `json:"ruleId"`
		Level     string     `json:"level"`
		Message   text       `json:"message"`
		Locations []location `json:"locations,omitempty"`
	}
	location struct {
		Physical physical `json:"physicalLocation"`
	}
	physical struct {
		Artifact artifact `json:"artifactLocation"`
		Region   region   `json:"region"`
	}
	artifact struct {
		URI string `json:"uri"`
	}
	region struct {
		StartLine int `json:"startLine"`
	}
)

// Write writes one run of a version of the program.
func Write(w io.Writer, version string, rules []Rule, results []Result) error {
	one := run{Tool: tool{driver{Name: "meridian", Version: version, Rules: []rule{}}}, Results: []result{}}
	for _, r := range rules {
		made := rule{ID: r.ID, ShortDescription: text{r.Text}}
		if r.Help != "" {
			made.Help = &text{r.Help}
		}
		one.Tool.Driver.Rules = append(one.Tool.Driver.Rules, made)
	}
	for _, r := range results {
		made := result{RuleID: r.RuleID, Level: r.Level, Message: text{r.Text}}
		if r.File != "" {
			made.Locations = []location{{physical{artifact{filepath.ToSlash(r.File)}, region{max(r.Line, 1)}}}}
		}
		one.Results = append(one.Results, made)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(log{Version: "2.1.0", Schema: "https://json.schemastore.org/sarif-2.1.0.json", Runs: []run{one}})
}
