package print

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// The formats that select from the JSON of an answer, as kubectl spells them.
const (
	jsonPathPrefix = "jsonpath="
	columnsPrefix  = "custom-columns="
)

// selects reports whether a format selects from JSON.
func (f Format) selects() bool {
	return strings.HasPrefix(string(f), jsonPathPrefix) || strings.HasPrefix(string(f), columnsPrefix)
}

// selection returns what prints a document in a format that selects.
func (f Format) selection() (func(document any) (string, error), error) {
	if columns, ok := strings.CutPrefix(string(f), columnsPrefix); ok {
		return selectColumns(columns)
	}
	path, err := parsePath(strings.TrimPrefix(string(f), jsonPathPrefix))
	if err != nil {
		return nil, err
	}
	return func(document any) (string, error) {
		var out bytes.Buffer
		if err := path.Execute(&out, document); err != nil {
			return "", fmt.Errorf("jsonpath: %w", err)
		}
		return out.String(), nil
	}, nil
}

// parsePath reads a template, or a bare path such as .items[*].name.
func parsePath(template string) (*jsonpath.JSONPath, error) {
	if template == "" {
		return nil, errors.New("-o jsonpath= requires a path, such as jsonpath={.items[*].name}")
	}
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("jsonpath %q: %w", template, err)
	}
	return path, nil
}

// selectColumns reads NAME:PATH,… and returns what prints a table of the items of
// a list, or of one document.
func selectColumns(spec string) (func(any) (string, error), error) {
	var (
		header []string
		paths  []*jsonpath.JSONPath
	)
	for column := range strings.SplitSeq(spec, ",") {
		name, template, ok := strings.Cut(column, ":")
		if !ok || name == "" || template == "" {
			return nil, fmt.Errorf("custom-columns %q: write NAME:PATH, several separated by commas", column)
		}
		path, err := parsePath(template)
		if err != nil {
			return nil, err
		}
		header, paths = append(header, name), append(paths, path)
	}
	return func(document any) (string, error) {
		items := []any{document}
		switch d := document.(type) {
		case []any:
			items = d
		case map[string]any:
			if list, ok := d["items"].([]any); ok {
				items = list
			}
		}
		t := &Table{Header: header}
		for _, item := range items {
			cells := make([]string, len(paths))
			for i, path := range paths {
				var cell bytes.Buffer
				if err := path.Execute(&cell, item); err != nil {
					return "", fmt.Errorf("custom-columns: %w", err)
				}
				cells[i] = cell.String()
			}
			t.Add(cells...)
		}
		return t.String(0), nil
	}, nil
}

// writeSelection prints what a format selects from a JSON document.
func (p *Printer) writeSelection(f Format, document []byte) error {
	show, err := f.selection()
	if err != nil {
		return err
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(document))
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	text, err := show(value)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return p.Output([]byte(text))
}
