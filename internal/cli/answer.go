package cli

import (
	"bytes"
	"fmt"
	"io"

	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
)

// printAnswer prints the JSON document of an answer as it came, or as a page
// for people. The page is made from the document alone, so that a server's
// answer and one from files look the same.
func (a *app) printAnswer(f print.Format, about subject, document []byte) error {
	if f.Structured() {
		return a.WriteDocument(f, document)
	}
	var page bytes.Buffer
	if err := renderAnswer(&page, about, document, f == print.FormatWide); err != nil {
		return err
	}
	return a.Output(page.Bytes())
}

func renderAnswer(w io.Writer, about subject, document []byte, wide bool) error {
	switch about {
	case aboutDataplane:
		return render(w, document, wide, answer.RenderDataplane)
	case aboutConnection:
		return render(w, document, wide, answer.RenderConnection)
	case aboutPolicy:
		return render(w, document, wide, answer.RenderPolicy)
	case aboutRules:
		return render(w, document, wide, answer.RenderRules)
	case aboutRoute:
		return render(w, document, wide, answer.RenderRoute)
	case aboutWhy:
		return render(w, document, wide, answer.RenderWhy)
	case aboutDataplanes:
		return render(w, document, wide, answer.RenderDataplanes)
	default:
		return fmt.Errorf("there is no page about a %s", about)
	}
}

// render reads a document as the type that its page is made from.
func render[D any](w io.Writer, document []byte, wide bool, page func(io.Writer, *D, bool) error) error {
	var d D
	if err := answer.Unmarshal(document, &d); err != nil {
		return err
	}
	return page(w, &d, wide)
}
