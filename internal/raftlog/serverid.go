package raftlog

import (
	"strings"

	"github.com/hashicorp/raft"
)

// DiskMark separates the name of a server from the disk that it runs on, in what
// raft knows it by. Names are identities to people; to raft a server that comes
// back with another disk is another server, since it has forgotten what it
// promised. So neither a server that lost its disk nor a disk that was replaced
// and returns can vote, or confirm entries, in the name of the other.
const DiskMark = "#"

// ServerID is what raft knows a server by.
func (id Identity) ServerID() raft.ServerID { return ServerID(id.NodeID, id.Disk) }

// ServerID returns what raft knows a server of a name and a disk by.
func ServerID(name, disk string) raft.ServerID {
	if disk == "" {
		return raft.ServerID(name)
	}
	return raft.ServerID(name + DiskMark + disk)
}

// NameOf returns the name of a server by what raft knows it by.
func NameOf[ID ~string](id ID) string {
	name, _, _ := strings.Cut(string(id), DiskMark)
	return name
}

// DiskOf returns the disk of a server by what raft knows it by.
func DiskOf(id raft.ServerID) string {
	_, disk, _ := strings.Cut(string(id), DiskMark)
	return disk
}
