package resource_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// largeSource is a source of more than MaxSourceBytes, whose last document is last.
func largeSource(last string) (text string, documents int) {
	var b strings.Builder
	padding := strings.Repeat("# padding\n", 1000)
	for b.Len() <= resource.MaxSourceBytes {
		documents++
		fmt.Fprintf(&b, "---\n%stype: Mesh\nname: mesh-%d\n", padding, documents)
	}
	b.WriteString("---\n" + last)
	return b.String(), documents + 1
}

// A large source is read in parts, and its documents and lines are counted through.
func TestLoadReadsLargeSources(t *testing.T) {
	text, n := largeSource("type: Timeout\nname: last\nmesh: default\nsources: [{match: {kuma.io/service: a}}]\ndestinations: [{match: {kuma.io/service: b}}]\nconf: {connectTimeout: 1s}\n")
	documents, err := resource.Load([]string{"-"}, strings.NewReader(text), resource.DecodeOptions{Large: true})
	require.NoError(t, err)
	require.Len(t, documents, n)
	last := documents[n-1]
	require.Equal(t, n, last.Index)
	require.Equal(t, strings.Count(text, "\n")-5, last.Line)
	spec, ok := last.Resource.Spec().(*resource.Timeout)
	require.True(t, ok)
	require.Equal(t, "b", spec.Destinations[0].Match["kuma.io/service"])

	text, n = largeSource("type: Mesh\nname: mesh-1\n")
	_, err = resource.Load([]string{"-"}, strings.NewReader(text), resource.DecodeOptions{Large: true})
	require.EqualError(t, err, fmt.Sprintf("stdin: document %d (Mesh/mesh-1), line %d: Mesh/mesh-1 is already defined in stdin, document 1, line 1002; keep one of them",
		n, strings.Count(text, "\n")-1))

	text, n = largeSource("type: Mesh\nname: x\nnme: y\n")
	_, err = resource.Load([]string{"-"}, strings.NewReader(text), resource.DecodeOptions{Large: true})
	require.ErrorContains(t, err, fmt.Sprintf("stdin: document %d (Mesh/x), line %d: nme: unknown field", n, strings.Count(text, "\n")))

	_, err = resource.Load([]string{"-"}, endless{}, resource.DecodeOptions{Large: true})
	require.ErrorContains(t, err, "there are more than 32 MiB without a line `---`")

	// JSON is read as a whole, also then: to advise --in-batches would lead nowhere.
	path := filepath.Join(t.TempDir(), "large.json")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{' '}, resource.MaxSourceBytes+1), 0o600))
	_, err = resource.Load([]string{path}, nil, resource.DecodeOptions{Large: true})
	require.EqualError(t, err, path+": a file of JSON can have 32 MiB, this one has more than that; split it, or write its documents as YAML, with lines of `---` between them")
}
