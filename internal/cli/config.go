package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/authn/token"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/clientconfig"
)

func newConfigCommand(a *app) *cobra.Command {
	controlPlanes := newGroup("control-planes", "Manage the known control planes",
		newConfigAddCommand(a), newConfigListCommand(a), newConfigSwitchCommand(a), newConfigRemoveCommand(a))
	return newGroup("config", "Manage the client configuration", controlPlanes)
}

// addOptions are the flags of config control-planes add.
type addOptions struct {
	name, address, authType, caFile string
	authConf                        []string
	skipVerify, overwrite           bool
}

func newConfigAddCommand(a *app) *cobra.Command {
	var o addOptions
	cmd := &cobra.Command{
		Use:   "add --name NAME --address HOST:PORT",
		Short: "Add a control plane and switch to it",
		Example: `  meridian config control-planes add --name prod --address cp.example.com:5685 \
    --ca-cert-file ca.pem --token-file bob.token`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return a.addControlPlane(&o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "name of the control plane (required)")
	flags.StringVar(&o.address, "address", "", "HOST:PORT of its servers, separated by commas (required)")
	flags.StringVar(&o.authType, "auth-type", "", "how to authenticate: tokens")
	flags.StringArrayVar(&o.authConf, "auth-conf", nil, "setting of the authentication: token=TOKEN")
	flags.StringVar(&o.caFile, "ca-cert-file", "", "PEM file of the CA to trust; its content is kept in the configuration")
	flags.BoolVar(&o.skipVerify, "skip-verify", false, "skip TLS certificate verification (insecure)")
	flags.BoolVar(&o.overwrite, "overwrite", false, "replace a control plane of the same name")
	return cmd
}

func (a *app) addControlPlane(o *addOptions) error {
	switch {
	case o.name == "":
		return exit.Usagef("--name is required")
	case o.address == "":
		return exit.Usagef("--address is required: HOST:PORT of the control plane's servers")
	}
	entry := clientconfig.ControlPlane{Name: o.name, SkipVerify: o.skipVerify}
	var err error
	if entry.Addresses, err = client.ParseAddresses(o.address); err != nil {
		return err
	}
	if entry.Token, err = a.tokenToKeep(o); err != nil {
		return err
	}
	if o.caFile != "" {
		pem, err := os.ReadFile(o.caFile)
		if err != nil {
			return exit.Usagef("--ca-cert-file: %w", err)
		}
		if entry.CA = string(pem); !clientconfig.HasCertificate(pem) {
			return exit.Usagef("--ca-cert-file: there is no certificate in %s", o.caFile)
		}
		if o.skipVerify {
			a.Message("With --skip-verify the server's certificate is not looked at: --ca-cert-file has no effect.")
		}
	}
	return a.editContexts(func(c *clientconfig.Contexts, path string) ([]string, error) {
		switch err := c.Add(entry, o.overwrite); {
		case errors.Is(err, clientconfig.ErrControlPlaneExists):
			return nil, exit.Failf(exit.Conflict, "there is a control plane %q in %s already", o.name, path).With("Replace it with --overwrite.")
		case err != nil:
			return nil, exit.Usagef("%w", err)
		}
		if err := c.Switch(o.name); err != nil {
			return nil, err
		}
		return []string{fmt.Sprintf("Added control plane %q to %s and switched to it.", o.name, path)}, nil
	})
}

// tokenToKeep returns the token that goes into the configuration: that of --token
// or --token-file, or that of the authentication settings. One of the environment
// stays there.
func (a *app) tokenToKeep(o *addOptions) (string, error) {
	given, source, err := a.connection.FlagToken()
	if err != nil || source == "" {
		if err == nil {
			return o.token()
		}
		return "", err
	}
	if len(o.authConf) > 0 || o.authType != "" && o.authType != "tokens" {
		return "", exit.Usagef("%s goes with --auth-type=tokens and without --auth-conf", source)
	}
	if err := token.CheckText(given); err != nil {
		return "", exit.Usagef("%s: %w", source, err)
	}
	return given, nil
}

// token reads the authentication settings.
func (o *addOptions) token() (string, error) {
	if o.authType == "" && len(o.authConf) == 0 {
		return "", nil
	}
	if o.authType == "" {
		return "", exit.Usagef("--auth-conf goes with --auth-type=tokens")
	}
	if o.authType != "tokens" {
		return "", exit.Usagef("--auth-type %q: the only type is tokens", o.authType)
	}
	text := ""
	for _, setting := range o.authConf {
		name, value, ok := strings.Cut(setting, "=")
		if !ok || name != "token" {
			// The value may be a token: it is not repeated.
			return "", exit.Usagef("--auth-conf: the only setting of tokens is token=TOKEN")
		}
		text = strings.TrimSpace(value)
	}
	if text == "" {
		return "", exit.Usagef("--auth-conf token=TOKEN is required with --auth-type=tokens; the token is empty")
	}
	if err := token.CheckText(text); err != nil {
		return "", exit.Usagef("--auth-conf: %w", err)
	}
	return text, nil
}

// edition changes the configuration file, and returns what to say once it is saved.
type edition func(c *clientconfig.Contexts, path string) (messages []string, err error)

// editContexts changes the configuration file and saves it if edit agrees.
func (a *app) editContexts(edit edition) error {
	c, path, err := a.loadContexts()
	if err != nil {
		return err
	}
	messages, err := edit(c, path)
	if err != nil {
		return err
	}
	if err := c.Save(path); err != nil {
		return exit.Failf(exit.Usage, "the configuration cannot be kept: %w", err)
	}
	for _, message := range messages {
		a.Message("%s", message)
	}
	return nil
}

// loadContexts reads the configuration file, an empty one if there is none.
func (a *app) loadContexts() (*clientconfig.Contexts, string, error) {
	path, _, err := a.connection.ConfigPath()
	if err != nil {
		return nil, "", err
	}
	c, err := clientconfig.LoadContexts(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &clientconfig.Contexts{}, path, nil
	case err != nil:
		return nil, "", exit.Failf(exit.Usage, "the configuration cannot be read: %w", err)
	}
	return c, path, nil
}

// controlPlaneView is an entry as JSON, without its secret.
type controlPlaneView struct {
	Name       string   `json:"name"`
	Current    bool     `json:"current"`
	Addresses  []string `json:"addresses"`
	Learned    []string `json:"learned,omitempty"`
	AuthType   string   `json:"authType"`
	SkipVerify bool     `json:"skipVerify"`
}

func newConfigListCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the control planes",
		Example: "  meridian config control-planes list",
		Args:    exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, path, err := a.loadContexts()
		if err != nil {
			return err
		}
		if len(c.ControlPlanes) == 0 {
			a.Message("There is no control plane in %s.", path)
		}
		return a.printContexts(output.Value, c)
	}
	return cmd
}

