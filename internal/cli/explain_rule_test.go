package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/exit"
)

// Every rule that an answer cites can be read without the documentation.
func TestExplainRule(t *testing.T) {
	h := newHarness(t)
	page := h.ok("explain", "§3.3")
	require.True(t, strings.HasPrefix(page, "§3.3 Rank\n\nPolicies that match one attachment"), page)
	require.NotContains(t, page, "Tie-break", "only the rule asked for")
	require.Equal(t, page, h.ok("explain", "3.3"))
	require.Contains(t, h.ok("explain", "§3"), "§3.3  Rank")
	require.Contains(t, h.ok("explain", "§"), "§7.1   Acknowledged writes")
	require.Contains(t, h.ok("explain", "§", "-o", "name"), "§3.3\n")

	out := h.run("explain", "§3.30")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "Error: rule §3.30 not found: the nearest is §3.7 (Worked examples); `meridian explain §` lists the rules")
	require.Equal(t, exit.Usage, h.run("explain", "3.3", "conf").code)

	var view ruleView
	require.NoError(t, json.Unmarshal([]byte(h.ok("explain", "§3.4", "-o", "json")), &view))
	require.Equal(t, "3.4", view.Rule)
	require.Equal(t, "Tie-break", view.Title)
	require.Contains(t, view.Text, "the latest `modificationTime` wins")
	require.Empty(t, h.server.Calls, "explain needs no server")
}
