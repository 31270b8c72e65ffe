package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"meridian/docs/semantics"
)

// root is the top of the repository.
const root = "../.."

// file is a text file of the repository.
type file struct{ path, text string }

// skipped are directories without sources, and generated data.
var skipped = []string{".git", ".cache", "bin"}

// files returns every text file of the repository, except those of this
// package, which has citations that must not resolve.
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path := filepath.ToSlash(strings.TrimPrefix(full, root+string(filepath.Separator)))
		if d.IsDir() {
			if slices.Contains(skipped, path) || path == "test/rules" {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(full)
		if err == nil && utf8.Valid(text) {
			all = append(all, file{path, string(text)})
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

var (
	citation = regexp.MustCompile(`§([0-9]+(?:\.[0-9]+)*)`)
	// isTest are the files whose citations say that a rule is tested: tests,
	// and the scenarios and tables that tests read.
	isTest = regexp.MustCompile(`_test\.go$|/testdata/`)
)

// unknownRules returns the citations of a text for which there is no rule.
func unknownRules(text string) []string {
	var unknown []string
	for _, m := range citation.FindAllStringSubmatch(text, -1) {
		if _, ok := semantics.Find(m[1]); !ok {
			unknown = append(unknown, m[0])
		}
	}
	return unknown
}

// A rule that is cited exists. Output is covered as well: its texts are in the
// sources, in golden files and in scenarios.
func TestCitedRulesExist(t *testing.T) {
	require.Equal(t, []string{"§3.30", "§8"}, unknownRules("as §3.3 and §3.30 say (§8)"))
	for _, f := range files(t) {
		if isOwnTable(f.path) {
			continue
		}
		require.Empty(t, unknownRules(f.text), "%s cites rules that docs/semantics does not have", f.path)
	}
}

// isOwnTable reports whether a file tests the lookup of rules, with numbers
// that do not exist.
func isOwnTable(path string) bool {
	return path == "docs/semantics/semantics_test.go" || strings.HasSuffix(path, "explain_rule_test.go")
}

// decidedBy finds the rule of a verdict in an expected answer.
var decidedBy = regexp.MustCompile(`"(?:rule|decidedBy)": "([0-9.]+)"`)

// deciding finds the numbers by which the engines name a deciding rule: no
// other text of theirs has this form.
var deciding = regexp.MustCompile(`"([0-9]+\.[0-9]+)"`)

// An answer's verdicts name rules without the sign, and so do the engines.
func TestRulesOfAnswersExist(t *testing.T) {
	verdicts := 0
	for _, f := range files(t) {
		numbers := decidedBy
		switch {
		case strings.HasSuffix(f.path, "/want.json"):
		case strings.HasPrefix(f.path, "internal/policy/") && strings.HasSuffix(f.path, ".go") && !isTest.MatchString(f.path):
			numbers = deciding
		default:
			continue
		}
		for _, m := range numbers.FindAllStringSubmatch(f.text, -1) {
			verdicts++
			_, ok := semantics.Find(m[1])
			require.True(t, ok, "%s: the answer cites rule %s, which docs/semantics does not have", f.path, m[1])
		}
	}
	require.NotZero(t, verdicts)
}

// Every rule is cited by a test.
func TestEveryRuleIsTested(t *testing.T) {
	cited := map[string]bool{}
	for _, f := range files(t) {
		if !isTest.MatchString(f.path) || isOwnTable(f.path) {
			continue
		}
		for _, m := range citation.FindAllStringSubmatch(f.text, -1) {
			cited[m[1]] = true
		}
	}
	for _, r := range semantics.Rules() {
		if !r.Chapter() {
			require.True(t, cited[r.Number], "no test cites §%s (%s)", r.Number, r.Title)
		}
	}
}

var (
	testsOf  = regexp.MustCompile(`(?m)^Tests: .+$`)
	testName = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	scenario = regexp.MustCompile(`internal/policy/testdata/([a-z0-9-]+)\)`)
)

// A rule names the tests and scenarios that show it, and they cite it.
func TestRulesNameTheirTests(t *testing.T) {
	bodies, scenarios := map[string][]string{}, map[string]string{}
	for _, f := range files(t) {
		for _, m := range testFunc.FindAllStringSubmatch(f.text, -1) {
			bodies[m[1]] = append(bodies[m[1]], f.text)
		}
		if name, ok := strings.CutSuffix(f.path, "/input.yaml"); ok {
			scenarios[filepath.Base(name)] = f.text
		}
	}
	for _, r := range semantics.Rules() {
		if r.Chapter() {
			continue
		}
		names := testName.FindAllStringSubmatch(r.Text, -1)
		shown := scenario.FindAllStringSubmatch(r.Text, -1)
		if !strings.HasSuffix(r.Title, "examples") {
			require.Regexp(t, testsOf, r.Text, "§%s does not name its tests", r.Number)
		}
		require.NotEmpty(t, slices.Concat(names, shown), "§%s names no test", r.Number)
		for _, m := range names {
			require.NotEmpty(t, bodies[m[1]], "§%s names %s, which does not exist", r.Number, m[1])
			require.True(t, slices.ContainsFunc(bodies[m[1]], func(text string) bool { return cites(text, r.Number) }),
				"§%s names %s, whose file does not cite it", r.Number, m[1])
		}
		for _, m := range shown {
			require.Contains(t, scenarios, m[1], "§%s names a scenario that does not exist", r.Number)
		}
	}
}

// A test that a page names exists.
func TestPagesNameTests(t *testing.T) {
	all := files(t)
	exists := map[string]bool{}
	for _, f := range all {
		for _, m := range testFunc.FindAllStringSubmatch(f.text, -1) {
			exists[m[1]] = true
		}
	}
	for _, f := range all {
		if !strings.HasSuffix(f.path, ".md") {
			continue
		}
		for _, m := range testName.FindAllStringSubmatch(f.text, -1) {
			require.True(t, exists[m[1]], "%s names %s, which does not exist", f.path, m[1])
		}
	}
}

var (
	party = regexp.MustCompile(`(?m)^\| \*\*(.+?)\*\*[^|]*\| .* \| (.*) \|$`)
	claim = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \| ([^|]*` + "`" + `Test[^|]*) \|$`)
	// limit is the first cell of a row, checkedLimit that of one with two cells.
	limit        = regexp.MustCompile(`(?m)^\| ([^|]+) \|`)
	checkedLimit = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]*` + "`" + `Test[^|]*) \|$`)
	link         = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// Each thing that a party of docs/security.md cannot do, and each limit of it, is in a
// table of docs/testing.md, with tests; that these exist, TestPagesNameTests verifies.
func TestTheThreatModelIsTested(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		return string(text)
	}
	_, section, found := strings.Cut(read("docs/testing.md"), "## Which claim of the threat model is tested where")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var claimed, tested []string
	for _, m := range party.FindAllStringSubmatch(read("docs/security.md"), -1) {
		for clause := range strings.SplitSeq(link.ReplaceAllString(m[2], "$1"), "; ") {
			claimed = append(claimed, m[1]+" | "+clause)
		}
	}
	for _, m := range claim.FindAllStringSubmatch(section, -1) {
		tested = append(tested, m[1]+" | "+m[2])
	}
	require.NotEmpty(t, claimed)
	const same = "the tables of docs/testing.md have the rows of those in docs/security.md, in their words and order, with the tests of each"
	require.Equal(t, claimed, tested, same)

	var limits, checked []string
	_, tables, found := strings.Cut(read("docs/security.md"), "## Order of work and limits")
	require.True(t, found)
	for _, m := range limit.FindAllStringSubmatch(tables, -1) {
		if m[1] != "what" {
			limits = append(limits, m[1])
		}
	}
	for _, m := range checkedLimit.FindAllStringSubmatch(section, -1) {
		checked = append(checked, m[1])
	}
	require.NotEmpty(t, limits)
	require.Equal(t, limits, checked, same)
}

func cites(text, number string) bool {
	return slices.ContainsFunc(citation.FindAllStringSubmatch(text, -1), func(m []string) bool { return m[1] == number })
}

var invariant = regexp.MustCompile(`\b([IL][0-9]{1,2})\b`)

// unknownInvariants returns the invariants that a text cites and known lacks.
func unknownInvariants(text string, known map[string]bool) []string {
	var unknown []string
	for _, m := range invariant.FindAllStringSubmatch(text, -1) {
		if !known[m[1]] {
			unknown = append(unknown, m[1])
		}
	}
	return unknown
}

// An invariant that is cited is defined in docs/replication.md.
func TestCitedInvariantsExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/replication.md"))
	require.NoError(t, err)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| <a id="([IL][0-9]+)"></a>`).FindAllStringSubmatch(string(page), -1) {
		known[m[1]] = true
	}
	require.True(t, known["I1"] && known["L1"])
	require.Equal(t, []string{"I99"}, unknownInvariants("I1 and I99", known))
	for _, f := range files(t) {
		if regexp.MustCompile(`\.(go|md|proto|yaml)$`).MatchString(f.path) && !strings.Contains(f.path, "/testdata/") && !strings.HasSuffix(f.path, ".pb.go") {
			require.Empty(t, unknownInvariants(f.text, known), "%s cites invariants that docs/replication.md does not have", f.path)
		}
	}
}

var pageLink = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)

// A page links to what is there.
func TestLinksResolve(t *testing.T) {
	for _, f := range files(t) {
		if !strings.HasSuffix(f.path, ".md") {
			continue
		}
		for _, m := range pageLink.FindAllStringSubmatch(f.text, -1) {
			if strings.Contains(m[1], ":") {
				continue // another site
			}
			_, err := os.Stat(filepath.Join(root, filepath.Dir(f.path), m[1]))
			require.NoError(t, err, "%s links to %s", f.path, m[1])
		}
	}
}

var notHere = regexp.MustCompile(`\b(SEMANTICS|CONTRACT|REPLICATION|ENFORCEMENT|ADOPTION)\b|\bseed 00[0-9]\b`)

// No file cites a document that the repository does not have.
func TestNoCitationOfOtherDocuments(t *testing.T) {
	for _, f := range files(t) {
		require.Empty(t, notHere.FindAllString(f.text, -1), "%s names a document that is not in the repository", f.path)
	}
}

// Every page below docs is in the list of pages, itself or by its directory.
func TestPagesAreListed(t *testing.T) {
	list, err := os.ReadFile(filepath.Join(root, "docs/README.md"))
	require.NoError(t, err)
	for _, f := range files(t) {
		page, ok := strings.CutPrefix(f.path, "docs/")
		if !ok || page == "README.md" || !strings.HasSuffix(page, ".md") {
			continue
		}
		directory, _, nested := strings.Cut(page, "/")
		listed := strings.Contains(string(list), "("+page+")") || nested && strings.Contains(string(list), "("+directory+")")
		require.True(t, listed, "docs/README.md does not list docs/%s", page)
	}
}
