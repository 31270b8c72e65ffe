package cli

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
)

func newGenerateCommand(a *app) *cobra.Command {
	group := newGroup("generate", "Issue credentials",
		newGenerateUserTokenCommand(a), newGenerateDataplaneTokenCommand(a), newGenerateZoneTokenCommand(a), newGenerateServerTokenCommand(a))
	group.Long = "Issue credentials. The credential alone is printed on standard output."
	return group
}

func newGenerateZoneTokenCommand(a *app) *cobra.Command {
	var (
		zone     string
		validFor time.Duration
		bundle   bool
		out      *outFile
		scope    []string
	)
	cmd := &cobra.Command{
		Use:   "zone-token --zone ZONE --valid-for DURATION [--bundle] [--scope SCOPE]",
		Short: "Issue the token with which a zone connects",
		Long: `Issue the token by which a zone connects to the global. A Zone that does not
exist yet is created, enabled.

With --bundle the output is everything the zone needs in one file: the global's
addresses, its CA and the token. Protect it like a password.

It takes the access GENERATE_ZONE_CP_TOKEN; with --scope ingress or egress, for
the zone's proxies and not for its control plane, GENERATE_ZONE_TOKEN.`,
		Example: `  meridian generate zone-token --zone east --valid-for 24h --bundle > east.bundle
  meridian-zone --data-dir /var/lib/meridian --name east --join-bundle east.bundle`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if zone == "" {
				return exit.Usagef("--zone is required: the name of the zone that will connect")
			}
			if err := checkValidFor(cmd, validFor); err != nil {
				return err
			}
			if bundle && len(scope) > 0 && !slices.Contains(scope, token.ScopeControlPlane) {
				return exit.Usagef("--bundle is what a zone's control plane joins with: it does not go with --scope %s alone", strings.Join(scope, ","))
			}
			return a.writing(cmd.Context(), out, func(ctx context.Context) error {
				return a.generateZoneToken(ctx, &meridianv1.GenerateZoneTokenRequest{
					Zone: zone, ValidForSeconds: int64(validFor / time.Second), Bundle: bundle, Scope: scope,
				})
			})
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "name of the zone (required)")
	bindValidFor(cmd, &validFor)
	out = bindOut(cmd)
	cmd.Flags().StringSliceVar(&scope, "scope", nil, "scope: cp (default), ingress, egress")
	cmd.Flags().BoolVar(&bundle, "bundle", false, "print a join bundle: addresses, CA and token in one file")
	return cmd
}

func bindValidFor(cmd *cobra.Command, validFor *time.Duration) {
	bindDuration(cmd.Flags(), validFor, "valid-for", "how long the token is valid, such as 24h or 30d (required)")
}

func checkValidFor(cmd *cobra.Command, validFor time.Duration) error {
	switch {
	case !cmd.Flags().Changed("valid-for"):
		return exit.Usagef("--valid-for is required, such as 24h")
	case validFor < time.Second:
		return exit.Usagef("--valid-for %s: a token is valid for at least one second", validFor)
	}
	return nil
}

func (a *app) generateZoneToken(ctx context.Context, request *meridianv1.GenerateZoneTokenRequest) error {
	response, err := call(ctx, a, (*client.Client).GenerateZoneToken, request)
	if err != nil {
		return err
	}
	return a.printCredential(response.GetToken(), response.GetBundle())
}

// printCredential prints a token, or the bundle that holds it.
func (a *app) printCredential(token string, bundle []byte) error {
	if len(bundle) == 0 {
		return a.Println(token)
	}
	return a.Output(append(bytes.TrimRight(bundle, "\n"), '\n'))
}
