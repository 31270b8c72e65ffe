package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
)

func newGenerateUserTokenCommand(a *app) *cobra.Command {
	var (
		name     string
		groups   []string
		validFor time.Duration
		force    bool
		out      *outFile
	)
	cmd := &cobra.Command{
		Use:   "user-token --name NAME [--group GROUP]... --valid-for DURATION",
		Short: "Issue a token for a user of this control plane",
		Long: `Issue a token for a user of this control plane. What the user may do is decided
by the roles that are bound to its name and groups, here and not in any zone.

It takes the access GENERATE_USER_TOKEN, and every right that the user would
have.`,
		Example: `  meridian generate user-token --name bob --group team-a --valid-for 24h
  meridian generate user-token --name backend-owner --valid-for 24h --out owner.token
  meridian config control-planes add --name as-backend-owner --address 127.0.0.1:5685 \
    --ca-cert-file ca.pem --token-file owner.token`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return exit.Usagef("--name is required: the name of the user")
			}
			if err := checkValidFor(cmd, validFor); err != nil {
				return err
			}
			return a.issueToken(cmd.Context(), out, func(ctx context.Context, c *client.Client) (string, error) {
				r, err := c.GenerateUserToken(ctx, &meridianv1.GenerateUserTokenRequest{
					Name: name, Groups: groups, ValidForSeconds: int64(validFor / time.Second), Force: force,
				})
				return r.GetToken(), err
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the user (required)")
	cmd.Flags().StringSliceVar(&groups, "group", nil, "group of the user; may be repeated")
	bindValidFor(cmd, &validFor)
	out = bindOut(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "skip the privilege-escalation check (members of mesh-system:admin)")
	return cmd
}

func newGenerateDataplaneTokenCommand(a *app) *cobra.Command {
	var (
		name     string
		tags     []string
		validFor time.Duration
		out      *outFile
	)
	cmd := &cobra.Command{
		Use:   "dataplane-token [--mesh MESH] [--name NAME] [--tag NAME=VALUE]... --valid-for DURATION",
		Short: "Issue a token with which dataplanes register",
		Long: `Issue a token by which a dataplane registers with a zone. The dataplane must be
in the mesh, have the name if one is given, and have each of the tags on at least
one inbound, with no other value anywhere than those given here.

A token of the global opens every zone, one of a zone that zone alone.

It takes the access GENERATE_DATAPLANE_TOKEN.`,
		Example: `  meridian generate dataplane-token --mesh default --name web-1 --tag kuma.io/service=web --valid-for 720h
  meridian generate dataplane-token --tag kuma.io/service=web --tag kuma.io/service=web-admin --valid-for 24h`,
		Args: exactly(),
	}
	mesh := bindMesh(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		values, err := parseTagValues(tags)
		if err != nil {
			return err
		}
		if err := mesh.check(); err != nil {
			return err
		}
		if err := checkValidFor(cmd, validFor); err != nil {
			return err
		}
		return a.issueToken(cmd.Context(), out, func(ctx context.Context, c *client.Client) (string, error) {
			r, err := c.GenerateDataplaneToken(ctx, &meridianv1.GenerateDataplaneTokenRequest{
				Mesh: mesh.name, Name: name, Tags: values, ValidForSeconds: int64(validFor / time.Second),
			})
			return r.GetToken(), err
		})
	}
	cmd.Flags().StringVar(&name, "name", "", "restrict the token to this dataplane (default: any with the tags)")
	cmd.Flags().StringArrayVar(&tags, "tag", nil, "TAG=VALUE that the dataplane has; repeat a tag for more values")
	bindValidFor(cmd, &validFor)
	out = bindOut(cmd)
	return cmd
}

// parseTagValues reads NAME=VALUE pairs; a name that is repeated has several
// values.
func parseTagValues(pairs []string) ([]*meridianv1.TokenTagValues, error) {
	var out []*meridianv1.TokenTagValues
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" || value == "" {
			return nil, exit.Usagef("--tag %q: write NAME=VALUE", pair)
		}
		i := slices.IndexFunc(out, func(t *meridianv1.TokenTagValues) bool { return t.GetName() == name })
		if i < 0 {
			out = append(out, &meridianv1.TokenTagValues{Name: name})
			i = len(out) - 1
		}
		out[i].Values = append(out[i].Values, value)
	}
	return out, nil
}

// issueToken has a token issued and prints it alone.
func (a *app) issueToken(ctx context.Context, out *outFile, issue func(context.Context, *client.Client) (string, error)) error {
	return a.writing(ctx, out, func(ctx context.Context) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		var token string
		err = c.Call(ctx, func(ctx context.Context) (err error) {
			token, err = issue(ctx, c)
			return err
		})
		if err != nil {
			return err
		}
		return a.Println(token)
	})
}
