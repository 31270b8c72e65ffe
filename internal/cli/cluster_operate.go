package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
)

func newLeaderCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "leader",
		Short:   "Show the current leader",
		Example: "  meridian cluster leader",
		Long: `Show the current leader. It exits with 5 when none is known: then nothing can be
written; ` + "`meridian cluster members`" + ` shows which servers are missing.`,
		Args: exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML, print.FormatName)
	a.bindZoneServers(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.showLeader(cmd.Context(), output.Value) }
	return cmd
}

func (a *app) showLeader(ctx context.Context, f print.Format) error {
	c, err := a.connectServers(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	members, err := members(ctx, c)
	if err != nil {
		return err
	}
	leading := &meridianv1.MembersResponse{}
	for _, m := range members.GetMembers() {
		if m.GetName() == members.GetLeader() {
			leading.Members = []*meridianv1.ClusterMember{m}
		}
	}
	switch {
	case len(leading.GetMembers()) == 0:
		return client.NoLeader(members)
	case f == print.FormatName:
		return a.Println(members.GetLeader())
	case f.Structured():
		return a.WriteValue(f, viewMember(leading.GetMembers()[0]))
	}
	return a.Table(memberTable(leading, f == print.FormatWide))
}

func newTransferLeadershipCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "transfer-leadership [SERVER]",
		Short:   "Transfer leadership to another server",
		Example: "  meridian cluster transfer-leadership global-2",
		Long: `Transfer leadership to the named server, or to the one whose log is furthest
along. Writes wait for a moment and none is lost. A server that is stopped in an
orderly way hands over by itself.

It takes membership of mesh-system:admin.`,
		Args:              between(0, "SERVER"),
		ValidArgsFunction: a.completeServers,
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &meridianv1.TransferLeadershipRequest{}
			if len(args) > 0 {
				request.To = args[0]
			}
			return a.transferLeadership(cmd.Context(), request)
		},
	}
	a.bindZoneServers(cmd)
	return cmd
}

func (a *app) transferLeadership(ctx context.Context, request *meridianv1.TransferLeadershipRequest) error {
	response, err := callServers(ctx, a, (*client.Client).TransferLeadership, request)
	if err != nil {
		return err
	}
	return a.Println(response.GetLeader() + " leads")
}

func newRemoveCommand(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "remove SERVER",
		Short: "Remove a server from the cluster permanently",
		Long: `Take a server out of the global, or of the zone. It does not come back by itself:
to bring it back, let it join as a new server, with a new data directory.

Stop the server first. One that runs is removed only with --force: it then stops
by itself once it finds out. What is never done, also not with --force, is to
remove a server without which the others could not decide anything.

Where the certificate authority is generated, every server has its key, and a
removed one keeps it until the authority is replaced (cluster rotate-ca): until
then the answer, ` + "`meridian status`" + ` and ` + "`meridian cluster members`" + ` say so.

It takes membership of mesh-system:admin.`,
		Example: `  meridian cluster members
  meridian cluster remove global-3`,
		Args:              exactly("SERVER"),
		ValidArgsFunction: a.completeServers,
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove a server that is running")
	a.bindZoneServers(cmd)
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.removeMember(cmd.Context(), &meridianv1.RemoveMemberRequest{Name: args[0], Force: force}, output.Value)
	}
	return cmd
}

// removedView is a removed server as JSON.
type removedView struct {
	Removed string `json:"removed"`
	// KnowsAuthority: it has the key of the certificate authority, until Next.
	KnowsAuthority bool   `json:"knowsAuthority"`
	Next           string `json:"next,omitempty"`
}

// rotateCACommand begins the replacement of the certificate authority.
const rotateCACommand = "meridian cluster rotate-ca start"

func (a *app) removeMember(ctx context.Context, request *meridianv1.RemoveMemberRequest, format print.Format) error {
	c, err := a.connectServers(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	attempts := 0
	removed := removedView{Removed: request.GetName()}
	err = c.Call(ctx, func(ctx context.Context) error {
		attempts++
		response, err := c.RemoveMember(ctx, request)
		removed.KnowsAuthority = response.GetKnowsAuthority()
		if attempts > 1 && status.Code(err) == codes.NotFound {
			// An earlier attempt did it, and its answer was lost.
			members, err := c.Members(ctx, &meridianv1.MembersRequest{})
			removed.KnowsAuthority = slices.Contains(members.GetAuthorityKnownTo(), request.GetName())
			return err
		}
		return err
	})
	var f *exit.Failure
	if errors.As(err, &f) && f.Code == exit.Timeout {
		return f.With("It may have been removed: `meridian cluster members` shows.")
	}
	if err != nil {
		return err
	}
	if removed.KnowsAuthority {
		removed.Next = rotateCACommand
	}
	if format.Structured() {
		return a.WriteValue(format, removed)
	}
	if removed.KnowsAuthority {
		a.Warn(request.GetName() + " has the key of the certificate authority, by which it can make itself a certificate of a server: replace the authority, with `" + rotateCACommand + "`")
	}
	return a.Println(request.GetName() + " removed")
}

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = 2 * time.Second

// completeServers offers the names of the servers for the first argument; none
// where they cannot be asked.
func (a *app) completeServers(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := a.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	members, err := c.Members(ctx, &meridianv1.MembersRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, m := range members.GetMembers() {
		names = append(names, cobra.CompletionWithDesc(m.GetName(), m.GetState()))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
