package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/print"
	"meridian/internal/version"
)

func versionLine() string {
	return fmt.Sprintf("meridian %s (%s, %s/%s)", version.String(), version.GoVersion(), runtime.GOOS, runtime.GOARCH)
}

func newVersionCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of the command and of a server",
		Example: "  meridian version --server",
		Args:    exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	var server bool
	cmd.Flags().BoolVar(&server, "server", false, "also print the version of the contacted server")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		type serverView struct {
			Name    string `json:"name"`
			Role    string `json:"role"`
			Version string `json:"version"`
		}
		view := struct {
			Version  string      `json:"version"`
			Go       string      `json:"go"`
			Platform string      `json:"platform"`
			Server   *serverView `json:"server,omitempty"`
		}{version.String(), version.GoVersion(), runtime.GOOS + "/" + runtime.GOARCH, nil}
		text := versionLine()
		if server {
			info, err := call(cmd.Context(), a, (*client.Client).Info, &meridianv1.InfoRequest{})
			if err != nil {
				return err
			}
			view.Server = &serverView{info.GetName(), info.GetRole(), info.GetVersion()}
			text += fmt.Sprintf("\nserver %s %s (%s)", info.GetName(), info.GetVersion(), info.GetRole())
		}
		if output.Value.Structured() {
			return a.WriteValue(output.Value, view)
		}
		return a.Println(text)
	}
	return cmd
}
