package identity

import (
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("v", 1024)
	for _, c := range []struct {
		name, zone, mesh, dataplane string
		sets                        []resource.Tags
		want, refused               string
	}{
		{
			name: "one inbound", zone: "east", mesh: "m", dataplane: "web-1",
			sets: []resource.Tags{{"kuma.io/zone": "east", "kuma.io/service": "web", "version": "1.0"}},
			want: "spiffe://east.m/dp/web-1/_/kuma.io_2Fservice/web/version/1.0",
		},
		{
			name: "several, in order, each once", zone: "east", mesh: "m", dataplane: "web.1",
			sets: []resource.Tags{
				{"kuma.io/zone": "east", "kuma.io/service": "web"}, {"kuma.io/zone": "east", "kuma.io/service": "admin"}, {"kuma.io/zone": "east", "kuma.io/service": "web"},
			},
			want: "spiffe://east.m/dp/web.1/_/kuma.io_2Fservice/admin/_/kuma.io_2Fservice/web",
		},
		{
			name: "values that could be parts of the path", zone: "east", mesh: "m", dataplane: "d",
			sets: []resource.Tags{{"kuma.io/zone": "east", "_": "", "a/_/b": "..", "b": ".", "c": "é", "d": "..."}},
			want: "spiffe://east.m/dp/d/_/_5F/__/a_2F_5F_2Fb/_2E_2E/b/_2E/c/_C3_A9/d/...",
		},
		{name: "zone with a dot", zone: "e.ast", mesh: "m", dataplane: "d", refused: `zone "e.ast" is not one label`},
		{name: "mesh with a dot", zone: "east", mesh: "m.n", dataplane: "d", refused: `mesh "m.n" is not one label`},
		{name: "no zone", mesh: "m", dataplane: "d", refused: `zone "" is not one label`},
		{name: "long label", zone: strings.Repeat("z", 64), mesh: "m", dataplane: "d", refused: "has 64 bytes"},
		{name: "no name of a dataplane", zone: "east", mesh: "m", dataplane: "d/../e", refused: `cannot hold '/'`},
		{name: "no tags", zone: "east", mesh: "m", dataplane: "d", refused: "no tags"},
		{
			name: "another zone's tag", zone: "east", mesh: "m", dataplane: "d",
			sets:    []resource.Tags{{"kuma.io/zone": "east"}, {"kuma.io/zone": "west"}},
			refused: `its tag kuma.io/zone is "west" in zone "east"`,
		},
		{
			name: "too long", zone: "east", mesh: "m", dataplane: "d",
			sets:    []resource.Tags{{"kuma.io/zone": "east", "a": long}, {"kuma.io/zone": "east", "b": long}},
			refused: "at most 2048 are possible: give it fewer or shorter tags",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Of(resource.ZoneName(c.zone), resource.MeshName(c.mesh), c.dataplane, c.sets)
			if c.refused != "" {
				require.ErrorContains(t, err, c.refused)
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			parsed, err := Parse(got)
			require.NoError(t, err)
			require.Equal(t, c.zone, string(parsed.Zone))
			require.Equal(t, c.mesh, string(parsed.Mesh))
			require.Equal(t, c.dataplane, parsed.Dataplane)
			for _, set := range c.sets {
				require.Contains(t, parsed.Sets, set)
			}
		})
	}
}

func TestParseRefusesWhatIsNoName(t *testing.T) {
	for _, text := range []string{
		"", "spiffe://east.m", "spiffe://east.m/dp/", "spiffe://east.m/dp/d", "spiffe://east/dp/d/_/a/b", "https://east.m/dp/d/_/a/b",
		"spiffe://east.m/dp/d/_/a", "spiffe://east.m/dp/d/a/b", "spiffe://east.m/dp/d/_/b/1/a/2", "spiffe://east.m/dp/d/_/a/_2f",
		"spiffe://east.m/dp/d/_/a/_4", "spiffe://east.m/dp/d/_/a/_61", "spiffe://east.m/dp/d/_/a//", "spiffe://east.m/dp/d/_/a/b?c", "spiffe://east.m/dp/d/_/b/_/a",
		"spiffe://x.east.m/dp/d/_/a/b", "spiffe://east.m:1/dp/d/_/a/b",
	} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
}

