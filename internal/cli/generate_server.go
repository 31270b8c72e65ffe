package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
)

func newGenerateServerTokenCommand(a *app) *cobra.Command {
	var (
		validFor time.Duration
		bundle   bool
		out      *outFile
	)
	cmd := &cobra.Command{
		Use:   "server-token [--zone ZONE] --valid-for DURATION [--bundle]",
		Short: "Issue the token with which a server joins the others",
		Long: `Issue the token with which a server joins those of the global or zone that is
asked. The first server that comes with it uses it up: every further one takes a
token of its own.

With --bundle the output is everything that the new server needs in one file: the
addresses of the servers, their CA and the token. Protect it like a password, and
keep its validity short: a server that joins with it receives everything that the
others store.

A token for a zone is issued by a server of the zone alone: the global cannot let
a server into one. With --zone the command fails unless a server of that zone is
asked.

It takes membership of the group mesh-system:admin, which no role can grant.`,
		Example: `  meridian generate server-token --valid-for 1h --bundle > second.bundle
  meridian-global --data-dir /var/lib/meridian --name second --join-bundle second.bundle
  meridian generate server-token --zone east --context east --valid-for 1h --bundle > second.bundle`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkValidFor(cmd, validFor); err != nil {
				return err
			}
			return a.writing(cmd.Context(), out, func(ctx context.Context) error {
				return a.generateServerToken(ctx, &meridianv1.GenerateServerTokenRequest{
					ValidForSeconds: int64(validFor / time.Second), Bundle: bundle,
				})
			})
		},
	}
	bindValidFor(cmd, &validFor)
	out = bindOut(cmd)
	a.bindZoneServers(cmd)
	cmd.Flags().BoolVar(&bundle, "bundle", false, "print a join bundle: addresses, CA and token in one file")
	return cmd
}

func (a *app) generateServerToken(ctx context.Context, request *meridianv1.GenerateServerTokenRequest) error {
	response, err := callServers(ctx, a, (*client.Client).GenerateServerToken, request)
	if err != nil {
		return err
	}
	return a.printCredential(response.GetToken(), response.GetBundle())
}
