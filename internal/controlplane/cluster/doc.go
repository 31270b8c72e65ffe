// Package cluster is what makes a server one of several: how it joins, finds the others,
// and what they keep about each other. The servers of a global are a cluster, and so are
// those of a zone.
//
// It guarantees:
//
//   - A server is accepted by a one-time token and receives the authority and the gossip
//     keys of the cluster. What it has received is on its disk before it continues, and an
//     interrupted attempt is taken up again.
//   - A server that was removed is refused by the others, for as long as that is remembered:
//     its disk, its certificate and its gossip key give no way back.
//   - What a control plane begins with is written once, by the leader.
//   - A server that cannot make sure that it is up to date says so within suspendAfter, and
//     is notified when it can again (Hooks).
//   - A server that stops transfers leadership first.
//
// Non-goals: the log and who is a member, which is internal/consensus; what the servers are
// for.
package cluster
