package envoy_test

import (
	"fmt"
	"strings"
	"testing"

	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/world"
)

// logging is a MeshLogging with an entry of from for each of some callers with tags, and
// one for everyone; each with receivers.
func logging(entries, tags, receivers int) string {
	var backends, items []string
	for i := range receivers {
		backends = append(backends, fmt.Sprintf(`{"type":"File","file":{"path":"/log-%d"}}`, i))
	}
	conf := `"default":{"backends":[` + strings.Join(backends, ",") + `]}}`
	for i := range entries {
		var selector []string
		for j := range tags {
			selector = append(selector, fmt.Sprintf(`"tag-%d":"value-%d-%d"`, j, i, j))
		}
		items = append(items, `{"targetRef":{"kind":"MeshSubset","tags":{`+strings.Join(selector, ",")+`}},`+conf)
	}
	items = append(items, `{"targetRef":{"kind":"Mesh"},`+conf)
	return `{"targetRef":{"kind":"Mesh"},"from":[` + strings.Join(items, ",") + `]}`
}

// However many callers a policy tells apart, the conditions of an inbound are bounded, the
// dataplane is sent everything else, and what has no effect is told.
func TestTheConditionsOfLogsAreBounded(t *testing.T) {
	for _, c := range []struct {
		name                     string
		entries, tags, receivers int
		// held is how many of the entries have effect, at least.
		held int
		all  bool
	}{
		{"one caller", 1, 1, 1, 2, true},
		{"some callers", 16, 1, 1, 17, true},
		{"many callers", 64, 1, 1, 20, false},
		{"many tags", 64, 20, 1, 5, false},
		{"many receivers", 64, 1, 16, 5, false},
		{"more callers than entries", 300, 1, 1, 20, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := callee(t, "STRICT", httpInbound)
			put(t, w, resource.KindMeshLogging, "p", logging(c.entries, c.tags, c.receivers))
			set := generate(t, w, "backend-1")
			require.Empty(t, set.Withheld)
			l := listener(t, set, "in_80")
			size, held := 0, map[string]bool{}
			for _, made := range managerOf(t, l.GetFilterChains()[0]).GetAccessLog() {
				filter := &celv3.ExpressionFilter{}
				require.NoError(t, made.GetFilter().GetExtensionFilter().GetTypedConfig().UnmarshalTo(filter))
				if !strings.Contains(filter.GetExpression(), "code_details") { // that of denials
					size += len(filter.GetExpression())
					held[filter.GetExpression()] = true
				}
			}
			require.LessOrEqual(t, size, 64<<10)
			require.GreaterOrEqual(t, len(held), c.held)

			m := policy.NewMatcher(engines.All()...)
			m.Reset(w.View())
			rules, err := m.Effective(policy.DataplaneKey("m", "backend-1"))
			require.NoError(t, err)
			var told []resource.Key
			for i := range rules {
				policies, why := envoy.Unheeded(world.Mesh{Exists: true, MTLS: true, BackendType: world.BuiltinCA}, &rules[i])
				told = append(told, policies...)
				require.Equal(t, len(policies) > 0, strings.Contains(why, "64th"), why)
			}
			if c.all {
				require.Len(t, held, c.entries+1)
				require.Empty(t, told)
				return
			}
			require.Equal(t, []resource.Key{{Kind: resource.KindMeshLogging, Mesh: "m", Name: "p"}}, told)
		})
	}
}
