// Command report reads the output of `go test -bench`, on standard input or from files, and
// writes what several runs say together: for every metric the median, the spread and the
// ratio to a baseline, as a Markdown table on standard output and, with --json, as a file
// that can be the baseline of a later run.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"

	"meridian/internal/atomicfile"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	flags := pflag.NewFlagSet("report", pflag.ContinueOnError)
	baseline := flags.String("baseline", "", "compare with this `file`, which --json wrote")
	write := flags.String("json", "", "write the figures to this `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var before Report
	if *baseline != "" {
		data, err := os.ReadFile(*baseline)
		if err != nil {
			return fmt.Errorf("read the baseline: %w", err)
		}
		if err := json.Unmarshal(data, &before); err != nil {
			return fmt.Errorf("baseline %s is not a report of this command: %w", *baseline, err)
		}
	}
	report, err := read(flags.Args(), in)
	if err != nil {
		return err
	}
	if *write != "" {
		data, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return err
		}
		if err := atomicfile.Write(*write, append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	return report.markdown(out, before)
}

// Report is what runs of benchmarks say together.
type Report struct {
	// Machine describes where they ran, as `go test` does: goos, goarch, cpu.
	Machine map[string]string `json:"machine"`
	Metrics []Metric          `json:"metrics"`
}

// Metric is one figure of one benchmark.
type Metric struct {
	Package   string `json:"package"`
	Benchmark string `json:"benchmark"`
	// Unit names the figure and ends with its unit, such as apply-p50-ms.
	Unit string `json:"unit"`
	// Values are the figures of the runs, in their order, and Median the middle of them.
	Values []float64 `json:"values"`
	Median float64   `json:"median"`
}

func (m *Metric) key() string { return m.Package + " " + m.Benchmark + " " + m.Unit }

// machine are the settings that describe where a benchmark ran.
var machine = []string{"goos", "goarch", "cpu"}

// read reads the output of benchmarks from files, or from in where there are none.
func read(files []string, in io.Reader) (Report, error) {
	report := Report{Machine: map[string]string{}}
	at := map[string]int{}
	one := func(name string, in io.Reader) error {
		results := benchfmt.NewReader(in, name)
		for results.Scan() {
			switch rec := results.Result().(type) {
			case *benchfmt.SyntaxError:
				return rec
			case *benchfmt.Result:
				report.add(rec, at)
			}
		}
		return results.Err()
	}
	if len(files) == 0 {
		if err := one("standard input", in); err != nil {
			return report, err
		}
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return report, err
		}
		if err := one(name, bytes.NewReader(data)); err != nil {
			return report, err
		}
	}
	if len(report.Metrics) == 0 {
		return report, errors.New("the input has no result of a benchmark: give it what `go test -bench` prints")
	}
	for i := range report.Metrics {
		m := &report.Metrics[i]
		m.Median = summary(m.Values).Center
	}
	slices.SortStableFunc(report.Metrics, func(a, b Metric) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Benchmark, b.Benchmark))
	})
	return report, nil
}

// add adds the figures of one run, at being where those of a metric are.
func (r *Report) add(run *benchfmt.Result, at map[string]int) {
	for _, key := range machine {
		if value := run.GetConfig(key); value != "" {
			r.Machine[key] = value
		}
	}
	name, procs := processors(run.Name.String())
	if procs != "" {
		r.Machine["processors"] = procs
	}
	for _, v := range run.Values {
		value, unit := v.Value, v.Unit
		if v.OrigUnit != "" { // as the benchmark has it, and not in base units
			value, unit = v.OrigValue, v.OrigUnit
		}
		m := Metric{Package: run.GetConfig("pkg"), Benchmark: name, Unit: unit}
		i, known := at[m.key()]
		if !known {
			i = len(r.Metrics)
			at[m.key()] = i
			r.Metrics = append(r.Metrics, m)
		}
		r.Metrics[i].Values = append(r.Metrics[i].Values, value)
	}
}

// processors splits the number of processors, which `go test` appends, from the name of a
// benchmark.
func processors(name string) (benchmark, procs string) {
	if i := strings.LastIndexByte(name, '-'); i >= 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			return name[:i], name[i+1:]
		}
	}
	return name, ""
}

func summary(values []float64) benchmath.Summary {
	return benchmath.AssumeNothing.Summary(sample(values), 0.95)
}

func sample(values []float64) *benchmath.Sample {
	return benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds)
}

// markdown writes the report as a table, with the ratio to the metrics of a baseline.
func (r *Report) markdown(out io.Writer, before Report) error {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(r.Machine)) {
		fmt.Fprintf(&b, "%s: %s  \n", key, r.Machine[key])
	}
	if len(before.Metrics) > 0 && !maps.Equal(before.Machine, r.Machine) {
		b.WriteString("The baseline is of another machine: only metrics that are ratios can be compared.  \n")
	}
	b.WriteString("\n| benchmark | metric | median | spread | runs | baseline | ratio |\n|---|---|---|---|---|---|---|\n")
	then := map[string]*Metric{}
	for i := range before.Metrics {
		then[before.Metrics[i].key()] = &before.Metrics[i]
	}
	for i := range r.Metrics {
		m := &r.Metrics[i]
		was, ratio := "", ""
		if b := then[m.key()]; b != nil {
			was, ratio = figure(b.Median), m.against(b)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s–%s | %d | %s | %s |\n", m.Benchmark, m.Unit, figure(m.Median),
			figure(slices.Min(m.Values)), figure(slices.Max(m.Values)), len(m.Values), was, ratio)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// against returns the ratio to a baseline; in bold where the two differ by more than
// chance explains (the Mann-Whitney U test at 0.05, which takes four runs of each).
func (m *Metric) against(b *Metric) string {
	if b.Median == 0 {
		return ""
	}
	ratio := fmt.Sprintf("%.2f", m.Median/b.Median)
	c := benchmath.AssumeNothing.Compare(sample(b.Values), sample(m.Values))
	if c.P < c.Alpha {
		return "**" + ratio + "**"
	}
	return ratio
}

// figure prints a number with three digits.
func figure(f float64) string {
	if f == math.Trunc(f) || math.Abs(f) >= 1000 {
		return strconv.FormatFloat(math.Round(f), 'f', -1, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}
