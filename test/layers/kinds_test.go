package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// otherMeanings are the literals that are spelled like a kind and do not name
// one.
var otherMeanings = map[string]string{
	"describe.go":                 "Mesh", // the headings of lines
	"cluster_snapshot_inspect.go": "Zone",
}

// A misspelled constant does not compile; a misspelled literal is a rule that
// never takes effect. Product code names a kind by its constant.
func TestKindsAreNamedByTheirConstants(t *testing.T) {
	for _, dir := range []string{"internal", "cmd"} {
		for _, literal := range kindLiterals(t, filepath.Join("..", "..", dir)) {
			t.Errorf("%s: use resource.Kind%s", literal.at, literal.kind)
		}
	}
}

func TestKindLiteralsAreFound(t *testing.T) {
	found := kindLiterals(t, "testdata/kinds")
	require.Len(t, found, 2)
	require.Equal(t, "Timeout", found[0].kind)
	require.Equal(t, "AccessRole", found[1].kind)
}

type kindLiteral struct{ at, kind string }

func kindLiterals(t *testing.T, root string) (found []kindLiteral) {
	t.Helper()
	files := token.NewFileSet()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, filepath.Join("..", "..")+string(filepath.Separator)))
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name == "internal/resource":
			return fs.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			if _, isKind := resource.Describe(resource.Kind(text)); isKind && otherMeanings[filepath.Base(name)] != text {
				found = append(found, kindLiteral{files.Position(literal.Pos()).String(), text})
			}
			return true
		})
		return nil
	}))
	return found
}
