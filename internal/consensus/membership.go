package consensus

import (
	"github.com/hashicorp/raft"

	peerv1 "meridian/api/peer/v1"
)

// memberAddresses returns the members as this server knows them.
func (n *Node) memberAddresses() []*peerv1.MemberAddress {
	servers := n.raft.GetConfiguration().Configuration().Servers
	members := make([]*peerv1.MemberAddress, 0, len(servers))
	for _, s := range servers {
		members = append(members, &peerv1.MemberAddress{
			Name: string(s.ID), Raft: string(s.Address), Voter: s.Suffrage == raft.Voter,
		})
	}
	return members
}
