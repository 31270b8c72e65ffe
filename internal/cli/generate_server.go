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
		Use:   "server-token --valid-for DURATION [--bundle]",
		Short: "Issue the token with which a server joins the global",
		Long: `Issue the token with which a server joins the global. The first server that
comes with it uses it up: every further one takes a token of its own.

With --bundle the output is everything that the new server needs in one file: the
addresses of the global's servers, their CA and the token. Protect it like a
password, and keep its validity short: a server that joins with it receives
everything that the global stores.

It takes membership of the group mesh-system:admin, which no role can grant.`,
		Example: `  meridian generate server-token --valid-for 1h --bundle > second.bundle
  meridian-global --data-dir /var/lib/meridian --name second --join-bundle second.bundle`,
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
	cmd.Flags().BoolVar(&bundle, "bundle", false, "print a join bundle: addresses, CA and token in one file")
	return cmd
}

func (a *app) generateServerToken(ctx context.Context, request *meridianv1.GenerateServerTokenRequest) error {
	response, err := call(ctx, a, (*client.Client).GenerateServerToken, request)
	if err != nil {
		return err
	}
	return a.printCredential(response.GetToken(), response.GetBundle())
}
