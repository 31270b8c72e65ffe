package condition

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// §5.6, §4.10: a path that the shape of the kind can never have is refused with its
// place and the nearest field; everything else is accepted.
func TestPathsThatCanNeverExist(t *testing.T) {
	c := newCompiler(t, DefaultOptions())
	const gateway = `"targetRef": {"kind": "Gateway", "name": "gw"}`
	kinds := map[resource.Kind]func(when string) string{
		"AuthPolicy": func(when string) string {
			return `{` + gateway + `, "overrides": {"when": ` + when + `, "rules": {"metadata": {"a": 1}}}}`
		},
		"RateLimitPolicy": func(when string) string {
			return `{` + gateway + `, "overrides": {"when": ` + when + `, "limits": {"a": {}}}}`
		},
		"MeshUpstreamTimeout": func(when string) string {
			return `{"overrides": {"when": ` + when + `, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectTimeout": "5s"}}]}}`
		},
		"MeshTracing": func(when string) string {
			return `{"overrides": {"when": ` + when + `, "sampling": {"overall": 10}}}`
		},
	}
	for _, tt := range []struct {
		kind       resource.Kind
		when, want string // want is empty where the condition is accepted
	}{
		{"AuthPolicy", `spec.rules.authentication.any.thing > 1`, ""},
		{"AuthPolicy", `has(spec.rules.authentication.a) && self.spec.rules.patterns.size() > 0`, ""},
		{"AuthPolicy", `self.spec.targetRef.kind == "HTTPRoute" && has(self.spec.targetRef.sectionName)`, ""},
		{"AuthPolicy", `self.metadata.labels["tier"] == "gold" && self.kind == "AuthPolicy"`, ""},
		{"AuthPolicy", `target.spec.anything.at.all && has(target.sectionName)`, ""},
		{"AuthPolicy", `spec.rules.authentication.exists(spec, spec == "a")`, ""},
		{"AuthPolicy", `spec.rules[target.kind].a`, ""},
		{"AuthPolicy", `spec.rules.authentcation.a > 1`, "at character 1: spec.rules.authentcation can never exist; did you mean spec.rules.authentication?"},
		{"AuthPolicy", `true && has(self.spec.rulez.a)`, "at character 13: self.spec.rulez can never exist; did you mean self.spec.rules?"},
		{"AuthPolicy", `spec["rules"]["authentification"].a`, "spec.rules.authentification can never exist; did you mean spec.rules.authentication?"},
		{"AuthPolicy", `"auth" in spec.rules`, "spec.rules.auth can never exist; spec.rules has authentication, authorization,"},
		{"AuthPolicy", `spec.limits.a > 1`, "spec.limits can never exist; spec has rules, targetRef"},
		{"AuthPolicy", `self.metadata.nam == "a"`, "self.metadata.nam can never exist; did you mean self.metadata.name?"},
		{"AuthPolicy", `self.rules.authentication.a`, "self.rules can never exist; self has kind, metadata, spec"},
		{"AuthPolicy", `self.spec.targetRef.section == "a"`, "self.spec.targetRef.section can never exist"},
		{"AuthPolicy", `target.section == "a"`, "target.section can never exist"},
		{"AuthPolicy", `spec.rules.authentication.exists(n, spec.rules.metdata[n])`, "spec.rules.metdata can never exist; did you mean spec.rules.metadata?"},
		{"RateLimitPolicy", `spec.limits.a.rates.exists(r, r.limit > 50)`, ""},
		{"RateLimitPolicy", `spec.rules.a`, "spec.rules can never exist; spec has limits, targetRef"},
		{"MeshUpstreamTimeout", `duration(self.http.requestTimeout) > duration("5s") && self.metadata.mesh == "default"`, ""},
		{"MeshUpstreamTimeout", `has(spec.connectTimeout) && target.attachment.port == 80`, ""},
		{"MeshUpstreamTimeout", `has(self.http.reqestTimeout)`, "self.http.reqestTimeout can never exist; did you mean self.http.requestTimeout?"},
		{"MeshUpstreamTimeout", `has(self.spec.conectTimeout)`, "self.spec.conectTimeout can never exist; did you mean self.spec.connectTimeout?"},
		{"MeshUpstreamTimeout", `target.attachment.ports == 80`, "target.attachment.ports can never exist; did you mean target.attachment.port?"},
		{"MeshTracing", `has(self.sampling.overall)`, ""},
		{"MeshTracing", `has(self.sampling.everall)`, "self.sampling.everall can never exist; did you mean self.sampling.overall?"},
	} {
		t.Run(string(tt.kind)+" "+tt.when, func(t *testing.T) {
			quoted, err := json.Marshal(tt.when)
			require.NoError(t, err)
			r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: tt.kind, Mesh: "default", Name: "a"}}, []byte(kinds[tt.kind](string(quoted))))
			require.NoError(t, err)
			problems := c.Check(r.Spec())
			if tt.want == "" {
				require.Empty(t, problems)
				return
			}
			require.Len(t, problems, 1)
			require.Equal(t, resource.Path("overrides.when"), problems[0].Path)
			require.Contains(t, problems[0].Message, tt.want)
		})
	}
}
