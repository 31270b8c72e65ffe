package resource

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// §6.1–§6.3: what a role may say, and how it is refused otherwise.
func TestAccessRoleConditions(t *testing.T) {
	rule := func(when string) string {
		return `{"rules": [{"access": ["CREATE"], "when": [` + when + `]}]}`
	}
	for name, tt := range map[string]struct {
		spec string
		want string // empty: accepted
	}{
		"a gateway":              {rule(`{"targetRef": {"kind": "Gateway", "name": "public"}}`), ""},
		"a route":                {rule(`{"targetRef": {"kind": "GRPCRoute", "name": "r"}}`), ""},
		"a service":              {rule(`{"targetRef": {"kind": "MeshService", "name": "web"}}`), ""},
		"a subset":               {rule(`{"targetRef": {"kind": "MeshSubset", "tags": {"team": "*"}}}`), ""},
		"every qualifier":        {rule(`{"sources": {"match": {"a": "b"}}, "to": {"targetRef": {"kind": "Mesh"}}, "dpToken": {"tags": [{"name": "a", "value": "b"}]}}`), ""},
		"a gateway without name": {rule(`{"targetRef": {"kind": "Gateway"}}`), "is required with kind Gateway"},
		"a gateway with tags":    {rule(`{"targetRef": {"kind": "Gateway", "name": "x", "tags": {"a": "b"}}}`), "is not taken by kind Gateway"},
		"a service without name": {rule(`{"targetRef": {"kind": "Service"}}`), "is required with kind Service"},
		"a gateway as caller":    {rule(`{"from": {"targetRef": {"kind": "Gateway", "name": "x"}}}`), "kind"},
		"an unknown target":      {rule(`{"targetRef": {"kind": "Gatway", "name": "x"}}`), "kind"},
		"an empty entry":         {rule(`{}`), "holds for everything"},
		"no tags":                {rule(`{"selectors": {"match": {}}}`), "at least one tag"},
		"token names":            {rule(`{"dpToken": {"names": ["web", "web-*", "*"]}}`), ""},
		"bad token name":         {rule(`{"dpToken": {"names": ["we*b"]}}`), "a prefix before"},
		"no token tags":          {rule(`{"dpToken": {"tags": []}}`), "needs at least one of tags and names"},
		"an unknown type":        {`{"rules": [{"access": ["CREATE"], "types": ["TrafficPermision"]}]}`, `did you mean "TrafficPermission"?`},
		"an unknown access":      {`{"rules": [{"access": ["SEE"]}]}`, "access"},
		"no access":              {`{"rules": [{"access": []}]}`, "a rule without access grants nothing"},
		"a mesh of two stars":    {`{"rules": [{"access": ["CREATE"], "mesh": "**"}]}`, "'*' is any mesh"},
		"a thousand rules":       {`{"rules": [` + strings.Repeat(`{"access": ["CREATE"]}, `, 999) + `{"access": ["CREATE"]}]}`, ""},
		"too many rules":         {`{"rules": [` + strings.Repeat(`{"access": ["CREATE"]}, `, 1000) + `{"access": ["CREATE"]}]}`, "has 1001 rules with 0 entries of `when`; a role has at most 1000 of each"},
		"too many conditions":    {rule(strings.Repeat(`{"to": {"targetRef": {"kind": "Mesh"}}}, `, 1000) + `{"to": {"targetRef": {"kind": "Mesh"}}}`), "has 1 rules with 1001 entries"},
		"too many token tags":    {rule(`{"dpToken": {"tags": [` + strings.Repeat(`{"name": "a", "value": "b"}, `, 64) + `{"name": "a", "value": "b"}]}}`), "has 65 tags; a token carries at most 64"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Build(Meta{Key: Key{Kind: "AccessRole", Name: "r"}}, []byte(tt.spec))
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// §6.2, §6.3: what a rule says and can never grant is warned about.
func TestRulesThatNeverGrant(t *testing.T) {
	for name, tt := range map[string]struct{ rule, want string }{
		"nothing to say":            {`{"mesh": "demo", "types": ["Timeout"], "access": ["CREATE", "GENERATE_DATAPLANE_TOKEN"]}`, ""},
		"without a mesh":            {`{"types": ["Mesh"], "access": ["CREATE", "GENERATE_USER_TOKEN"]}`, ""},
		"a kind in no mesh":         {`{"mesh": "demo", "types": ["Timeout", "Mesh"], "access": ["CREATE"]}`, "rules[0].types[1]: is never granted: a Mesh is in no mesh"},
		"a user token in a mesh":    {`{"mesh": "*", "access": ["GENERATE_USER_TOKEN"]}`, "rules[0].access[0]: is never granted by a rule with `mesh`"},
		"a zone token in a mesh":    {`{"mesh": "demo", "access": ["CREATE", "GENERATE_ZONE_TOKEN"]}`, "rules[0].access[1]: is never granted"},
		"a zone cp token in a mesh": {`{"mesh": "demo", "access": ["GENERATE_ZONE_CP_TOKEN"]}`, "rules[0].access[0]: is never granted"},
		"any value of a token": {
			`{"access": ["GENERATE_DATAPLANE_TOKEN"], "when": [{"dpToken": {"tags": [{"name": "a", "value": "*"}]}}]}`,
			"rules[0].when[0].dpToken.tags[0].value: never holds",
		},
	} {
		_, problems, err := Build(Meta{Key: Key{Kind: "AccessRole", Name: "r"}}, []byte(`{"rules": [`+tt.rule+`]}`))
		require.NoError(t, err, name)
		if tt.want == "" {
			require.Empty(t, problems, name)
			continue
		}
		require.Len(t, problems, 1, name)
		require.Equal(t, Warning, problems[0].Severity, name)
		require.Contains(t, problems[0].String(), tt.want, name)
	}
}