func (a *app) printContexts(f print.Format, c *clientconfig.Contexts) error {
	views := make([]controlPlaneView, len(c.ControlPlanes))
	t := &print.Table{Header: []string{"CURRENT", "NAME", "ADDRESS", "LEARNED", "AUTH"}}
	for i, cp := range c.ControlPlanes {
		views[i] = controlPlaneView{cp.Name, cp.Name == c.Current, cp.Addresses, cp.Learned, "", cp.SkipVerify}
		if cp.Token != "" {
			views[i].AuthType = "tokens"
		}
		mark := ""
		if views[i].Current {
			mark = "*"
		}
		t.Add(mark, cp.Name, strings.Join(cp.Addresses, ","), strings.Join(cp.Learned, ","), print.OrWord(views[i].AuthType, "none"))
	}
	switch {
	case f.Structured():
		return a.WriteValue(f, map[string]any{"items": views})
	case f == print.FormatName && len(views) > 0:
		return a.Println(strings.Join(client.ContextNames(c), "\n"))
	case len(views) == 0:
		return nil
	}
	return a.Table(t)
}

func newConfigSwitchCommand(a *app) *cobra.Command {
	return newConfigNameCommand(a, "switch", "Select the control plane to use", func(c *clientconfig.Contexts, name, path string) ([]string, error) {
		if err := c.Switch(name); err != nil {
			return nil, err
		}
		return []string{fmt.Sprintf("Switched to control plane %q in %s.", name, path)}, nil
	})
}

func newConfigRemoveCommand(a *app) *cobra.Command {
	return newConfigNameCommand(a, "remove", "Remove a control plane from the configuration", func(c *clientconfig.Contexts, name, path string) ([]string, error) {
		wasCurrent := c.Current == name
		if err := c.Remove(name); err != nil {
			return nil, err
		}
		messages := []string{fmt.Sprintf("Removed control plane %q from %s.", name, path)}
		if wasCurrent && len(c.ControlPlanes) > 0 {
			messages = append(messages, "None is chosen now; `meridian config control-planes switch` chooses one.")
		}
		return messages, nil
	})
}

// newConfigNameCommand returns a command that does something to an entry, named
// by --name or as the argument.
func newConfigNameCommand(a *app, use, short string, do func(c *clientconfig.Contexts, name, path string) ([]string, error)) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     use + " --name NAME",
		Short:   short,
		Example: "  meridian config control-planes " + use + " --name prod",
		Args:    between(0, "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && name != "" && args[0] != name:
				return exit.Usagef("--name %s and the argument %s are two names", name, args[0])
			case len(args) == 1:
				name = args[0]
			case name == "":
				return exit.Usagef("--name is required")
			}
			return a.editContexts(func(c *clientconfig.Contexts, path string) ([]string, error) {
				messages, err := do(c, name, path)
				if errors.Is(err, clientconfig.ErrNoControlPlane) {
					return nil, exit.Failf(exit.No, "there is no control plane %q in %s%s", name, path, exit.DidYouMean(name, client.ContextNames(c)))
				}
				return messages, err
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the control plane")
	return cmd
}
