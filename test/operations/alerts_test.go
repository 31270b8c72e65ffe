package operations

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// root is the top of the repository.
const root = "../.."

// rule is an alert of Prometheus.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/alerts/meridian.yaml"))
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &file))
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

var metric = regexp.MustCompile(`\bmeridian_[a-z_]+\b`)

// metrics returns the names of metrics in the sources of the product, with the
// sentence that explains each.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	defined := regexp.MustCompile(`"(meridian_[a-z_]+)",\s*(?:Help:\s*)?"[^"]+`)
	names := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range defined.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return err
	})
	require.NoError(t, err)
	return names
}

func TestAlerts(t *testing.T) {
	defined, seen := metrics(t), map[string]bool{}
	for _, r := range rules(t) {
		require.False(t, seen[r.Alert], "%s stands there twice", r.Alert)
		seen[r.Alert] = true
		used := metric.FindAllString(r.Expr, -1)
		require.NotEmpty(t, used, r.Alert)
		for _, name := range used {
			require.True(t, defined[strings.TrimSuffix(name, "_bucket")], "%s: no server has the metric %s", r.Alert, name)
		}
		require.Equal(t, strings.Count(r.Expr, "("), strings.Count(r.Expr, ")"), r.Alert)
		require.Contains(t, []string{"warning", "critical"}, r.Labels["severity"], r.Alert)
		require.True(t, strings.HasSuffix(r.Annotations["summary"], "."), "%s: a sentence", r.Alert)
		page := r.Annotations["runbook"]
		require.True(t, strings.HasPrefix(page, "docs/operations/"), r.Alert)
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err, r.Alert)
		require.Contains(t, string(text), "`"+r.Alert+"`", "%s says nothing of it", page)
	}
}

// TestRunbooks: every page is in the index, every link leads somewhere, and every
// metric that is named exists.
func TestRunbooks(t *testing.T) {
	dir := filepath.Join(root, "docs/operations")
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	require.NoError(t, err)
	defined, link := metrics(t), regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for _, page := range pages {
		name := filepath.Base(page)
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		if name != "README.md" {
			require.Contains(t, string(index), "("+name+")", "the index does not name it")
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			require.FileExists(t, filepath.Join(dir, m[1]), "%s links to it", name)
		}
		for _, used := range metric.FindAllString(string(text), -1) {
			require.True(t, defined[used], "%s: no server has the metric %s", name, used)
		}
	}
}
