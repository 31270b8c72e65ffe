package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/print"
	"meridian/internal/consensus"
)

func newClusterCommand(a *app) *cobra.Command {
	group := newGroup("cluster", "Operate the servers of a global or a zone",
		newMembersCommand(a), newLeaderCommand(a), newTransferLeadershipCommand(a), newRemoveCommand(a), newSnapshotCommand(a),
		newRecoverCommand(a), newRotateCACommand(a))
	group.Long = `Operate the servers of a global or a zone: who they are, which of them leads, how
one leaves, and how all that they hold is saved. Any server takes any of these; only
recover works on the data directory of a server that is stopped.

What concerns the servers of a zone is asked of one of them, and never passed on by
the global. --zone NAME makes a command fail that has arrived anywhere else.`
	return group
}

func newMembersCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "members",
		Short:   "List the servers and their state",
		Example: "  meridian cluster members -o wide\n  meridian cluster members --zone east --context east",
		Long: `Show the servers of the global, or of the zone, as the server that is asked knows
them. It needs no leader.

ENCRYPTION (-o wide) is the id of the key by which a server encrypts what it keeps
on disk, or none. A warning names the servers that do not, where others do.

States: leader, follower, candidate (it asks for votes), unreachable. A server
without a vote is new and catches up; it is given one by itself.`,
		Args: exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML, print.FormatName)
	a.bindZoneServers(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.connectServers(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		members, err := members(cmd.Context(), c)
		if err != nil {
			return err
		}
		return a.printMembers(output.Value, members)
	}
	return cmd
}

// members lists the servers as one of them knows them.
func members(ctx context.Context, c *client.Client) (*meridianv1.MembersResponse, error) {
	return client.Ask(ctx, c, (*client.Client).Members, &meridianv1.MembersRequest{})
}

// memberView is a server as JSON. The first keys are fixed by docs/contract.md.
type memberView struct {
	Name            string `json:"name"`
	GRPC            string `json:"grpc"`
	Raft            string `json:"raft"`
	State           string `json:"state"`
	Voter           bool   `json:"voter"`
	AppliedRevision uint64 `json:"appliedRevision"`
	Version         string `json:"version"`
	Problem         string `json:"problem,omitempty"`
	// Encryption is the id of the key that it encrypts its disk with, or "none".
	Encryption string `json:"encryption,omitempty"`
}

func viewMember(m *meridianv1.ClusterMember) memberView {
	return memberView{
		Name: m.GetName(), GRPC: m.GetGrpc(), Raft: m.GetRaft(), State: m.GetState(), Voter: m.GetVoter(),
		AppliedRevision: m.GetAppliedRevision(), Version: m.GetVersion(), Problem: m.GetProblem(), Encryption: m.GetEncryption(),
	}
}

func (a *app) printMembers(f print.Format, members *meridianv1.MembersResponse) error {
	switch {
	case f.Structured():
		views := make([]memberView, len(members.GetMembers()))
		for i, m := range members.GetMembers() {
			views[i] = viewMember(m)
		}
		return a.WriteValue(f, views)
	case f == print.FormatName:
		for _, m := range members.GetMembers() {
			if err := a.Println(m.GetName()); err != nil {
				return err
			}
		}
		return nil
	}
	if members.GetLeader() == "" {
		a.Warn("server " + members.GetSelf() + " has no leader: writes are refused until one is elected")
	}
	if plain := plainMembers(members); len(plain) > 0 {
		a.Warn("not encrypted at rest, while other servers encrypt: " + strings.Join(plain, ", ") + "; start with --encryption-key-file")
	}
	if knows := members.GetAuthorityKnownTo(); len(knows) > 0 {
		a.Warn(knowAuthority(knows))
	}
	return a.Table(memberTable(members, f == print.FormatWide))
}

// knowAuthority says that removed servers have the key of the certificate authority.
func knowAuthority(removed []string) string {
	return "removed servers that have the key of the certificate authority: " + strings.Join(removed, ", ") + "; replace the authority, with `meridian cluster rotate-ca`"
}

// plainMembers are the servers that do not encrypt what they keep on disk, where
// another one does.
func plainMembers(members *meridianv1.MembersResponse) (plain []string) {
	encrypts := false
	for _, m := range members.GetMembers() {
		switch m.GetEncryption() {
		case "":
		case consensus.NotEncrypted:
			plain = append(plain, m.GetName())
		default:
			encrypts = true
		}
	}
	if !encrypts {
		return nil
	}
	return plain
}

func memberTable(members *meridianv1.MembersResponse, wide bool) *print.Table {
	t := &print.Table{Header: []string{"NAME", "STATE", "VOTER", "REVISION", "GRPC", "PROBLEM"}}
	if wide {
		t.Header = []string{"NAME", "STATE", "VOTER", "REVISION", "GRPC", "RAFT", "VERSION", "ENCRYPTION", "PROBLEM"}
	}
	for _, m := range members.GetMembers() {
		row := []string{m.GetName(), m.GetState(), print.YesNo(m.GetVoter()), strconv.FormatUint(m.GetAppliedRevision(), 10), m.GetGrpc()}
		if m.GetState() == client.StateUnreachable {
			row[3] = "" // it does not say
		}
		if wide {
			row = append(row, m.GetRaft(), m.GetVersion(), m.GetEncryption())
		}
		t.Add(append(row, m.GetProblem())...)
	}
	return t
}
