package mutants

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is a deliberate bug and the tests that have to detect it.
type mutant struct {
	name string
	// breaks is the invariant that does not hold any more.
	breaks string
	edits  []edit
	// adds is a file that joins the package of the first edit; testdata has its
	// text.
	adds string
	// imports is what the first edit's file needs besides its own imports.
	imports string
	// pkg and run are a package and a pattern as `go test` takes them.
	pkg, run string
}

// edit replaces a text that exactly one file of the product has, once.
type edit struct{ old, new string }

// overlay writes the mutant's files to a directory and returns the path of the
// description that `go build -overlay` reads.
func (m mutant) overlay(root, dir string) (string, error) {
	replaced := map[string]string{} // by path in the product
	texts := map[string]string{}
	for i, e := range m.edits {
		path, text, err := find(root, e.old)
		if err != nil {
			return "", fmt.Errorf("mutant %s: %w", m.name, err)
		}
		if earlier, ok := texts[path]; ok {
			text = earlier
		}
		if text = strings.Replace(text, e.old, e.new, 1); i == 0 && m.imports != "" {
			text = strings.Replace(text, "import (\n", fmt.Sprintf("import (\n\t%q\n", m.imports), 1)
		}
		texts[path] = text
		if i == 0 && m.adds != "" {
			added, err := os.ReadFile(filepath.Join("testdata", m.adds+".txt"))
			if err != nil {
				return "", err
			}
			texts[filepath.Join(filepath.Dir(path), m.adds)] = packageClause.ReplaceAllString(string(added), packageClause.FindString(text))
		}
	}
	for path, text := range texts {
		mutated := filepath.Join(dir, fmt.Sprintf("%s-%d.go", m.name, len(replaced)))
		if err := os.WriteFile(mutated, []byte(text), 0o600); err != nil {
			return "", err
		}
		absolute, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		replaced[absolute] = mutated
	}
	description, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, m.name+".json")
	return path, os.WriteFile(path, description, 0o600)
}

var packageClause = regexp.MustCompile(`(?m)^package \w+$`)

// find returns the one file of the product that has a text once.
func find(root, text string) (path, content string, err error) {
	found := 0
	err = filepath.WalkDir(filepath.Join(root, "internal"), func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		data, err := os.ReadFile(file)
		if n := strings.Count(string(data), text); n > 0 {
			path, content = file, string(data)
			found += n
		}
		return err
	})
	if err == nil && found != 1 {
		err = fmt.Errorf("the product has this text %d times, want once: %s", found, text)
	}
	return path, content, err
}
