package clientconfig

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/pki"
)

func testCA(tb testing.TB) string {
	tb.Helper()
	ca, err := pki.NewCA(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	require.NoError(tb, err)
	return string(ca.CertificatePEM())
}

func TestContextsSurviveTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meridian", "config.yaml")
	_, err := LoadContexts(path)
	require.ErrorIs(t, err, fs.ErrNotExist)

	c := &Contexts{}
	require.NoError(t, c.Add(ControlPlane{Name: "prod", Addresses: []string{"a.example.org:5685", "[::1]:5685"}, CA: testCA(t), Token: "t"}, false))
	require.NoError(t, c.Add(ControlPlane{Name: "lab", Addresses: []string{"127.0.0.1:5685"}, Plaintext: true}, false))
	require.NoError(t, c.Switch("prod"))
	require.NoError(t, c.Save(path))
	require.NoError(t, c.Save(path), "saving replaces")
	back, err := LoadContexts(path)
	require.NoError(t, err)
	require.Equal(t, c, back)

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
}

func TestContextsAreEdited(t *testing.T) {
	c := &Contexts{}
	_, err := c.Get("")
	require.EqualError(t, err, "no such control plane: none is selected")
	lab := ControlPlane{Name: "lab", Addresses: []string{"127.0.0.1:5685"}}
	require.NoError(t, c.Add(lab, false))
	require.ErrorIs(t, c.Add(lab, false), ErrControlPlaneExists)
	lab.Token = "new"
	require.NoError(t, c.Add(lab, true))
	require.ErrorIs(t, c.Switch("prod"), ErrNoControlPlane)
	require.NoError(t, c.Switch("lab"))
	got, err := c.Get("")
	require.NoError(t, err)
	require.Equal(t, lab, got)
	_, err = c.Get("prod")
	require.EqualError(t, err, `no such control plane: "prod"`)
	require.ErrorIs(t, c.Remove("prod"), ErrNoControlPlane)
	require.NoError(t, c.Remove("lab"))
	require.Empty(t, c.Current)
	require.Error(t, c.Add(ControlPlane{Name: "x"}, false))
}

func TestBadContextsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ data, want string }{
		"unknown field":  {"chosen: a", "not a client configuration: "},
		"not YAML":       {"\tx", "not a client configuration: "},
		"no name":        {"controlPlanes: [{addresses: ['a:1']}]", "a control plane needs a name"},
		"no address":     {"controlPlanes: [{name: a}]", `control plane "a": addresses: at least one is needed`},
		"bad address":    {"controlPlanes: [{name: a, addresses: ['https://a:1']}]", `control plane "a": addresses[0]: "https://a:1" is not HOST:PORT`},
		"no port":        {"controlPlanes: [{name: a, addresses: ['a']}]", `"a" is not HOST:PORT`},
		"bad CA":         {"controlPlanes: [{name: a, addresses: ['a:1'], ca: x}]", `control plane "a": its CA holds no certificate in PEM`},
		"plaintext, TLS": {"controlPlanes: [{name: a, addresses: ['a:1'], plaintext: true, skipVerify: true}]", "plaintext has no certificates"},
		"twice":          {"controlPlanes: [{name: a, addresses: ['a:1']}, {name: a, addresses: ['a:1']}]", `"a" is listed twice`},
		"current absent": {"current: b", `no such control plane: current is "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeContexts([]byte(tc.data))
			require.ErrorContains(t, err, tc.want)
		})
	}
	empty, err := DecodeContexts(nil)
	require.NoError(t, err)
	require.Equal(t, &Contexts{}, empty)

	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("#", maxContextsBytes+1)), 0o600))
	_, err = LoadContexts(path)
	require.ErrorContains(t, err, "belong in such a file")
}

func FuzzDecodeContexts(f *testing.F) {
	f.Add([]byte("current: a\ncontrolPlanes:\n- name: a\n  addresses: [\"127.0.0.1:5685\"]\n  token: t\n"))
	f.Add([]byte("controlPlanes: 1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := DecodeContexts(data)
		if err != nil {
			return
		}
		again, err := c.Encode()
		require.NoError(t, err)
		back, err := DecodeContexts(again)
		require.NoError(t, err)
		require.Equal(t, c.Current, back.Current)
		require.Len(t, back.ControlPlanes, len(c.ControlPlanes))
	})
}
