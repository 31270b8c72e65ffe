package cli

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/analysis"
	"meridian/internal/atomicfile"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/expectation"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/sarif"
	"meridian/internal/version"
)

func newLintCommand(a *app) *cobra.Command {
	var (
		strict                     bool
		zone, sarifFile, junitFile string
	)
	cmd := &cobra.Command{
		Use:   "lint FILE|DIR…",
		Short: "Find in files what is valid and probably not meant",
		Long: `Find in files, without a server, what is valid and probably not meant: policies
and parts of them that take effect nowhere, orders that names or times alone
decide, targets that select nothing, roles that grant nothing or everything,
meshes without mutual TLS. Each finding has a code, a reason, and what to do.

What rests on dataplanes is found where the files have some. The exit code is 1
with findings of severity error; with --strict, with any.
docs/policies/analysis.md lists the codes.`,
		Example: `  meridian lint policies/
  meridian lint policies/ dataplanes/ --strict --sarif lint.sarif --junit lint.xml`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 where anything is found")
	cmd.Flags().StringVar(&sarifFile, "sarif", "", "write the findings as SARIF to this file")
	cmd.Flags().StringVar(&junitFile, "junit", "", "write a JUnit report to this file: a case for each document, which fails by what fails the command")
	cmd.Flags().StringVar(&zone, "zone", "", "zone of dataplanes that name none (default \""+defaultZone+"\")")
	mesh := bindMesh(cmd)
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return exit.Usagef("missing FILE or DIR: the documents to look at")
		}
		if err := checkZone(zone); err != nil {
			return err
		}
		documents, err := a.load(&sources{files: args, recursive: true, cmd: cmd}, mesh)
		if err == nil {
			err = checkConditions(documents)
		}
		if err != nil {
			return err
		}
		view, err := policy.Offline(resourcesOf(documents), zoneOr(zone), zone != "")
		if err != nil {
			return &exit.Failure{Code: exit.Usage, Err: err}
		}
		report, err := analysis.Run(cmd.Context(), view)
		if err != nil {
			return err
		}
		for _, name := range report.Cut {
			a.Warn("mesh " + string(name) + " has more policies and dataplanes than are compared: nothing is said that rests on dataplanes")
		}
		found := located(documents, append(remarksOf(documents), report.Findings...))
		if sarifFile != "" {
			if err := writeSARIF(sarifFile, found); err != nil {
				return err
			}
		}
		if junitFile != "" {
			if err := writeReport(junitFile, casesOf(documents, found, strict).WriteJUnit); err != nil {
				return err
			}
		}
		return a.printFound(output.Value, found, strict)
	}
	return cmd
}

// casesOf are the documents as cases: one fails where a finding of it fails the command.
func casesOf(documents []resource.Document, found []findingView, strict bool) *expectation.Report {
	failures := map[resource.Key][]string{}
	for i := range found {
		if f := &found[i]; failed(found[i:i+1], strict) {
			text := resource.Problem{Path: resource.Path(f.Field), Message: f.Message}.String()
			failures[f.Key()] = append(failures[f.Key()], fmt.Sprintf("%s: %s (%s)", f.Code, text, f.Fix))
		}
	}
	report := &expectation.Report{}
	for i := range documents {
		d := &documents[i]
		key := d.Resource.Key()
		report.Cases = append(report.Cases, expectation.Result{
			Name: key.String(), File: filepath.ToSlash(d.Source), Line: d.Line,
			OK: len(failures[key]) == 0, Message: strings.Join(failures[key], "\n"),
		})
	}
	return report
}

// located says of findings in which files they are. A mesh that no document defines has
// none.
func located(documents []resource.Document, all []policy.Advice) []findingView {
	at := make(map[resource.Key]*resource.Document, len(documents))
	for i := range documents {
		at[documents[i].Resource.Key()] = &documents[i]
	}
	views := []findingView{}
	for _, advice := range all {
		d := at[advice.Key]
		if d == nil {
			continue
		}
		advice.Source = d.Source
		if advice.Line == 0 {
			advice.Line = d.Line
		}
		views = append(views, answer.FindingOf(advice))
	}
	return views
}

func writeSARIF(path string, found []findingView) error {
	var rules []sarif.Rule
	for _, e := range resource.Explanations() {
		rules = append(rules, sarif.Rule{ID: string(e.Code), Text: e.Title + ".", Help: e.Fix})
	}
	var results []sarif.Result
	for i := range found {
		f := &found[i]
		level := f.Severity
		if level == answer.SeverityInfo {
			level = "note"
		}
		text := resource.Problem{Path: resource.Path(f.Field), Message: f.Message}.String()
		results = append(results, sarif.Result{RuleID: f.Code, Level: level, Text: fmt.Sprintf("%s: %s (%s)", f.Key(), text, f.Fix), File: filepath.ToSlash(f.Source), Line: f.Line})
	}
	return writeReport(path, func(w io.Writer) error { return sarif.Write(w, version.String(), rules, results) })
}

// writeReport writes a file completely or not at all.
func writeReport(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if err := atomicfile.Write(path, b.Bytes(), 0o644); err != nil {
		return &exit.Failure{Code: exit.Usage, Err: err}
	}
	return nil
}

// printFound prints findings, and fails as the contract has it.
func (a *app) printFound(f print.Format, found []findingView, strict bool) error {
	var err error
	if f.Structured() {
		err = a.WriteValue(f, struct {
			Findings []findingView `json:"findings"`
		}{found})
	} else {
		var b bytes.Buffer
		if err = answer.RenderFindings(&b, found); err == nil {
			err = a.Output(b.Bytes())
		}
	}
	if err == nil && failed(found, strict) {
		return exit.ErrNo
	}
	return err
}

// zoneOr is the zone of dataplanes that name none.
func zoneOr(flag string) resource.ZoneName {
	if flag == "" {
		return defaultZone
	}
	return resource.ZoneName(flag)
}
