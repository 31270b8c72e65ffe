package global

import (
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"meridian/internal/raftlog"
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
	// JoinBundle is the file with what a new server joins a global by; it is used
	// once.
	JoinBundle string
	// PeerNames are the subject alternative names of which another server's
	// certificate must have one, where the certificates are given.
	PeerNames []string
	// Join are addresses of servers of a global to join or find, where the
	// certificates are given.
	Join []string
	// SkipDefaultMesh leaves out the mesh `default` on first start.
	SkipDefaultMesh bool
}

// defaultPeerName is the name by which a certificate of an operator's authority is
// that of a server of a global.
const defaultPeerName = "meridian-global"

// Bind defines the flags of the configuration.
func (c *Config) Bind(flags *pflag.FlagSet) {
	c.Options.Bind(flags, "127.0.0.1:5685", "127.0.0.1:5680")
	flags.StringVar(&c.Name, "name", "", "name of this server, for as long as its data directory lives (default: what the directory says, else the name of this host)")
	flags.StringVar(&c.RaftAddr, "raft-addr", "127.0.0.1:5690", "host:port for the other servers of this global; port 0 is any free port")
	flags.StringVar(&c.AdvertiseRaftAddr, "advertise-raft-addr", "", "host:port by which the other servers reach --raft-addr, where that is not what they should dial")
	flags.StringVar(&c.GossipAddr, "gossip-addr", "127.0.0.1:5691", "host:port at which servers of this global find each other, TCP and UDP, encrypted; port 0 is any free port")
	flags.StringVar(&c.GossipKeyFile, "gossip-key-file", "", "file with the base64 key that gossip is encrypted with, in place of the generated one")
	flags.StringVar(&c.JoinBundle, "join-bundle", "", "file made by meridian generate server-token --bundle on a running server: this one joins its global, once, with a new data directory")
	flags.StringSliceVar(&c.Join, "join", nil, "host:port of servers of the global to join, separated by commas: where --ca-file, --cert-file, --key-file and --gossip-key-file stand in for --join-bundle")
	flags.StringSliceVar(&c.PeerNames, "peer-names", []string{defaultPeerName}, "with --ca-file: names, separated by commas, of which a certificate must have one as a subject alternative name to be that of a server of this global")
	flags.BoolVar(&c.SkipDefaultMesh, "skip-default-mesh", false, "do not create the mesh \"default\" on first start")
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
		return usage("--join-bundle already holds what --join says: give one or the other")
	case c.JoinBundle != "" && c.CAFile != "":
		return usage("--join-bundle has this server's certificate made; with one of its own (--ca-file) it joins by --join, without a bundle")
	case len(c.Join) > 0 && !given:
		return usage("--join goes with --ca-file, --cert-file, --key-file and --gossip-key-file, by which the servers know each other; without those, join by --join-bundle")
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
			return usage("--name: %w", err)
		}
	}
	return nil
}

// peerNames are the names of which another server's certificate must have one.
func (c *Config) peerNames() []string {
	if len(c.PeerNames) == 0 {
		return []string{defaultPeerName}
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

// serverName is the name this server goes by. A host that is renamed, or a
// container that gets another name at every start, stays the same server.
func (c *Config) serverName() string {
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
	return "global"
}
