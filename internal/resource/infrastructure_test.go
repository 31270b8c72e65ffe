package resource_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// refusal returns the problems of a spec, a line each, "" when it is accepted.
func refusal(t *testing.T, kind, spec string) string {
	t.Helper()
	d, ok := resource.Describe(resource.Kind(kind))
	require.True(t, ok)
	mesh := ""
	if d.Scope == resource.MeshScoped {
		mesh = "default"
	}
	_, err := resource.Decode("", []byte("type: "+kind+"\nname: a\nmesh: '"+mesh+"'\nspec: "+spec), resource.DecodeOptions{})
	if err == nil {
		return ""
	}
	var failed resource.DocumentErrors
	require.ErrorAs(t, err, &failed)
	var lines []string
	for _, p := range failed[0].Problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// §1.4: the settings of a mesh and their defaults.
func TestMesh(t *testing.T) {
	mesh := func(spec string) *resource.Mesh {
		return acceptOne(t, "type: Mesh\nname: m\nspec: "+spec, resource.DecodeOptions{}).Spec().(*resource.Mesh)
	}
	require.Equal(t, resource.MeshMatching{SourceDestination: resource.KongMesh, TargetRef: resource.FirstWins, Unset: resource.UnsetAllowed},
		mesh("{}").EffectiveMatching())
	require.Equal(t, resource.MeshMatching{SourceDestination: resource.Kuma2020, TargetRef: resource.FirstWins, Unset: resource.UnsetAllowed},
		mesh("{matching: {sourceDestination: Kuma2020}}").EffectiveMatching())
	require.Equal(t, resource.MeshMatching{SourceDestination: resource.KongMesh, TargetRef: resource.LastWins, Unset: resource.UnsetForbidden},
		mesh("{matching: {targetRef: LastWins, unset: Forbidden}}").EffectiveMatching())

	require.False(t, mesh("{}").MTLSEnabled())
	require.False(t, mesh("{mtls: {backends: [{name: ca, type: builtin}]}}").MTLSEnabled(), "a backend that is not enabled")
	require.True(t, mesh("{mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}}").MTLSEnabled())

	logging := mesh("{logging: {backends: [{name: file, type: file}]}}")
	require.True(t, logging.HasLoggingBackend("file"))
	require.False(t, logging.HasLoggingBackend("tcp"))
	require.False(t, logging.HasTracingBackend("file"))
}

func TestMeshRefusals(t *testing.T) {
	tests := []struct{ rule, spec, want string }{
		{
			"enabledBackend exists", "{mtls: {enabledBackend: ca-2, backends: [{name: ca-1, type: builtin}]}}",
			"mtls.enabledBackend: there is no backend \"ca-2\" in `backends`; did you mean `ca-1`?",
		},
		{
			"enabledBackend without backends", "{mtls: {enabledBackend: ca-2}}",
			"mtls.enabledBackend: there is no backend \"ca-2\" in `backends`",
		},
		{
			"defaultBackend exists", "{logging: {defaultBackend: x, backends: [{name: file, type: file}, {name: tcp, type: tcp}]}}",
			"logging.defaultBackend: there is no backend \"x\" in `backends`; there are file, tcp",
		},
		{
			"backend names are distinct", "{tracing: {backends: [{name: a, type: zipkin}, {name: a, type: zipkin}]}}",
			`tracing.backends[1].name: "a" is the name of an earlier backend; each needs its own`,
		},
		{
			"a backend has name and type", "{metrics: {backends: [{}]}}",
			"metrics.backends[0].name: is required\nmetrics.backends[0].type: is required",
		},
		{
			"an empty item", "{metrics: {backends: [null]}}",
			"metrics.backends[0]: the item is empty; remove it or give it a value",
		},
		{
			"constraints have tags", "{constraints: {dataplaneProxy: {requirements: [{tags: {}}]}}}",
			"constraints.dataplaneProxy.requirements[0].tags: needs at least one tag",
		},
		{
			"modes", "{mtls: {backends: [{name: a, type: b, mode: strict}]}}",
			"mtls.backends[0].mode: unknown value \"strict\"; did you mean `STRICT`?",
		},
	}
	for _, test := range tests {
		t.Run("§1.4 "+test.rule, func(t *testing.T) {
			require.Equal(t, test.want, refusal(t, "Mesh", test.spec))
		})
	}
}

// §7.7: a Zone is enabled unless it says otherwise.
func TestZone(t *testing.T) {
	for spec, want := range map[string]bool{"{}": true, "{enabled: true}": true, "{enabled: false}": false} {
		zone := acceptOne(t, "type: Zone\nname: z\nspec: "+spec, resource.DecodeOptions{}).Spec().(*resource.Zone)
		require.Equal(t, want, zone.IsEnabled(), spec)
	}
}

func dataplane(t *testing.T, networking string) *resource.Resource {
	t.Helper()
	return acceptOne(t, "type: Dataplane\nname: d\nnetworking: "+networking, resource.DecodeOptions{})
}

// §1.5: what a dataplane offers and how policies see it.
func TestDataplane(t *testing.T) {
	d := dataplane(t, `{address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web, version: "1"}}, {port: 80, tags: {kuma.io/service: api}}], outbound: [{port: 1234, tags: {kuma.io/service: db}}]}`).Spec().(*resource.Dataplane)
	require.Len(t, d.Inbounds(), 2, "duplicate ports are legal")
	require.Equal(t, "web", d.Inbounds()[0].Service())
	require.Equal(t, uint32(8080), d.Inbounds()[0].ServicePort)
	require.Equal(t, "db", d.Outbounds()[0].Service())
	require.Equal(t, []resource.Tags{{"kuma.io/service": "web", "version": "1"}, {"kuma.io/service": "api"}}, d.TagSets())
	require.False(t, d.IsGateway())
	require.Nil(t, d.GatewayTags())

	gateway := dataplane(t, `{address: "::1", gateway: {type: DELEGATED, tags: {kuma.io/service: edge}}}`).Spec().(*resource.Dataplane)
	require.True(t, gateway.IsGateway())
	require.Equal(t, []resource.Tags{{"kuma.io/service": "edge"}}, gateway.TagSets())
	require.Equal(t, resource.Tags{"kuma.io/service": "edge"}, gateway.GatewayTags())
}

func TestDataplaneRefusals(t *testing.T) {
	inbound := "inbound: [{port: 80, tags: {kuma.io/service: web}}]"
	tests := []struct{ rule, networking, want string }{
		{"host names are addresses", "{address: web-1.prod.svc., advertisedAddress: 2001:db8::1, " + inbound + "}", ""},
		{"address is required", "{" + inbound + "}", "networking.address: is required"},
		{"address is an address", "{address: 192.168.0, " + inbound + "}", `networking.address: "192.168.0" is neither an IP address nor a host name`},
		{"address is reachable", "{address: 0.0.0.0, " + inbound + "}", "networking.address: 0.0.0.0 is every address and none; write the one that other proxies reach"},
		{"advertised address", "{address: a, advertisedAddress: 'a b', " + inbound + "}", `networking.advertisedAddress: "a b" is neither an IP address nor a host name`},
		{"inbounds or gateway", "{address: a}", "networking: a dataplane needs at least one `inbound`, or a `gateway`"},
		{"not both", "{address: a, gateway: {tags: {kuma.io/service: g}}, " + inbound + "}", "networking.gateway: a dataplane has `inbound` or `gateway`, not both"},
		{
			"ports", "{address: a, inbound: [{port: 0, servicePort: 65536, tags: {kuma.io/service: web}}]}",
			"networking.inbound[0].port: must be between 1 and 65535, got 0\nnetworking.inbound[0].servicePort: must be at most 65535, got 65536",
		},
		{"ports are whole", "{address: a, inbound: [{port: 80.5, tags: {kuma.io/service: web}}]}", "networking.inbound[0].port: expected a whole number, got 80.5"},
		{"ports are not negative", "{address: a, inbound: [{port: -1, tags: {kuma.io/service: web}}]}", "networking.inbound[0].port: the number cannot be negative, got -1"},
		{"ports fit", "{address: a, inbound: [{port: 1e30, tags: {kuma.io/service: web}}]}", "networking.inbound[0].port: the number 1e30 is out of range"},
		{
			"the service of an inbound", "{address: a, inbound: [{port: 80, tags: {version: v1}}]}",
			`networking.inbound[0].tags["kuma.io/service"]: is required: the name of the service`,
		},
		{
			"the service of an outbound", "{address: a, " + inbound + ", outbound: [{port: 1, tags: {kuma.io/service: ''}}]}",
			`networking.outbound[0].tags["kuma.io/service"]: is required: the name of the service`,
		},
		{"the service of a gateway", "{address: a, gateway: {tags: {}}}", `networking.gateway.tags["kuma.io/service"]: is required: the name of the service`},
		{
			"exact values", "{address: a, inbound: [{port: 80, tags: {kuma.io/service: web, version: '*'}}]}",
			`networking.inbound[0].tags.version: "*" stands for any value in a selector; a dataplane has exact values`,
		},
		{
			"tags are shown", `{address: a, inbound: [{port: 80, tags: {kuma.io/service: web, version: "1\u202e"}}]}`,
			`networking.inbound[0].tags.version: a tag has no characters that do not print, got "1\u202e"`,
		},
		{
			"tags have values", "{address: a, inbound: [{port: 80, tags: {kuma.io/service: web, version: }}]}",
			`networking.inbound[0].tags.version: has no value; remove it or give it one`,
		},
	}
	for _, test := range tests {
		t.Run("§1.5 "+test.rule, func(t *testing.T) {
			require.Equal(t, test.want, refusal(t, "Dataplane", "{networking: "+test.networking+"}"))
		})
	}
}

// §1.5: the zone tags its dataplanes and refuses another zone's.
func TestWithZone(t *testing.T) {
	original := dataplane(t, `{address: a, inbound: [{port: 80, tags: {kuma.io/service: web}}, {port: 81, tags: {kuma.io/service: api, kuma.io/zone: east}}]}`)
	before := string(original.Canonical())
	tagged, err := resource.WithZone(original, "east")
	require.NoError(t, err)
	require.Equal(t, []resource.Tags{
		{"kuma.io/service": "web", "kuma.io/zone": "east"},
		{"kuma.io/service": "api", "kuma.io/zone": "east"},
	}, tagged.Spec().(*resource.Dataplane).TagSets())
	require.Contains(t, string(tagged.Canonical()), `{"kuma.io/service":"web","kuma.io/zone":"east"}`)
	require.Equal(t, before, string(original.Canonical()), "the original is immutable")
	require.NotContains(t, original.Spec().(*resource.Dataplane).TagSets()[0], "kuma.io/zone")
	require.Equal(t, original.Meta(), tagged.Meta())

	again, err := resource.WithZone(tagged, "east")
	require.NoError(t, err)
	require.Same(t, tagged, again)

	_, err = resource.WithZone(tagged, "west")
	require.EqualError(t, err, `Dataplane/default/d: networking.inbound[0].tags["kuma.io/zone"]: says "east", but this is zone "west"; leave the tag out
Dataplane/default/d: networking.inbound[1].tags["kuma.io/zone"]: says "east", but this is zone "west"; leave the tag out`)

	gateway, err := resource.WithZone(dataplane(t, `{address: a, gateway: {tags: {kuma.io/service: edge}}}`), "east")
	require.NoError(t, err)
	require.Equal(t, resource.Tags{"kuma.io/service": "edge", "kuma.io/zone": "east"}, gateway.Spec().(*resource.Dataplane).GatewayTags())

	_, err = resource.WithZone(acceptOne(t, "type: Zone\nname: z", resource.DecodeOptions{}), "east")
	require.EqualError(t, err, "Zone/z is not a Dataplane")
}

// §1.5: what a proxy of a zone sends comes to the same as with WithZone, decoded once; the
// problems of what is no dataplane are those of Build.
func TestBuildInZone(t *testing.T) {
	meta := resource.Meta{Key: resource.Key{Kind: resource.KindDataplane, Mesh: "default", Name: "d"}}
	for _, spec := range []string{
		`{"networking":{"address":"a","inbound":[{"port":80,"tags":{"version":"v1","kuma.io/service":"web"}},{"port":81,"tags":{"kuma.io/zone":"east","kuma.io/service":"api"}}]}}`,
		`{"networking":{"address":"a","gateway":{"tags":{"kuma.io/service":"edge"}}}}`,
	} {
		built, problems, err := resource.Build(meta, []byte(spec))
		require.NoError(t, err)
		want, err := resource.WithZone(built, "east")
		require.NoError(t, err)
		got, gotProblems, err := resource.BuildInZone(meta, []byte(spec), "east")
		require.NoError(t, err)
		require.Equal(t, string(want.Canonical()), string(got.Canonical()))
		require.Equal(t, want.Spec(), got.Spec())
		require.Equal(t, problems, gotProblems)
		same, err := resource.WithZone(got, "east")
		require.NoError(t, err)
		require.Same(t, got, same, "it is not decoded again")
	}
	for _, spec := range []string{
		`{}`, `[]`, `7`, `{"networking":[]}`, `{"networking":{"address":"a","inbound":7}}`, `{"networking":{"address":"a","inbound":[7,null]}}`,
		`{"networking":{"address":"a","inbound":[{"port":80}]}}`, `{"networking":{"address":"a","inbound":[{"port":80,"tags":[]}]}}`,
		`{"networking":{"address":"a","inbound":[{"port":80,"tags":{"kuma.io/zone":7}}]}}`, `{"networking":{"address":"a","gateway":null}}`,
	} {
		_, _, want := resource.Build(meta, []byte(spec))
		require.Error(t, want, spec)
		_, _, got := resource.BuildInZone(meta, []byte(spec), "east")
		require.EqualError(t, got, want.Error(), spec)
	}
}

// §2.1: selectors.
func TestSelector(t *testing.T) {
	tags := resource.Tags{"kuma.io/service": "web", "version": "v1"}
	tests := []struct {
		rule     string
		selector resource.TagSelector
		matches  bool
		exact    int
	}{
		{"every tag present and equal", resource.TagSelector{"kuma.io/service": "web", "version": "v1"}, true, 2},
		{"fewer tags", resource.TagSelector{"version": "v1"}, true, 1},
		{"another value", resource.TagSelector{"kuma.io/service": "web", "version": "v2"}, false, 2},
		{"an absent tag", resource.TagSelector{"region": "us"}, false, 1},
		{"* is any value", resource.TagSelector{"kuma.io/service": "*", "version": "v1"}, true, 1},
		{"* needs the tag", resource.TagSelector{"region": "*"}, false, 0},
	}
	for _, test := range tests {
		t.Run("§2.1 "+test.rule, func(t *testing.T) {
			require.Equal(t, test.matches, test.selector.Matches(tags))
			require.Equal(t, test.exact, test.selector.Exact())
		})
	}
}

func TestSecrets(t *testing.T) {
	require.Equal(t, "", refusal(t, "GlobalSecret", "{data: c2VjcmV0}"))
	require.Equal(t, "data: is not base64; write the output of `base64 -w0`", refusal(t, "Secret", "{data: 's e c r e t'}"))
	require.Equal(t, "data: is required", refusal(t, "Secret", "{}"))
	secret := acceptOne(t, "type: GlobalSecret\nname: s\ndata: c2VjcmV0", resource.DecodeOptions{}).Spec().(*resource.Secret)
	require.Equal(t, "secret", string(secret.Bytes()))
}

func TestSigningKeysAndRevocations(t *testing.T) {
	const ed25519 = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="
	require.Equal(t, "", refusal(t, "SigningKey", "{use: user-token, serial: 1, publicKey: '"+ed25519+"'}"))
	require.Equal(t, "serial: counts from 1\npublicKey: is not a PKIX public key in DER", refusal(t, "SigningKey", "{use: user-token, serial: 0, publicKey: AAAA}"))
	require.Equal(t, "publicKey: is not base64", refusal(t, "SigningKey", "{use: user-token, serial: 1, publicKey: '?'}"))
	require.Equal(t, "id: is required\nexpires: expected a time such as 2026-01-31T20:00:00Z, got the string \"soon\"",
		refusal(t, "TokenRevocation", "{use: zone-token, id: '', expires: soon}"))
}

func TestIssuedTokens(t *testing.T) {
	const times = "issued: 2026-01-31T20:00:00Z, expires: 2026-02-01T20:00:00Z"
	require.Equal(t, "", refusal(t, "IssuedToken",
		"{use: dataplane-token, id: a1, subject: default/*, tags: {kuma.io/service: [web, api]}, serial: 2, issuer: bob, revoked: true, reason: lost, "+times+"}"))
	require.Equal(t, "", refusal(t, "IssuedToken", "{use: user-token, id: a1, subject: bob, groups: [a], serial: 1, "+times+"}"))
	require.Equal(t, "id: is required\nserial: counts from 1\nexpires: expected a time such as 2026-01-31T20:00:00Z, got the string \"soon\"",
		refusal(t, "IssuedToken", "{use: user-token, id: '', subject: bob, serial: 0, issued: 2026-01-31T20:00:00Z, expires: soon}"))
	require.Equal(t, "issued: is required", refusal(t, "IssuedToken", "{use: user-token, id: a, subject: bob, serial: 1, expires: 2026-01-31T20:00:00Z}"))
}