func TestPatternsOfOneMeshDoNotMatchAnother(t *testing.T) {
	tags := resource.Tags{"kuma.io/zone": "east", "kuma.io/service": "web"}
	of := func(zone resource.ZoneName, mesh resource.MeshName, name string) string {
		tags[resource.ZoneTag] = string(zone)
		uri, err := Of(zone, mesh, name, []resource.Tags{tags})
		require.NoError(t, err)
		return uri
	}
	for _, selector := range []resource.TagSelector{nil, {"kuma.io/service": "web"}, {"kuma.io/zone": "east"}} {
		pattern, err := Pattern("m", selector)
		require.NoError(t, err)
		re := regexp.MustCompile(pattern)
		require.True(t, re.MatchString(of("east", "m", "d")), pattern)
		require.False(t, re.MatchString(of("east", "n", "d")), pattern)
		require.False(t, re.MatchString(of("east", "mm", "d")), pattern)
		require.False(t, re.MatchString(strings.Replace(of("east", "m", "d"), "east.m", "x.east.m", 1)), pattern)
		require.False(t, re.MatchString(strings.Replace(of("east", "m", "d"), "east.m", "eastxm", 1)), pattern)
		require.False(t, re.MatchString("x"+of("east", "m", "d")+"/x?"), pattern)
	}
	_, err := Pattern("m.n", nil)
	require.ErrorContains(t, err, `mesh "m.n"`)
	pattern, err := Pattern("m", resource.TagSelector{"kuma.io/zone": "x.east"})
	require.NoError(t, err)
	require.Equal(t, Nothing, pattern)
	require.False(t, regexp.MustCompile(Nothing).MatchString(""))
	require.False(t, regexp.MustCompile(Nothing).MatchString(of("east", "m", "d")))

	pattern, err = DataplanePattern("east", "m", "d.1")
	require.NoError(t, err)
	re := regexp.MustCompile(pattern)
	require.True(t, re.MatchString(of("east", "m", "d.1")))
	for _, other := range []string{of("east", "m", "d.11"), of("east", "m", "d-1"), of("west", "m", "d.1"), of("east", "n", "d.1")} {
		require.False(t, re.MatchString(other), other)
	}
}

// drawn draws tag sets and selectors from few names and values, with those among them
// that look like parts of a path.
type drawn struct{ r *rand.Rand }

func (d drawn) text() string {
	words := []string{"", "_", "__", "_2F", "/", "/_/", ".", "..", "a", "b", "kuma.io/service", "kuma.io_2Fservice", "*", "é", "a/b", "A"}
	return words[d.r.IntN(len(words))]
}

func (d drawn) tags(zone string) resource.Tags {
	tags := resource.Tags{resource.ZoneTag: zone}
	for range d.r.IntN(4) {
		if tag := d.text(); tag != resource.ZoneTag {
			tags[tag] = d.text()
		}
	}
	return tags
}

func (d drawn) selector(from []resource.Tags) resource.TagSelector {
	s := resource.TagSelector{}
	for range d.r.IntN(4) {
		if d.r.IntN(3) == 0 {
			s[d.text()] = d.text()
			continue
		}
		for tag, value := range from[d.r.IntN(len(from))] {
			if s[tag] = value; d.r.IntN(4) == 0 {
				s[tag] = resource.AnyValue
			}
			if d.r.IntN(2) == 0 {
				break
			}
		}
	}
	if d.r.IntN(4) == 0 {
		s[resource.ZoneTag] = []string{"east", "west", "*", "x.east", ""}[d.r.IntN(5)]
	}
	return s
}

// The promise of the package: a pattern matches exactly the callers that the matcher's
// selector matches.
func TestPatternMatchesWhatTheSelectorMatches(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	d := drawn{r}
	matched := 0
	for range 3000 {
		zone := []string{"east", "west"}[r.IntN(2)]
		sets := []resource.Tags{}
		for range 1 + r.IntN(3) {
			sets = append(sets, d.tags(zone))
		}
		selector := d.selector(sets)
		want := len(selector) == 0 || slices.ContainsFunc(sets, selector.Matches)
		name, err := Of(resource.ZoneName(zone), "m", "d", sets)
		require.NoError(t, err)
		pattern, err := Pattern("m", selector)
		require.NoError(t, err)
		for _, name := range []string{name, WithCredential(name, Credential(name))} {
			if got := regexp.MustCompile(pattern).MatchString(name); got != want {
				t.Fatalf("selector %v and sets %v: matched %v by the expression %s of %s", selector, sets, got, pattern, name)
			}
		}
		if want {
			matched++
		}
	}
	require.Greater(t, matched, 600, "too few matched for the test to say anything")
}

// Two dataplanes with different names or sets never share a name.
func TestNamesAreDistinct(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	d := drawn{r}
	seen := map[string][]resource.Tags{}
	for range 3000 {
		sets := []resource.Tags{d.tags("east"), d.tags("east")}
		name, err := Of("east", "m", "d", sets)
		require.NoError(t, err)
		parsed, err := Parse(name)
		require.NoError(t, err, name)
		for _, set := range sets {
			require.Contains(t, parsed.Sets, set, name)
		}
		for _, set := range parsed.Sets {
			require.Contains(t, sets, set, name)
		}
		if before := seen[name]; before != nil {
			require.ElementsMatch(t, before, parsed.Sets)
		}
		seen[name] = parsed.Sets
	}
}

