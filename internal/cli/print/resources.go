package print

import (
	"bytes"
	"strings"

	"meridian/internal/resource"
)

// Resources prints a list of resources. kind is that of all of them, or
// nil when they are mixed; status are further columns of a table.
func (p *Printer) Resources(f Format, resources []*resource.Resource, kind *resource.Descriptor, status ...StatusColumn) error {
	var out bytes.Buffer
	if f.selects() {
		if err := resource.Encode(&out, resource.FormatJSONList, resources...); err != nil {
			return err
		}
		return p.writeSelection(f, out.Bytes())
	}
	switch f {
	case FormatJSON:
		if err := resource.Encode(&out, resource.FormatJSONList, resources...); err != nil {
			return err
		}
		return p.writeJSON(out.Bytes())
	case FormatYAML:
		if err := resource.Encode(&out, resource.FormatYAML, resources...); err != nil {
			return err
		}
	case FormatName:
		for _, r := range resources {
			meta := r.Meta()
			out.WriteString(string(meta.Kind) + "/" + meta.Shown() + "\n")
		}
	default:
		if len(resources) == 0 {
			return nil
		}
		return p.Table(p.resourceTable(resources, kind, f == FormatWide, status))
	}
	return p.Output(out.Bytes())
}

// Resource prints one resource by itself: in JSON and YAML the document
// that apply takes back.
func (p *Printer) Resource(f Format, r *resource.Resource, kind *resource.Descriptor, status ...StatusColumn) error {
	if f != FormatJSON && !f.selects() {
		return p.Resources(f, []*resource.Resource{r}, kind, status...)
	}
	var out bytes.Buffer
	if err := resource.Encode(&out, resource.FormatJSON, r); err != nil {
		return err
	}
	return p.WriteDocument(f, out.Bytes())
}

// StatusColumn is one type of condition: what it says of each resource.
type StatusColumn struct {
	Condition string
	Reasons   map[resource.Key]string
}

// title is the type of the condition without the domain in front of it.
func (c *StatusColumn) title() string {
	return strings.ToUpper(c.Condition[strings.LastIndexByte(c.Condition, '/')+1:])
}
