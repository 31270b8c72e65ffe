package clientconfig

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a server names is added after what the user wrote, and replaces what was
// learned before; an entry that cannot verify it, or that is for one server, learns
// nothing.
func TestLearnServers(t *testing.T) {
	many := make([]string, maxServers+1)
	for i := range many {
		many[i] = fmt.Sprintf("10.0.1.%d:5685", i)
	}
	ca := testCA(t)
	for name, tc := range map[string]struct {
		entry   func(*ControlPlane)
		named   string
		learned []string // afterwards
	}{
		"others":                        {named: "10.0.0.3:5685,10.0.0.1:5685,10.0.0.2:5685,10.0.0.2:5685", learned: []string{"10.0.0.2:5685", "10.0.0.3:5685"}},
		"one has gone":                  {entry: func(c *ControlPlane) { c.Learned = []string{"10.0.0.2:5685", "10.0.0.3:5685"} }, named: "10.0.0.1:5685,10.0.0.2:5685", learned: []string{"10.0.0.2:5685"}},
		"the only one, by another name": {named: "one.example:5685"},
		"the others have gone":          {entry: func(c *ControlPlane) { c.Learned = []string{"10.0.0.2:5685"} }, named: "10.0.0.1:5685"},
		"nothing new":                   {entry: func(c *ControlPlane) { c.Learned = []string{"10.0.0.2:5685"} }, named: "10.0.0.2:5685,10.0.0.1:5685", learned: []string{"10.0.0.2:5685"}},
		"loopback, from elsewhere":      {named: "127.0.0.1:5685,localhost:5685,[::1]:5685"},
		"loopback, from loopback":       {entry: func(c *ControlPlane) { c.Addresses = []string{"127.0.0.1:1"} }, named: "127.0.0.1:1,127.0.0.1:2", learned: []string{"127.0.0.1:2"}},
		"not addresses":                 {entry: func(c *ControlPlane) { c.Learned = []string{"10.0.0.2:5685"} }, named: "10.0.0.3:5685,nonsense", learned: []string{"10.0.0.2:5685"}},
		"too many":                      {named: strings.Join(many, ",")},
		"too long":                      {named: strings.Repeat("x", maxServersBytes) + ":1"},
		"without an authority":          {entry: func(c *ControlPlane) { c.CA = "" }, named: "10.0.0.1:5685,10.0.0.2:5685"},
		"without verification":          {entry: func(c *ControlPlane) { c.SkipVerify = true }, named: "10.0.0.1:5685,10.0.0.2:5685"},
		"plaintext":                     {entry: func(c *ControlPlane) { c.CA, c.Plaintext = "", true }, named: "10.0.0.1:5685,10.0.0.2:5685"},
		"an entry for a server alone":   {entry: func(c *ControlPlane) { c.OneServer = true }, named: "10.0.0.1:5685,10.0.0.2:5685"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			entry := ControlPlane{Name: "g", Addresses: []string{"10.0.0.1:5685"}, CA: ca, Token: "secret"}
			if tc.entry != nil {
				tc.entry(&entry)
			}
			before := &Contexts{}
			require.NoError(t, before.Add(entry, false))
			require.NoError(t, before.Add(ControlPlane{Name: "other", Addresses: []string{"10.9.9.9:1"}}, false))
			require.NoError(t, before.Save(path))
			known, err := LearnServers(path, entry, []byte(tc.named))
			require.NoError(t, err)
			after, err := LoadContexts(path)
			require.NoError(t, err)
			got, err := after.Get("g")
			require.NoError(t, err)
			require.Equal(t, tc.learned, got.Learned)
			if len(known) > 0 {
				require.Equal(t, got.AllServers(), known)
			}
			got.Learned = entry.Learned
			require.Equal(t, entry, got, "nothing else changes")
		})
	}
}

// An entry that the user has changed meanwhile stays as it is.
func TestLearnServersOfAnotherEntry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	used := ControlPlane{Name: "g", Addresses: []string{"10.0.0.1:5685"}, CA: testCA(t)}
	for name, change := range map[string]func(*ControlPlane){
		"moved":        func(c *ControlPlane) { c.Addresses = []string{"10.0.0.9:5685"} },
		"another CA":   func(c *ControlPlane) { c.CA += testCA(t) },
		"learned else": func(c *ControlPlane) { c.Learned = []string{"10.0.0.7:5685"} },
		"not verified": func(c *ControlPlane) { c.SkipVerify = true },
		"removed":      func(c *ControlPlane) { c.Name = "h" },
	} {
		stored := used
		change(&stored)
		contexts := &Contexts{}
		require.NoError(t, contexts.Add(stored, false))
		require.NoError(t, contexts.Save(path))
		known, err := LearnServers(path, used, []byte("10.0.0.1:5685,10.0.0.2:5685"))
		require.NoError(t, err, name)
		require.Empty(t, known, name)
		after, err := LoadContexts(path)
		require.NoError(t, err)
		require.Equal(t, []ControlPlane{stored}, after.ControlPlanes, name)
	}
}
