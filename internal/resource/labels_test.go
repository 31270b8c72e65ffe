package resource_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

func manyLabels(n, bytes int) map[string]string {
	labels := map[string]string{}
	for i := range n {
		labels[fmt.Sprintf("k%d", i)] = strings.Repeat("v", bytes)
	}
	return labels
}

func TestLabelLimits(t *testing.T) {
	tests := []struct {
		rule    string
		labels  map[string]string
		refused string // "" for none
	}{
		{"§1.1 none", nil, ""},
		{"§1.1 keys of Kubernetes", map[string]string{"team": "a", "example.com/Team_1.x": "", "k8s.kuma.io/namespace": "kong"}, ""},
		{"§1.1 values of annotations", map[string]string{"note": `{"any": "text, ünïcode"}`}, ""},
		{"§1.1 64 labels", manyLabels(64, 1), ""},
		{"§1.1 65 labels", manyLabels(65, 1), "there are 65 labels; a resource has at most 64"},
		{"§1.1 a value of 4 KiB", map[string]string{"a": strings.Repeat("v", 4096)}, ""},
		{"§1.1 a longer value", map[string]string{"a": strings.Repeat("v", 4097)}, `labels["a"]: takes 4097 bytes; the value of a label takes at most 4096`},
		{"§1.1 16 KiB in all", manyLabels(4, 4094), ""},
		{
			"§1.1 more in all",
			map[string]string{"k0": strings.Repeat("v", 4096), "k1": strings.Repeat("v", 4096), "k2": strings.Repeat("v", 4096), "k3": strings.Repeat("v", 4089)},
			"keys and values take 16385 bytes together; the labels of a resource take at most 16384",
		},
		{"§1.1 a key without content", map[string]string{"": "x"}, "must be letters"},
		{"§1.1 a key with spaces", map[string]string{"a b": "x"}, `the key "a b" must be letters`},
		{"§1.1 a key that ends in a dash", map[string]string{"a-": "x"}, "must be letters"},
		{"§1.1 a long key", map[string]string{strings.Repeat("a", 64): "x"}, "is too long; a key has at most 63 characters"},
		{"§1.1 a prefix that is no DNS name", map[string]string{"Example.com/a": "x"}, "must have a DNS name"},
		{"§1.1 an empty prefix", map[string]string{"/a": "x"}, "must have a DNS name"},
		{"§1.1 two slashes", map[string]string{"a/b/c": "x"}, "must be letters"},
		{"§1.1 an escape sequence in a value", map[string]string{"a": "\x1b[2J"}, "cannot hold the control character U+001B"},
		{"§1.1 a C1 control character", map[string]string{"a": "\u009b2J"}, "cannot hold the control character U+009B"},
		{"§1.1 a character that reverses the text", map[string]string{"a": "\u202egnp"}, "cannot hold the control character U+202E"},
		{"§1.1 no UTF-8", map[string]string{"a": "\xff"}, "is not UTF-8"},
	}
	for _, tt := range tests {
		t.Run(tt.rule, func(t *testing.T) {
			report := &resource.Report{}
			resource.CheckLabels(resource.Key{}, tt.labels, "labels", report)
			var said []string
			for _, p := range report.Problems {
				said = append(said, p.String())
			}
			if tt.refused == "" {
				require.Empty(t, said)
				return
			}
			require.Contains(t, strings.Join(said, "\n"), tt.refused)
			require.LessOrEqual(t, len(strings.Join(said, "\n")), 1000, "a refusal does not repeat what it refuses")
		})
	}
}

// Documents keep the limits on labels in both forms, and name the path.
func TestLabelsOfDocuments(t *testing.T) {
	for text, want := range map[string]string{
		"type: Zone\nname: east\nlabels: {'a b': x}":                                                                          "labels",
		"kind: Zone\nmetadata: {name: east, labels: {'a b': x}}":                                                              "metadata.labels",
		"kind: Zone\nmetadata: {name: east, namespace: 'a b'}":                                                                "metadata.namespace",
		"kind: Zone\nmetadata: {name: east, namespace: " + strings.Repeat("n", 300) + "}":                                     "metadata.namespace",
		"type: Zone\nname: east\nlabels: {a: " + strings.Repeat("v", resource.MaxLabelValue+1) + "}":                          `labels["a"]`,
		`{"type": "Zone", "name": "east", "labels": {"a": "` + strings.Repeat("v", resource.MaxLabelValue) + `", "b": "\t"}}`: `labels["b"]`,
	} {
		_, err := resource.Decode("x", []byte(text), resource.DecodeOptions{})
		require.ErrorContains(t, err, want+": ")
	}
}

// A resource counts with everything that it takes.
func TestSizeCountsEverything(t *testing.T) {
	plain, _, err := resource.Build(resource.Meta{Key: key("Zone", "", "a")}, []byte(`{}`))
	require.NoError(t, err)
	named, _, err := resource.Build(resource.Meta{Key: key("Zone", "", strings.Repeat("a", 101))}, []byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, plain.Size()+100, named.Size())
	labelled := plain.WithMeta(resource.Meta{Key: plain.Key(), Labels: map[string]string{"k": strings.Repeat("v", 1000)}})
	require.GreaterOrEqual(t, labelled.Size(), plain.Size()+1001)
}

// Whatever the labels are: what is accepted keeps every limit, and a refusal is
// short.
func FuzzLabels(f *testing.F) {
	f.Add("team", "a", 1)
	f.Add("example.com/team", "\x1b[2J", 65)
	f.Add(strings.Repeat("a", 300), strings.Repeat("v", 5000), 10)
	f.Fuzz(func(t *testing.T, key, value string, n int) {
		labels := map[string]string{}
		size := 0
		for i := range min(max(n, 0), 200) {
			k := fmt.Sprintf("%s%d", key, i)
			labels[k] = value
			size += len(k) + len(value)
		}
		report := &resource.Report{}
		resource.CheckLabels(resource.Key{}, labels, "labels", report)
		if report.Failed() {
			require.LessOrEqual(t, len(report.Problems), resource.MaxLabels+1)
			return
		}
		require.LessOrEqual(t, len(labels), resource.MaxLabels)
		require.LessOrEqual(t, size, resource.MaxLabelBytes)
		for _, v := range labels {
			require.NotContains(t, v, "\x1b")
		}
	})
}
