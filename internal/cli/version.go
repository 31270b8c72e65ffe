package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"meridian/internal/cli/print"
	"meridian/internal/version"
)

func versionLine() string {
	return fmt.Sprintf("meridian %s (%s, %s/%s)", version.String(), version.GoVersion(), runtime.GOOS, runtime.GOARCH)
}

func newVersionCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this command",
		Example: "  meridian version -o json",
		Args:    exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(*cobra.Command, []string) error {
		if !output.Value.Structured() {
			return a.Println(versionLine())
		}
		return a.WriteValue(output.Value, struct {
			Version  string `json:"version"`
			Go       string `json:"go"`
			Platform string `json:"platform"`
		}{version.String(), version.GoVersion(), runtime.GOOS + "/" + runtime.GOARCH})
	}
	return cmd
}