// The expression of credentials matches the names that have one of them, and no name of
// another credential or without one, whatever the tags.
func TestCredentialsAreTold(t *testing.T) {
	one, two, three := Credential("one"), Credential("two"), Credential("three")
	pattern, err := CredentialsPattern("m", []string{one, two})
	require.NoError(t, err)
	re := regexp.MustCompile(pattern)
	for zone := range map[resource.ZoneName]bool{"east": true, "west": true} {
		name, err := Of(zone, "m", "d", []resource.Tags{
			{resource.ZoneTag: string(zone), "kuma.io/service": "web"}, {resource.ZoneTag: string(zone), "by": one, "": "/by/" + one},
		})
		require.NoError(t, err)
		require.False(t, re.MatchString(name))
		for credential, want := range map[string]bool{one: true, two: true, three: false} {
			with := WithCredential(name, credential)
			require.Equal(t, want, re.MatchString(with), with)
			parsed, err := Parse(with)
			require.NoError(t, err)
			require.Equal(t, credential, parsed.Credential)
		}
	}
	other, err := Of("east", "n", "d", []resource.Tags{{resource.ZoneTag: "east"}})
	require.NoError(t, err)
	require.False(t, re.MatchString(WithCredential(other, one)))
	none, err := CredentialsPattern("m", nil)
	require.NoError(t, err)
	require.Equal(t, Nothing, none)
	for _, refused := range []string{"spiffe://east.m/dp/d/by/" + one, "spiffe://east.m/dp/d/by/" + one[1:] + "/_/a/b", "spiffe://east.m/dp/d/by/_/a/b"} {
		_, err := Parse(refused)
		require.Error(t, err, refused)
	}
}

// The program of an expression stays within what an Envoy is told to accept.
func TestPatternsAreSmall(t *testing.T) {
	pattern, err := Pattern("m", resource.TagSelector{"kuma.io/service": "a-service-with-a-long-name", "kuma.io/zone": "east", "version": "*", "team": "payments"})
	require.NoError(t, err)
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	require.NoError(t, err)
	program, err := syntax.Compile(parsed.Simplify())
	require.NoError(t, err)
	require.Less(t, len(program.Inst), 250)
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "_", "/", "..", "é", "\xff", "kuma.io/service", "_2F"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := escape(s)
		require.Regexp(t, `^[0-9A-Za-z._-]+$`, e)
		require.NotContains(t, []string{section, ".", ".."}, e)
		back, err := unescape(e)
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}

func FuzzPattern(f *testing.F) {
	f.Add("kuma.io/service", "web", "version", "1", "web", "1")
	f.Add("a", "b", "c", "d", "*", "d")
	f.Add("_", "_", "__", "", "_", "")
	f.Fuzz(func(t *testing.T, tag1, value1, tag2, value2, want1, want2 string) {
		if tag1 == resource.ZoneTag || tag2 == resource.ZoneTag {
			return
		}
		sets := []resource.Tags{
			{resource.ZoneTag: "east", tag1: value1, "z": "z"}, {resource.ZoneTag: "east", tag2: value2}, {resource.ZoneTag: "east", tag1: value2, tag2: value1},
		}
		name, err := Of("east", "m", "d", sets)
		if err != nil {
			return // too long
		}
		for _, selector := range []resource.TagSelector{{tag1: want1}, {tag2: want2}, {tag1: want1, tag2: want2}, {tag1: want1, tag2: "*"}} {
			pattern, err := Pattern("m", selector)
			require.NoError(t, err)
			require.Equal(t, slices.ContainsFunc(sets, selector.Matches), regexp.MustCompile(pattern).MatchString(name), "%v %s %s", selector, pattern, name)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("spiffe://east.m/dp/d/_/a/b")
	f.Add("spiffe://east.m/dp/d/by/0123456789abcdef0123/_/a/b")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Of(n.Zone, n.Mesh, n.Dataplane, n.Sets)
		require.NoError(t, err)
		if n.Credential != "" {
			again = WithCredential(again, n.Credential)
		}
		require.Equal(t, s, again)
	})
}

func BenchmarkMatch(b *testing.B) {
	pattern, err := Pattern("m", resource.TagSelector{"kuma.io/service": "web", "version": "v1"})
	require.NoError(b, err)
	name, err := Of("east", "m", "web-1", []resource.Tags{{resource.ZoneTag: "east", "kuma.io/service": "web", "version": "v1", "team": "payments"}})
	require.NoError(b, err)
	b.Run("compile", func(b *testing.B) {
		for b.Loop() {
			regexp.MustCompile(pattern)
		}
	})
	b.Run("match", func(b *testing.B) {
		re := regexp.MustCompile(pattern)
		for b.Loop() {
			re.MatchString(name)
		}
	})
}
