package cluster

import (
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/server"
)

// Kind is what the servers of a cluster are those of.
type Kind struct {
	// Role is that of their data directories.
	Role consensus.Role
	// NameFlag names a server, and BundleFlag the bundle to join by.
	NameFlag, BundleFlag string
	// PeerName is the name by which a certificate of an operator's authority is that of a
	// server.
	PeerName string
	// RaftAddr and GossipAddr are where a server listens unless it is told.
	RaftAddr, GossipAddr string
}

// The kinds of clusters.
var (
	Global = Kind{
		Role: consensus.RoleGlobal, NameFlag: "name", BundleFlag: "join-bundle", PeerName: "meridian-global",
		RaftAddr: "127.0.0.1:5690", GossipAddr: "127.0.0.1:5691",
	}
	// A zone of one server listens for no others: raft-addr is off.
	Zone = Kind{
		Role: consensus.RoleZone, NameFlag: "server-name", BundleFlag: "server-bundle", PeerName: "meridian-zone",
		GossipAddr: "127.0.0.1:5693",
	}
)

// String is the word for the control plane.
func (k Kind) String() string { return string(k.Role) }

// Config is how a server is one of several.
type Config struct {
	server.Options
	Kind Kind
	// Zone is the name of the zone that the server is one of, and Federated whether it
	// follows a global; empty for a server of a global.
	Zone      string
	Federated bool
	// InheritsGlobal is whether it takes from the server that lets it in how it reaches the
	// global.
	InheritsGlobal bool
	// Name is the server's, for as long as its data directory lives. Empty: the
	// one that the directory was first used with, else this host's.
	Name string
	// RaftAddr is where other servers reach this one.
	RaftAddr string
	// AdvertiseRaftAddr is the host:port by which other servers reach RaftAddr,
	// the bound one when empty.
	AdvertiseRaftAddr string
	// GossipAddr is where servers tell each other their addresses.
	GossipAddr string
	// GossipKeyFile holds the key of gossip in base64, in place of the generated
	// one.
	GossipKeyFile string
	// JoinBundle is the file with what a new server joins by; it is used once.
	JoinBundle string
	// PeerNames are the subject alternative names of which another server's
	// certificate must have one, where the certificates are given.
	PeerNames []string
	// Join are addresses of servers to join or find, where the certificates are given.
	Join []string
}

// Bind defines the flags of the configuration, beside those of server.Options.
func (c *Config) Bind(flags *pflag.FlagSet, kind Kind) {
	c.Kind = kind
	flags.StringVar(&c.Name, kind.NameFlag, "", "name of this server, for as long as its data directory lives (default: what the directory says, else the name of this host)")
	flags.StringVar(&c.RaftAddr, "raft-addr", kind.RaftAddr, "host:port for the other servers of this "+kind.String()+"; port 0 is any free port")
	flags.StringVar(&c.AdvertiseRaftAddr, "advertise-raft-addr", "", "host:port by which the other servers reach --raft-addr, where that is not what they should dial")
	flags.StringVar(&c.GossipAddr, "gossip-addr", kind.GossipAddr, "host:port at which servers of this "+kind.String()+" find each other, TCP and UDP, encrypted; port 0 is any free port")
	flags.StringVar(&c.GossipKeyFile, "gossip-key-file", "", "file with the base64 key that gossip is encrypted with, in place of the generated one")
	flags.StringVar(&c.JoinBundle, kind.BundleFlag, "", "file made by meridian generate server-token --bundle on a running server: this one joins its "+kind.String()+", once, with a new data directory")
	flags.StringSliceVar(&c.Join, "join", nil, "host:port of servers of the "+kind.String()+" to join, separated by commas: where --ca-file, --cert-file, --key-file and --gossip-key-file stand in for --"+kind.BundleFlag)
	flags.StringSliceVar(&c.PeerNames, "peer-names", []string{kind.PeerName}, "with --ca-file: names, separated by commas, of which a certificate must have one as a subject alternative name to be that of a server of this "+kind.String())
}

// Validate reports the first setting that cannot work, as a *server.UsageError.
func (c *Config) Validate() error {
	if err := c.Options.Validate(); err != nil {
		return err
	}
	usage := func(format string, args ...any) error {
		return &server.UsageError{Err: fmt.Errorf(format, args...)}
	}
	given := c.CAFile != "" && c.CertFile != "" && c.GossipKeyFile != ""
	switch {
	case c.JoinBundle != "" && len(c.Join) > 0:
		return usage("--%s already holds what --join says: give one or the other", c.Kind.BundleFlag)
	case c.JoinBundle != "" && c.CAFile != "":
		return usage("--%s has this server's certificate made; with one of its own (--ca-file) it joins by --join, without a bundle", c.Kind.BundleFlag)
	case len(c.Join) > 0 && !given:
		return usage("--join goes with --ca-file, --cert-file, --key-file and --gossip-key-file, by which the servers know each other; without those, join by --%s", c.Kind.BundleFlag)
	}
	if c.AdvertiseRaftAddr != "" && !hasHostAndPort(c.AdvertiseRaftAddr) {
		return usage("--advertise-raft-addr %s: write host:port", c.AdvertiseRaftAddr)
	}
	if slices.Contains(c.PeerNames, "") {
		return usage("--peer-names: none of the names may be empty")
	}
	for _, addr := range c.Join {
		if !hasHostAndPort(addr) {
			return usage("--join %s: write host:port", addr)
		}
	}
	if c.Name != "" {
		if err := checkServerName(c.Name); err != nil {
			return usage("--%s: %w", c.Kind.NameFlag, err)
		}
	}
	return nil
}

// peerNames are the names of which another server's certificate must have one.
func (c *Config) peerNames() []string {
	if len(c.PeerNames) == 0 {
		return []string{c.Kind.PeerName}
	}
	return c.PeerNames
}

func hasHostAndPort(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	return err == nil && host != "" && port != ""
}

// advertisedRaft is the host:port by which other servers reach addr, where this
// one listens for them: the name of this host where it listens on every address;
// empty for the bound one.
func (c *Config) advertisedRaft(addr string) string {
	if c.AdvertiseRaftAddr != "" {
		return c.AdvertiseRaftAddr
	}
	if named := server.Dialable(addr); named != addr {
		return named
	}
	return ""
}

// reaches are the addresses by which other servers reach this one.
func (c *Config) reaches() []server.Reach {
	all := []server.Reach{{Flag: "raft-addr", Addr: c.RaftAddr}, {Flag: "gossip-addr", Addr: c.GossipAddr}}
	if c.AdvertiseRaftAddr != "" {
		all = append(all, server.Reach{Flag: "advertise-raft-addr", Addr: c.AdvertiseRaftAddr})
	}
	return all
}

// gossipHost is the host by which other servers reach GossipAddr; empty for its
// answerInherited or, where it listens on every address, whichever gossip finds.
func (c *Config) gossipHost() string {
	if server.Dialable(c.GossipAddr) == c.GossipAddr {
		return ""
	}
	host, _, err := net.SplitHostPort(c.AdvertiseRaftAddr)
	if err != nil {
		return ""
	}
	return host
}

// ServerName is the name this server goes by. A host that is renamed, or a
// container that gets another name at every start, stays the same server.
func (c *Config) ServerName() string {
	if c.Name != "" {
		return c.Name
	}
	if name := raftlog.NodeIn(c.DataDir); name != "" {
		return name
	}
	if note, err := readJoinState(c.DataDir); err == nil && note != nil && note.Answered {
		return note.Name
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return string(c.Kind.Role)
}
