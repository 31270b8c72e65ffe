package cli

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/authn"
)

func newConfigCommand(a *app) *cobra.Command {
	controlPlanes := newGroup("control-planes", "The control planes this command knows",
		newConfigAddCommand(a), newConfigListCommand(a), newConfigSwitchCommand(a), newConfigRemoveCommand(a))
	return newGroup("config", "Manage this command's own configuration", controlPlanes)
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
    --ca-cert-file ca.pem --auth-type=tokens --auth-conf token="$TOKEN"`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return a.addControlPlane(&o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "name to call it by (required)")
	flags.StringVar(&o.address, "address", "", "HOST:PORT of its servers, separated by commas (required)")
	flags.StringVar(&o.authType, "auth-type", "", "how to authenticate: tokens")
	flags.StringArrayVar(&o.authConf, "auth-conf", nil, "setting of the authentication: token=TOKEN")
	flags.StringVar(&o.caFile, "ca-cert-file", "", "PEM file of the CA to trust; its content is kept in the configuration")
	flags.BoolVar(&o.skipVerify, "skip-verify", false, "believe any server certificate (for experiments only)")
	flags.BoolVar(&o.overwrite, "overwrite", false, "replace a control plane of the same name")
	return cmd
}

func (a *app) addControlPlane(o *addOptions) error {
	switch {
	case o.name == "":
		return usagef("--name is required")
	case o.address == "":
		return usagef("--address is required: HOST:PORT of the control plane's servers")
	}
	entry := authn.ControlPlane{Name: o.name, SkipVerify: o.skipVerify}
	var err error
	if entry.Addresses, err = parseAddresses(o.address); err != nil {
		return err
	}
	if entry.Token, err = o.token(); err != nil {
		return err
	}
	if o.caFile != "" {
		pem, err := os.ReadFile(o.caFile)
		if err != nil {
			return usagef("--ca-cert-file: %w", err)
		}
		if entry.CA = string(pem); !authn.HasCertificate(pem) {
			return usagef("--ca-cert-file: there is no certificate in %s", o.caFile)
		}
		if o.skipVerify {
			a.message("With --skip-verify the server's certificate is not looked at: --ca-cert-file has no effect.")
		}
	}
	return a.editContexts(func(c *authn.Contexts, path string) error {
		switch err := c.Add(entry, o.overwrite); {
		case errors.Is(err, authn.ErrControlPlaneExists):
			return failf(exitConflict, "there is a control plane %q in %s already", o.name, path).with("Replace it with --overwrite.")
		case err != nil:
			return usagef("%w", err)
		}
		if err := c.Switch(o.name); err != nil {
			return err
		}
		a.message("Added control plane %q to %s and switched to it.", o.name, path)
		return nil
	})
}

// token reads the authentication settings.
func (o *addOptions) token() (string, error) {
	if o.authType == "" && len(o.authConf) == 0 {
		return "", nil
	}
	if o.authType == "" {
		return "", usagef("--auth-conf goes with --auth-type=tokens")
	}
	if o.authType != "tokens" {
		return "", usagef("--auth-type %q: the only type is tokens", o.authType)
	}
	token := ""
	for _, setting := range o.authConf {
		name, value, ok := strings.Cut(setting, "=")
		if !ok || name != "token" {
			// What stands here may be a token: it is not repeated.
			return "", usagef("--auth-conf: the only setting of tokens is token=TOKEN")
		}
		token = strings.TrimSpace(value)
	}
	if token == "" {
		return "", usagef("--auth-conf token=TOKEN is required with --auth-type=tokens; the token is empty")
	}
	if err := authn.CheckTokenText(token); err != nil {
		return "", usagef("--auth-conf: %w", err)
	}
	return token, nil
}

// editContexts changes the configuration file and saves it if edit agrees.
func (a *app) editContexts(edit func(c *authn.Contexts, path string) error) error {
	c, path, err := a.loadContexts()
	if err != nil {
		return err
	}
	if err := edit(c, path); err != nil {
		return err
	}
	if err := c.Save(path); err != nil {
		return failf(exitUsage, "the configuration cannot be kept: %w", err)
	}
	return nil
}

// loadContexts reads the configuration file, an empty one if there is none.
func (a *app) loadContexts() (*authn.Contexts, string, error) {
	path, _, err := a.configPath()
	if err != nil {
		return nil, "", err
	}
	c, err := authn.LoadContexts(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &authn.Contexts{}, path, nil
	case err != nil:
		return nil, "", failf(exitUsage, "the configuration cannot be read: %w", err)
	}
	return c, path, nil
}

// controlPlaneView is an entry as JSON, without its secret.
type controlPlaneView struct {
	Name       string   `json:"name"`
	Current    bool     `json:"current"`
	Addresses  []string `json:"addresses"`
	AuthType   string   `json:"authType"`
	SkipVerify bool     `json:"skipVerify"`
}

func newConfigListCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the control planes",
		Args:  exactly(),
	}
	output := bindFormat(cmd.Flags(), formatTable, formatJSON, formatYAML, formatName)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, path, err := a.loadContexts()
		if err != nil {
			return err
		}
		if len(c.ControlPlanes) == 0 {
			a.message("There is no control plane in %s.", path)
		}
		return a.printContexts(output.value, c)
	}
	return cmd
}

func (a *app) printContexts(f format, c *authn.Contexts) error {
	views := make([]controlPlaneView, len(c.ControlPlanes))
	t := &table{header: []string{"CURRENT", "NAME", "ADDRESS", "AUTH"}}
	for i, cp := range c.ControlPlanes {
		views[i] = controlPlaneView{cp.Name, cp.Name == c.Current, cp.Addresses, "", cp.SkipVerify}
		if cp.Token != "" {
			views[i].AuthType = "tokens"
		}
		mark := ""
		if views[i].Current {
			mark = "*"
		}
		t.add(mark, cp.Name, strings.Join(cp.Addresses, ","), orWord(views[i].AuthType, "none"))
	}
	switch {
	case f.structured():
		return a.writeValue(f, map[string]any{"items": views})
	case f == formatName && len(views) > 0:
		return a.println(strings.Join(contextNames(c), "\n"))
	case len(views) == 0:
		return nil
	}
	return a.write([]byte(t.String()))
}

func newConfigSwitchCommand(a *app) *cobra.Command {
	return newConfigNameCommand(a, "switch", "Make a control plane the one that is used", func(c *authn.Contexts, name, path string) error {
		if err := c.Switch(name); err != nil {
			return err
		}
		a.message("Switched to control plane %q in %s.", name, path)
		return nil
	})
}

func newConfigRemoveCommand(a *app) *cobra.Command {
	return newConfigNameCommand(a, "remove", "Forget a control plane", func(c *authn.Contexts, name, path string) error {
		wasCurrent := c.Current == name
		if err := c.Remove(name); err != nil {
			return err
		}
		a.message("Removed control plane %q from %s.", name, path)
		if wasCurrent && len(c.ControlPlanes) > 0 {
			a.message("None is chosen now; `meridian config control-planes switch` chooses one.")
		}
		return nil
	})
}

// newConfigNameCommand returns a command that does something to an entry, named
// by --name or as the argument.
func newConfigNameCommand(a *app, use, short string, do func(c *authn.Contexts, name, path string) error) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   use + " --name NAME",
		Short: short,
		Args:  between(0, "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && name != "" && args[0] != name:
				return usagef("--name %s and the argument %s are two names", name, args[0])
			case len(args) == 1:
				name = args[0]
			case name == "":
				return usagef("--name is required")
			}
			return a.editContexts(func(c *authn.Contexts, path string) error {
				err := do(c, name, path)
				if errors.Is(err, authn.ErrNoControlPlane) {
					return failf(exitNo, "there is no control plane %q in %s%s", name, path, didYouMean(name, contextNames(c)))
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the control plane")
	return cmd
}
