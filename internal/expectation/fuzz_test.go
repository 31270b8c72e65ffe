package expectation_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/doctree"
	"meridian/internal/expectation"
)

// FuzzCase: a case of any settings, expectations and expressions is refused, or it is
// decided the same way every time, with a reason where it does not hold. Documents are made
// of the input, so that what is tried are cases and not syntax.
func FuzzCase(f *testing.F) {
	f.Add(uint8(0), "web-1", "backend-1", "", "", `"allowed"`)
	f.Add(uint8(1), "web-1", "backend", "Timeout", "http.requestTimeout", `"<= 30s"`)
	f.Add(uint8(1), "web-1", "backend", "Timeout", "connectTimeout", `"5s"`)
	f.Add(uint8(2), "backend-1", "web-1", "RateLimit", "http.requests", `"> 3"`)
	f.Add(uint8(2), "backend-1", "web-1", "RateLimit", "http", `{"requests":5,"interval":"10s"}`)
	f.Add(uint8(3), "", "connections", `c.allowed || c.from.tags.size() > 1`, "", "")
	f.Add(uint8(3), "", "dataplanes", `d.effective.exists(e, e.kind == "Timeout")`, "", "")
	f.Add(uint8(3), "", "routes", "true", "", "")
	f.Add(uint8(4), "bob", "READ", "", "", `"yes"`)
	resources, _ := load(f, shop)
	source := offline(f, resources)
	f.Fuzz(func(t *testing.T, form uint8, a, b, kind, field, expect string) {
		one := map[string]any{"name": "case"}
		if json.Valid([]byte(expect)) {
			one["expect"] = json.RawMessage(expect)
		}
		set := func(values map[string]string) {
			for name, value := range values {
				if value != "" {
					one[name] = value
				}
			}
		}
		switch form % 5 {
		case 0:
			one["connection"] = map[string]any{"from": a, "to": b}
		case 1:
			set(map[string]string{"dataplane": a, "to": b, "kind": kind, "field": field})
		case 2:
			set(map[string]string{"dataplane": a, "from": b, "kind": kind, "field": field})
		case 3:
			set(map[string]string{"over": b, "invariant": kind})
		case 4:
			one["access"] = map[string]any{"as": a, "verb": b}
		}
		text, err := json.Marshal(map[string]any{"kind": "PolicyTest", "cases": []any{one}})
		require.NoError(t, err)
		roots, _, err := doctree.Parse(text, false)
		if err != nil || len(roots) != 1 {
			return
		}
		file, problems := expectation.Parse("f.yaml", roots[0])
		if len(problems) > 0 {
			for _, p := range problems {
				require.NotEmpty(t, p.Message)
			}
			return
		}
		decide := func() expectation.Result {
			runner, err := expectation.New(source)
			require.NoError(t, err)
			report, err := runner.Run(t.Context(), []*expectation.File{file})
			require.NoError(t, err)
			require.Len(t, report.Cases, 1)
			require.Equal(t, 1, report.Passed+report.Failed)
			return report.Cases[0]
		}
		first := decide()
		require.Equal(t, first, decide())
		require.Equal(t, first.OK, first.Message == "")
	})
}
