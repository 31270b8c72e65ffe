package expectation

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/jstemmer/go-junit-report/v2/junit"
)

// WriteJUnit writes the report as JUnit XML, a suite for each file.
func (r *Report) WriteJUnit(w io.Writer) error {
	var all junit.Testsuites
	suite := -1
	var suites []junit.Testsuite
	for i := range r.Cases {
		c := &r.Cases[i]
		if suite < 0 || suites[suite].Name != c.File {
			suites = append(suites, junit.Testsuite{Name: c.File, Time: "0", ID: len(suites)})
			suite++
		}
		made := junit.Testcase{Name: c.Name, Classname: c.File}
		if !c.OK {
			made.Failure = &junit.Result{Message: c.Message, Data: fmt.Sprintf("%s:%d: %s", c.File, c.Line, c.Message)}
		}
		suites[suite].AddTestcase(made)
	}
	for _, s := range suites {
		all.AddSuite(s)
	}
	if _, err := io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"); err != nil {
		return err
	}
	return all.WriteXML(w)
}

// The parts of SARIF 2.1.0 (OASIS) that a report has.
type (
	sarifLog struct {
		Version string     `json:"version"`
		Schema  string     `json:"$schema"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
)

const failedCase = "policy-test"

// WriteSARIF writes the cases that failed as SARIF 2.1.0. version is that of the
// program.
func (r *Report) WriteSARIF(w io.Writer, version string) error {
	run := sarifRun{
		Tool: sarifTool{sarifDriver{
			Name: "meridian", Version: version,
			Rules: []sarifRule{{failedCase, sarifText{"A case of a PolicyTest is otherwise than expected."}}},
		}},
		Results: []sarifResult{},
	}
	for i := range r.Cases {
		if c := &r.Cases[i]; !c.OK {
			run.Results = append(run.Results, sarifResult{
				RuleID: failedCase, Level: "error", Message: sarifText{c.Name + ": " + c.Message},
				Locations: []sarifLocation{{sarifPhysical{sarifArtifact{filepath.ToSlash(c.File)}, sarifRegion{max(c.Line, 1)}}}},
			})
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(sarifLog{Version: "2.1.0", Schema: "https://json.schemastore.org/sarif-2.1.0.json", Runs: []sarifRun{run}})
}
