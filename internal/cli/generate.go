package cli

import (
	"bytes"
	"context"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
)

func newGenerateCommand(a *app) *cobra.Command {
	group := newGroup("generate", "Issue credentials", newGenerateZoneTokenCommand(a))
	group.Long = "Issue credentials. The credential alone is printed on standard output."
	return group
}

func newGenerateZoneTokenCommand(a *app) *cobra.Command {
	var (
		zone     string
		validFor time.Duration
		bundle   bool
	)
	cmd := &cobra.Command{
		Use:   "zone-token --zone ZONE --valid-for DURATION [--bundle]",
		Short: "Issue the token by which a zone connects, creating the zone if there is none",
		Long: `Issue the token by which a zone connects to the global. A Zone that does not
exist yet is created, enabled.

With --bundle the output is everything the zone needs in one file: the global's
addresses, its CA and the token. Keep it as you would a password.`,
		Example: `  meridian generate zone-token --zone east --valid-for 24h --bundle > east.bundle
  meridian-zone --data-dir /var/lib/meridian --name east --join-bundle east.bundle`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case zone == "":
				return usagef("--zone is required: the name of the zone that will connect")
			case !cmd.Flags().Changed("valid-for"):
				return usagef("--valid-for is required, such as 24h")
			case validFor < time.Second:
				return usagef("--valid-for %s: a token is valid for at least one second", validFor)
			}
			return a.generateZoneToken(cmd.Context(), zone, validFor, bundle)
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "name of the zone (required)")
	cmd.Flags().DurationVar(&validFor, "valid-for", 0, "how long the token is valid, such as 24h (required)")
	cmd.Flags().BoolVar(&bundle, "bundle", false, "print a join bundle: addresses, CA and token in one file")
	return cmd
}

func (a *app) generateZoneToken(ctx context.Context, zone string, validFor time.Duration, bundle bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	var response *meridianv1.GenerateZoneTokenResponse
	err = c.call(ctx, func(ctx context.Context) (err error) {
		response, err = c.GenerateZoneToken(ctx, &meridianv1.GenerateZoneTokenRequest{
			Zone: zone, ValidForSeconds: int64(validFor / time.Second), Bundle: bundle,
		})
		return err
	})
	if err != nil {
		return err
	}
	if !bundle {
		return a.println(response.GetToken())
	}
	return a.write(append(bytes.TrimRight(response.GetBundle(), "\n"), '\n'))
}
