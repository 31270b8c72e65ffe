package expectation

import (
	"fmt"
	"io"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"meridian/internal/sarif"
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

const failedCase = "policy-test"

// WriteSARIF writes the cases that failed as SARIF 2.1.0. version is that of the
// program.
func (r *Report) WriteSARIF(w io.Writer, version string) error {
	var results []sarif.Result
	for i := range r.Cases {
		if c := &r.Cases[i]; !c.OK {
			results = append(results, sarif.Result{RuleID: failedCase, Level: "error", Text: c.Name + ": " + c.Message, File: c.File, Line: c.Line})
		}
	}
	return sarif.Write(w, version, []sarif.Rule{{ID: failedCase, Text: "A case of a PolicyTest is otherwise than expected."}}, results)
}
