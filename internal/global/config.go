package global

import (
	"net"
	"os"

	"github.com/spf13/pflag"

	"meridian/internal/consensus"
	"meridian/internal/server"
)

// EnvPrefix begins the name of every environment variable of the global.
const EnvPrefix = "MERIDIAN_GLOBAL_"

// Config is how a server of the global runs.
type Config struct {
	server.Options
	// Name is the server's, for as long as its data directory lives. Empty: the
	// one that the directory was first used with, else this host's.
	Name string
	// RaftAddr is where other servers of the global reach this one.
	RaftAddr string
	// AdvertiseRaftAddr is the host:port by which other servers reach RaftAddr,
	// the bound one when empty.
	AdvertiseRaftAddr string
	// GossipAddr is where servers of the global tell each other their addresses.
	GossipAddr string
	// GossipKeyFile holds the key of gossip in base64, in place of the generated
	// one.
	GossipKeyFile string
	// SkipDefaultMesh leaves out the mesh `default` on first start.
	SkipDefaultMesh bool
}

// Bind defines the flags of the configuration.
func (c *Config) Bind(flags *pflag.FlagSet) {
	c.Options.Bind(flags, "127.0.0.1:5685", "127.0.0.1:5680")
	flags.StringVar(&c.Name, "name", "", "name of this server, for as long as its data directory lives (default: what the directory says, else the name of this host)")
	flags.StringVar(&c.RaftAddr, "raft-addr", "127.0.0.1:5690", "host:port for the other servers of this global; port 0 is any free port")
	flags.StringVar(&c.AdvertiseRaftAddr, "advertise-raft-addr", "", "host:port by which the other servers reach --raft-addr, where that is not what they should dial")
	flags.StringVar(&c.GossipAddr, "gossip-addr", "127.0.0.1:5691", "host:port at which servers of this global find each other, TCP and UDP, encrypted; port 0 is any free port")
	flags.StringVar(&c.GossipKeyFile, "gossip-key-file", "", "file with the base64 key that gossip is encrypted with, in place of the generated one")
	flags.BoolVar(&c.SkipDefaultMesh, "skip-default-mesh", false, "do not create the mesh \"default\" on first start")
}

// Validate reports the first setting that cannot work.
func (c *Config) Validate() error { return c.Options.Validate() }

// advertisedRaft is the host:port by which other servers reach RaftAddr: the
// name of this host where it listens on every address; empty for the bound one.
func (c *Config) advertisedRaft() string {
	if c.AdvertiseRaftAddr != "" {
		return c.AdvertiseRaftAddr
	}
	_, port, err := net.SplitHostPort(c.RaftAddr)
	if named := server.Dialable(c.RaftAddr); err == nil && port != "0" && named != c.RaftAddr {
		return named
	}
	return ""
}

// serverName is the name this server goes by. A host that is renamed, or a
// container that gets another name at every start, stays the same server.
func (c *Config) serverName() string {
	if c.Name != "" {
		return c.Name
	}
	if name := consensus.NodeIn(c.DataDir); name != "" {
		return name
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "global"
}
