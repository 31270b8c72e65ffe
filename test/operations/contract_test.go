package operations

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"meridian/internal/global"
	"meridian/internal/zone"
)

// docs/contract.md lists every flag of the servers, and none that does not exist.
func TestContractListsTheFlagsOfServers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/contract.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Servers\n")
	require.True(t, found)
	section, _, found = strings.Cut(section, "\n## ")
	require.True(t, found)

	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	new(global.Config).Bind(flags)
	zones := pflag.NewFlagSet("zone", pflag.ContinueOnError)
	new(zone.Config).Bind(zones)
	flags.AddFlagSet(zones)

	listed := map[string]bool{"config": true} // defined as the flags are parsed
	for row := range strings.Lines(section) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		for _, m := range regexp.MustCompile("`--([a-z-]+)").FindAllStringSubmatch(cell, -1) {
			if strings.HasPrefix(row, "| `--") {
				require.True(t, m[1] == "config" || flags.Lookup(m[1]) != nil, "no server has --%s", m[1])
				listed[m[1]] = true
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) { require.True(t, listed[f.Name], "--%s is not listed", f.Name) })
}
