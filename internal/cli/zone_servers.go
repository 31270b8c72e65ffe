package cli

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/resource"
)

// bindZoneServers adds the flag by which a command about servers says whose servers it
// means. Such commands are not passed on by the global (ADR 75): the flag checks where the
// command has arrived.
func (a *app) bindZoneServers(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.zoneServers, "zone", "", "the servers of this zone: fail unless the server that is asked is one of them")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("zone") {
			return nil
		}
		if err := resource.CheckName(a.zoneServers); err != nil {
			return exit.Usagef("--zone: %w", err)
		}
		return nil
	}
}

// callServers is call to the servers that --zone means.
func callServers[Q, R any](ctx context.Context, a *app, method func(*client.Client, context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	c, err := a.connectServers(ctx)
	if err != nil {
		var none R
		return none, err
	}
	defer c.Close()
	return client.Ask(ctx, c, method, request)
}

// connectServers opens the control plane, and checks that it is the zone that --zone names.
func (a *app) connectServers(ctx context.Context) (*client.Client, error) {
	c, err := a.connect()
	if err != nil || a.zoneServers == "" {
		return c, err
	}
	info, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{})
	if err == nil {
		err = a.checkZoneServers(c, info)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (a *app) checkZoneServers(c *client.Client, info *meridianv1.InfoResponse) error {
	what := "a global"
	switch {
	case info.GetRole() == "global":
	case info.GetName() == a.zoneServers:
		return nil
	default:
		what = "zone " + info.GetName()
	}
	return exit.Usagef("--zone %s: %s is a server of %s, and what concerns the servers of a zone is asked of one of them: choose one by --address, --context or --config, such as admin.yaml of its data directory", a.zoneServers, c.Target, what)
}
