package clientconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func testBundle(tb testing.TB) ZoneBundle {
	tb.Helper()
	return ZoneBundle{Zone: "east", Addresses: []string{"10.0.0.1:5685", "10.0.0.2:5685"}, CA: testCA(tb), Token: "a.b.c"}
}

func TestABundleSurvivesItsFile(t *testing.T) {
	want := testBundle(t)
	data, err := want.Encode()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "east.bundle")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	got, err := LoadZoneBundle(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, got.CheckZone("east"))
	err = got.CheckZone("west")
	require.ErrorIs(t, err, ErrBundleZone)
	require.EqualError(t, err, `the join bundle is for another zone: it is for "east", this zone is called "west"`)

	_, err = LoadZoneBundle(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestBadBundlesAreRefused(t *testing.T) {
	good, err := testBundle(t).Encode()
	require.NoError(t, err)
	const head = "kind: MeridianZoneBundle\nversion: 1\n"
	for name, tc := range map[string]struct {
		data string
		is   error
		want string
	}{
		"empty":           {"", ErrNotBundle, "not a join bundle: it is empty; the command that was to write it may have failed"},
		"not YAML":        {"\tx", ErrNotBundle, "not a join bundle: it is not YAML with a kind and a version"},
		"a list":          {"[1, 2]", ErrNotBundle, "it is not YAML with a kind and a version"},
		"huge":            {strings.Repeat("#", maxBundleBytes+1), ErrNotBundle, "it has 1048577 bytes"},
		"a resource":      {"kind: Mesh\nmetadata: {name: default}", ErrNotBundle, `its kind is "Mesh", not MeridianZoneBundle`},
		"no version":      {"kind: MeridianZoneBundle", ErrNotBundle, "version 0 does not exist"},
		"from the future": {"kind: MeridianZoneBundle\nversion: 2\nshape: new", ErrBundleVersion, "it is of version 2, this release reads up to 1"},
		"unknown field":   {string(good) + "more: 1\n", nil, "the join bundle is damaged: "},
		"no zone":         {head + "token: t\naddresses: ['a:1']", nil, "the join bundle names no zone"},
		"no token":        {head + "zone: east\naddresses: ['a:1']", nil, "the join bundle has no token"},
		"no address":      {head + "zone: east\ntoken: t", nil, "the join bundle's addresses: at least one is needed"},
		"bad CA":          {head + "zone: east\ntoken: t\naddresses: ['a:1']\nca: x", nil, "the join bundle's ca is not a certificate in PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeZoneBundle([]byte(tc.data))
			require.ErrorContains(t, err, tc.want)
			if tc.is != nil {
				require.ErrorIs(t, err, tc.is)
			}
		})
	}
	_, err = ZoneBundle{}.Encode()
	require.Error(t, err)
}

// A server's bundle and a zone's are told apart, each where the other is wanted.
func TestServerBundles(t *testing.T) {
	want := ServerBundle{Cluster: "c1", Addresses: []string{"10.0.0.1:5685", "10.0.0.2:5685"}, CA: testCA(t), Token: "a.b.c"}
	data, err := want.Encode()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "second.bundle")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	got, err := LoadServerBundle(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = LoadZoneBundle(path)
	require.ErrorIs(t, err, ErrBundleKind)
	require.ErrorContains(t, err, "(--server-bundle of meridian-zone); a zone's comes from `meridian generate zone-token --bundle`")
	zone, err := testBundle(t).Encode()
	require.NoError(t, err)
	_, err = DecodeServerBundle(zone)
	require.ErrorIs(t, err, ErrBundleKind)
	require.ErrorContains(t, err, "for --join-bundle of meridian-zone; a server's comes from `meridian generate server-token --bundle`")

	const head = "kind: MeridianServerBundle\nversion: 1\n"
	for name, tc := range map[string]struct{ data, want string }{
		"no cluster":      {head + "token: t\naddresses: ['a:1']", "the join bundle names no cluster"},
		"no token":        {head + "cluster: c\naddresses: ['a:1']", "the join bundle has no token"},
		"no address":      {head + "cluster: c\ntoken: t", "the join bundle's addresses: at least one is needed"},
		"unknown field":   {string(data) + "more: 1\n", "the join bundle is damaged: "},
		"from the future": {"kind: MeridianServerBundle\nversion: 2", "it is of version 2, this release reads up to 1"},
	} {
		_, err := DecodeServerBundle([]byte(tc.data))
		require.ErrorContains(t, err, tc.want, name)
	}
	_, err = ServerBundle{}.Encode()
	require.Error(t, err)
}

func FuzzDecodeZoneBundle(f *testing.F) {
	// Without a CA: certificates are long, and not what is decoded here.
	seed := testBundle(f)
	seed.CA = ""
	good, err := seed.Encode()
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte("kind: MeridianZoneBundle\nversion: 1\nzone: [east]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := DecodeZoneBundle(data)
		if err != nil {
			return
		}
		again, err := b.Encode()
		require.NoError(t, err)
		back, err := DecodeZoneBundle(again)
		require.NoError(t, err)
		require.Equal(t, b, back)
	})
}

func FuzzDecodeServerBundle(f *testing.F) {
	good, err := ServerBundle{Cluster: "c1", Addresses: []string{"10.0.0.1:5685"}, Token: "a.b.c"}.Encode()
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte("kind: MeridianServerBundle\nversion: 1\ncluster: [c1]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := DecodeServerBundle(data)
		if err != nil {
			return
		}
		again, err := b.Encode()
		require.NoError(t, err)
		back, err := DecodeServerBundle(again)
		require.NoError(t, err)
		require.Equal(t, b, back)
	})
}
