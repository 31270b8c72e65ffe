package resource

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// partBytes is how much of a large source is decoded at a time: the trees of its
// documents take many times as much memory.
const partBytes = 4 << 20

// place is where a part begins in its source.
type place struct {
	// documents and lines are how many are before it.
	documents, lines int
}

// move gives lines that are counted from the beginning of the part those of the source.
func (p *place) move(documents []Document, failed DocumentErrors) {
	if p.lines == 0 {
		return
	}
	shift := func(problems []Problem) {
		for i := range problems {
			if problems[i].Line > 0 {
				problems[i].Line += p.lines
			}
		}
	}
	for i := range documents {
		d := &documents[i]
		d.Line += p.lines
		for j := range d.CaseLines {
			d.CaseLines[j] += p.lines
		}
		shift(d.Problems)
	}
	for _, d := range failed {
		if d.Line > 0 {
			d.Line += p.lines
		}
		shift(d.Problems)
	}
}

// loadParts decodes a source a part at a time, each of which ends before a line that
// separates documents.
func loadParts(name string, from io.Reader, opts DecodeOptions) ([]Document, DocumentErrors) {
	var (
		documents []Document
		failed    DocumentErrors
		begin     place
		held      []byte
	)
	for ended := false; !ended; {
		held = append(held, make([]byte, partBytes)...)
		n, err := io.ReadFull(from, held[len(held)-partBytes:])
		held = held[:len(held)-partBytes+n]
		ended = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return documents, append(failed, sourceError(name, 0, plainError(err).Error())...)
		}
		end := len(held)
		if !ended {
			end = lastSeparator(held)
		}
		if end == 0 && len(held) > MaxSourceBytes {
			return documents, append(failed, sourceError(name, begin.lines+1, fmt.Sprintf("there are more than %d MiB without a line `---`, which separates documents; split it", MaxSourceBytes>>20))...)
		}
		decoded, problems := decodeAll(name, held[:end], opts, &begin)
		documents, failed = append(documents, decoded...), append(failed, problems...)
		begin.lines += bytes.Count(held[:end], []byte("\n"))
		held = append(held[:0:0], held[end:]...)
	}
	return documents, failed
}

// lastSeparator returns where the last line begins that separates documents of YAML, or
// 0. `---` at the beginning of a line is nothing else, also within text. The directives of
// a document are before that line: one with any is not separated from them.
func lastSeparator(data []byte) int {
	for end := len(data); ; {
		at := bytes.LastIndex(data[:end], []byte("\n---"))
		if at < 0 {
			return 0
		}
		if after := at + len("\n---"); after < len(data) && bytes.IndexByte([]byte(" \t\r\n"), data[after]) >= 0 &&
			data[bytes.LastIndexByte(data[:at], '\n')+1] != '%' {
			return at + 1
		}
		end = at + len("\n-")
	}
}

// again returns a resource whose spec, which was decoded before and found valid, is decoded
// each time that it is asked for.
func again(meta Meta, canonical []byte) *Resource {
	return &Resource{meta: meta, canonical: canonical, spec: deferred(func() Spec {
		built, _, err := Build(meta, canonical)
		if err != nil {
			panic(fmt.Sprintf("resource: what was decoded before is refused: %v", err))
		}
		return built.Spec()
	})}
}
