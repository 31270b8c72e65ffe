package layers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "meridian/"

// levels gives every package its height; the longest prefix decides. A package
// imports its own level and those below it.
var levels = map[string]int{
	"api/":           0,
	"docs/semantics": 0,

	"internal/atomicfile": 0,
	"internal/atrest":     0,
	"internal/boltcheck":  0,
	"internal/batch":      2,
	"internal/deepstack":  0,
	"internal/doctree":    0,
	"internal/grpctest":   0,
	"internal/parallel":   0,
	"internal/resource":   0,
	"internal/sarif":      0,
	"internal/texttable":  0,
	"internal/version":    0,

	"internal/dial":            1,
	"internal/gossip":          1,
	"internal/identity":        1,
	"internal/meshca":          1,
	"internal/pki":             1,
	"internal/policy":          1,
	"internal/raftlog":         1,
	"internal/raftnet":         1,
	"internal/rbac":            1,
	"internal/rollout/overlay": 1,
	"internal/rpcerr":          1,
	"internal/store":           1,

	"internal/agent":              3,
	"internal/analysis":           2,
	"internal/audit":              2,
	"internal/authn":              2,
	"internal/commit":             2,
	"internal/consensus":          2,
	"internal/clientconfig":       2,
	"internal/livematch":          2,
	"internal/migrate":            2,
	"internal/policy/engines":     2,
	"internal/policy/inherit":     2,
	"internal/policy/specificity": 2,
	"internal/policy/targetref":   2,
	"internal/plan":               2,
	"internal/rollout":            2,
	"internal/expectation":        2,
	"internal/past":               2,
	"internal/question":           2,
	"internal/server":             2,
	"internal/server/limits":      0,
	"internal/sync":               2,
	"internal/turns":              2,
	"internal/xds":                2,

	"internal/authz":              3,
	"internal/service/access":     3,
	"internal/service/auditlog":   3,
	"internal/service/admin":      3,
	"internal/cli":                3,
	"internal/controlplane":       3,
	"internal/service/dataplane":  3,
	"internal/service/discovery":  3,
	"internal/service/identities": 3,
	"internal/service/tokens":     3,
	"internal/global":             3,
	"internal/service/webhook":    3,
	"internal/zone":               3,

	"cmd/":      4,
	"bench":     5,
	"examples/": 5,
	"test/":     5,
}

// rule says what the packages under one path never import, whatever the level.
type rule struct {
	name string
	// from selects the importing packages, except those under unless.
	from   string
	unless []string
	// never are prefixes of import paths.
	never []string
	// tests also binds the packages' tests.
	tests bool
}

var rules = []rule{
	{
		name: "only consensus, raftlog and raftnet import raft", unless: []string{"internal/consensus", "internal/raftlog", "internal/raftnet", "test/simnet"}, tests: true,
		never: []string{"github.com/hashicorp/raft"},
	},
	{
		name: "only gossip imports memberlist", unless: []string{"internal/gossip"}, tests: true,
		never: []string{"github.com/hashicorp/memberlist"},
	},
	{
		name: "nothing imports cmd", unless: []string{"cmd/"}, tests: true,
		never: []string{module + "cmd/"},
	},
	{
		name: "the global and a zone meet on the wire only", from: "internal/global", tests: true,
		never: []string{module + "internal/zone"},
	},
	{
		name: "a zone and the global meet on the wire only", from: "internal/zone", tests: true,
		never: []string{module + "internal/global"},
	},
	{
		name: "policy is pure", from: "internal/policy",
		never: []string{module + "internal/store", module + "api/", "google.golang.org/grpc"},
	},
	{
		name: "the resources of proxies are made without a transport", from: "internal/xds/generate",
		never: []string{module + "internal/store", module + "api/", "google.golang.org/grpc"},
	},
	{
		name: "the world of proxies is pure", from: "internal/xds/world",
		never: []string{module + "internal/store", module + "api/", "google.golang.org/grpc"},
	},
	{
		name: "rbac is pure", from: "internal/rbac",
		never: []string{module + "internal/store", module + "api/", "google.golang.org/grpc"},
	},
	{
		name: "trees know no resources", from: "internal/doctree", tests: true,
		never: []string{module},
	},
	{
		name: "resources know no wire", from: "internal/resource",
		never: []string{module + "api/", "google.golang.org/"},
	},
	{
		name: "the store knows no transport", from: "internal/store",
		never: []string{"google.golang.org/grpc", "net/http"},
	},
}

// goPackage is what `go list -json` says of a package.
type goPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// under reports whether the package at path is prefix itself or lies below it.
func under(path, prefix string) bool {
	return path == strings.TrimSuffix(prefix, "/") || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/")
}

// level returns the height of a package, or false for one that has none yet.
func level(path string) (int, bool) {
	best, found := "", false
	for prefix := range levels {
		if under(path, prefix) && len(prefix) >= len(best) {
			best, found = prefix, true
		}
	}
	return levels[best], found
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags", "hashicorpmetrics,multizone",
		"-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())

	var packages []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		require.NoError(t, err)
		packages = append(packages, p)
	}
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range listPackages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		from, known := level(path)
		if !known {
			t.Errorf("%s has no level: give it one in test/layers", path)
			continue
		}
		for _, imported := range p.Imports {
			target, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if to, ok := level(target); ok && to > from {
				t.Errorf("%s (level %d) imports %s (level %d): arrows point down", path, from, target, to)
			}
		}
	}
}

func TestSomePackagesNeverMeet(t *testing.T) {
	packages := listPackages(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, p := range packages {
				path := strings.TrimPrefix(p.ImportPath, module)
				if r.from != "" && !under(path, r.from) || slices.ContainsFunc(r.unless, func(prefix string) bool { return under(path, prefix) }) {
					continue
				}
				imports := slices.Clone(p.Imports)
				if r.tests {
					imports = append(append(imports, p.TestImports...), p.XTestImports...)
				}
				for _, imported := range imports {
					for _, never := range r.never {
						require.False(t, strings.HasPrefix(imported, never), "%s imports %s", path, imported)
					}
				}
			}
		})
	}
}

func TestTheRulesWouldCatchAnOffender(t *testing.T) {
	for path, want := range map[string]int{
		"internal/policy":             1,
		"internal/policy/condition":   1,
		"internal/policy/specificity": 2,
		"internal/zone":               3,
		"cmd/zone":                    4,
	} {
		got, ok := level(path)
		require.True(t, ok, path)
		require.Equal(t, want, got, path)
	}
	_, ok := level("internal/absent")
	require.False(t, ok)
	require.False(t, under("internal/zoned", "internal/zone"))
}
