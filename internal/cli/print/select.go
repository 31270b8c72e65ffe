package print

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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

// selection returns what prints a document in a format that selects. lacks is a path
// that leads nowhere in all of the document.
func (f Format) selection() (func(document any) (text, lacks string, err error), error) {
	if columns, ok := strings.CutPrefix(string(f), columnsPrefix); ok {
		return selectColumns(columns)
	}
	template := strings.TrimPrefix(string(f), jsonPathPrefix)
	path, err := parsePath(template, true)
	if err != nil {
		return nil, err
	}
	strict, err := parsePath(template, false)
	if err != nil {
		return nil, err
	}
	return func(document any) (text, lacks string, err error) {
		var out bytes.Buffer
		if err := path.Execute(&out, document); err != nil {
			return "", "", fmt.Errorf("jsonpath: %w", err)
		}
		if strings.TrimSpace(out.String()) == "" && strict.Execute(io.Discard, document) != nil {
			lacks = template
		}
		return out.String(), lacks, nil
	}, nil
}

// parsePath reads a template, or a bare path such as .items[*].name. Fields that are
// missing are nothing, or an error.
func parsePath(template string, missing bool) (*jsonpath.JSONPath, error) {
	if template == "" {
		return nil, errors.New("-o jsonpath= requires a path, such as jsonpath={.items[*].name}")
	}
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(missing)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("jsonpath %q: %w", template, err)
	}
	return path, nil
}

// selectColumns reads NAME:PATH,… and returns what prints a table of the items of
// a list, or of one document.
func selectColumns(spec string) (func(any) (text, lacks string, err error), error) {
	var (
		header []string
		wanted []string
		paths  []*jsonpath.JSONPath
	)
	for column := range strings.SplitSeq(spec, ",") {
		name, template, ok := strings.Cut(column, ":")
		if !ok || name == "" || template == "" {
			return nil, fmt.Errorf("custom-columns %q: write NAME:PATH, several separated by commas", column)
		}
		path, err := parsePath(template, true)
		if err != nil {
			return nil, err
		}
		header, wanted, paths = append(header, name), append(wanted, template), append(paths, path)
	}
	return func(document any) (text, lacks string, err error) {
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
		empty := make([]bool, len(paths))
		for i := range empty {
			empty[i] = len(items) > 0
		}
		for _, item := range items {
			cells := make([]string, len(paths))
			for i, path := range paths {
				var cell bytes.Buffer
				if err := path.Execute(&cell, item); err != nil {
					return "", "", fmt.Errorf("custom-columns: %w", err)
				}
				cells[i] = cell.String()
				empty[i] = empty[i] && cells[i] == ""
			}
			t.Add(cells...)
		}
		if i := slices.Index(empty, true); i >= 0 {
			lacks = wanted[i]
		}
		return t.String(0), lacks, nil
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
	text, lacks, err := show(value)
	if err != nil {
		return err
	}
	if lacks != "" {
		p.Message("Note: nothing has %s; -o json shows the fields", lacks)
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return p.Output([]byte(text))
}
