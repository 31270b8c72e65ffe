package zone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"meridian/internal/clientconfig"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/service/dataplane"
	zonesync "meridian/internal/sync"
)

// EnvPrefix begins the name of every environment variable of a zone.
const EnvPrefix = "MERIDIAN_ZONE_"

// Config is how a zone runs.
type Config struct {
	server.Options
	// Name is the zone's.
	Name string
	// Servers is how this server is one of several of the zone. Without Servers.RaftAddr it
	// is the only one, and listens for no others.
	Servers cluster.Config
	// JoinBundle is the file that holds the global's addresses and CA and the
	// zone's token; GlobalAddrs, GlobalCA and TokenFile are the same one by one.
	// Without any of them the zone is standalone.
	JoinBundle  string
	GlobalAddrs []string
	GlobalCA    string
	TokenFile   string
	// LearnGlobalAddrs lets the zone also go to servers that the global names,
	// such as those that were added later.
	LearnGlobalAddrs bool
	// inherited: the other servers of the zone say how this one reaches the global. Run sets it.
	inherited bool
	// AcceptWipe names the state of the global that is accepted although it would
	// remove more than the wipe guard allows, as INCARNATION/REVISION. Empty: none.
	AcceptWipe string
	// SkipDefaultMesh leaves out the mesh `default` on a standalone zone's first
	// start.
	SkipDefaultMesh bool
	// DataplaneGrace is how long a dataplane stays registered after its proxy has
	// gone; zero means not at all.
	DataplaneGrace time.Duration
}

// Bind defines the flags of the configuration.
func (c *Config) Bind(flags *pflag.FlagSet) {
	c.Options.Bind(flags, "127.0.0.1:5678", "127.0.0.1:5679")
	c.Servers.Bind(flags, cluster.Zone)
	flags.StringVar(&c.Name, "name", "", "name of this zone (required)")
	flags.StringVar(&c.JoinBundle, "join-bundle", "", "file made by meridian generate zone-token --bundle: the global's addresses and CA, and this zone's token")
	flags.StringSliceVar(&c.GlobalAddrs, "global-addr", nil, "host:port of the global's servers, separated by commas, in place of --join-bundle")
	flags.StringVar(&c.GlobalCA, "global-ca", "", "PEM file of the global's CA, with --global-addr")
	flags.StringVar(&c.TokenFile, "token-file", "", "file that holds this zone's token, with --global-addr")
	flags.BoolVar(&c.LearnGlobalAddrs, "learn-global-addrs", true, "also go to servers that the global names, such as those added later; false: only to those given")
	flags.StringVar(&c.AcceptWipe, "accept-wipe", "", "INCARNATION/REVISION of the update to accept although it would remove more than a fifth of what this zone holds, or is of an earlier or another history, as the message about it says")
	flags.BoolVar(&c.SkipDefaultMesh, "skip-default-mesh", false, "do not create the mesh \"default\" on the first start of a standalone zone")
	flags.DurationVar(&c.DataplaneGrace, "dataplane-grace", dataplane.DefaultGrace, "how long a dataplane stays registered after its proxy has gone, also through a restart of the zone")
}

// Validate reports the first setting that cannot work, as a *server.UsageError.
func (c *Config) Validate() error {
	if err := c.Options.Validate(); err != nil {
		return err
	}
	usage := func(format string, args ...any) error {
		return &server.UsageError{Err: fmt.Errorf(format, args...)}
	}
	byHand := len(c.GlobalAddrs) > 0 || c.GlobalCA != "" || c.TokenFile != ""
	switch {
	case c.Name == "":
		return usage("--name is required: the name of this zone")
	case c.JoinBundle != "" && byHand:
		return usage("--join-bundle already holds what --global-addr, --global-ca and --token-file say: give one or the others")
	case c.DataplaneGrace < 0:
		return usage("--dataplane-grace %s: a time is not negative", c.DataplaneGrace)
	case byHand && (len(c.GlobalAddrs) == 0 || c.TokenFile == ""):
		return usage("--global-addr and --token-file go together")
	}
	if err := c.validateServers(); err != nil {
		return err
	}
	if _, err := c.acceptedWipe(); err != nil {
		return usage("--accept-wipe: %w", err)
	}
	if _, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindZone, Name: c.Name}}, []byte("{}")); err != nil {
		return usage("--name %q cannot be the name of a zone: %w", c.Name, err)
	}
	return nil
}

// several reports whether the server is one of several, or takes others.
func (c *Config) several() bool { return c.Servers.RaftAddr != "" }

// servers returns how the server is one of several.
func (c *Config) servers() cluster.Config {
	s := c.Servers
	s.Options, s.Kind, s.Zone, s.Federated, s.InheritsGlobal = c.Options, cluster.Zone, c.Name, c.federated(), c.inherited
	return s
}

func (c *Config) validateServers() error {
	s := c.servers()
	if c.several() {
		return s.Validate()
	}
	for flag, given := range map[string]bool{
		cluster.Zone.NameFlag: s.Name != "", cluster.Zone.BundleFlag: s.JoinBundle != "", "join": len(s.Join) > 0,
		"advertise-raft-addr": s.AdvertiseRaftAddr != "", "gossip-key-file": s.GossipKeyFile != "",
		"gossip-addr": s.GossipAddr != "" && s.GossipAddr != cluster.Zone.GossipAddr,
		"peer-names":  len(s.PeerNames) > 0 && !slices.Equal(s.PeerNames, []string{cluster.Zone.PeerName}),
	} {
		if given {
			return &server.UsageError{Err: fmt.Errorf("--%s is for a zone of several servers: say with --raft-addr HOST:PORT where the others reach this one", flag)}
		}
	}
	return nil
}

// acceptedWipe is what --accept-wipe names.
func (c *Config) acceptedWipe() (zonesync.Wipe, error) {
	if c.AcceptWipe == "" {
		return zonesync.Wipe{}, nil
	}
	return zonesync.ParseWipe(c.AcceptWipe)
}

// federated reports whether the zone follows a global.
func (c *Config) federated() bool {
	return c.JoinBundle != "" || len(c.GlobalAddrs) > 0 || c.inherited
}

// bundle returns how to reach the global. The error is a *server.UsageError.
func (c *Config) bundle() (clientconfig.ZoneBundle, error) {
	bundle, err := c.readBundle()
	if err != nil {
		return clientconfig.ZoneBundle{}, &server.UsageError{Err: err}
	}
	return bundle, nil
}

// tokenSource returns what gives the token to connect with: the one that is in its
// file by then, so that it can be replaced before it expires, or after. While the
// file cannot be used, it is the last one that was there.
func tokenSource(read func(context.Context) (clientconfig.ZoneBundle, error), token string, log *slog.Logger) func(context.Context) (string, error) {
	var mu sync.Mutex // guards token and failing
	failing := false
	return func(ctx context.Context) (string, error) {
		bundle, err := read(ctx)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			token, failing = bundle.Token, false
		case !failing:
			failing = true
			log.Warn("the zone's token cannot be read again; the last one stays in use", "error", err)
		}
		return token, nil
	}
}

func (c *Config) readBundle() (clientconfig.ZoneBundle, error) {
	if c.JoinBundle != "" {
		bundle, err := clientconfig.LoadZoneBundle(c.JoinBundle)
		if err != nil {
			return bundle, fmt.Errorf("--join-bundle: %w", err)
		}
		if err := bundle.CheckZone(c.Name); err != nil {
			return bundle, fmt.Errorf("--join-bundle %s: %w", c.JoinBundle, err)
		}
		return bundle, nil
	}
	bundle := clientconfig.ZoneBundle{Zone: c.Name, Addresses: c.GlobalAddrs}
	token, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return bundle, fmt.Errorf("--token-file: %w", err)
	}
	if bundle.Token = strings.TrimSpace(string(token)); bundle.Token == "" {
		return bundle, fmt.Errorf("--token-file %s: the file is empty", c.TokenFile)
	}
	if c.GlobalCA != "" {
		ca, err := os.ReadFile(c.GlobalCA)
		if err != nil {
			return bundle, fmt.Errorf("--global-ca: %w", err)
		}
		bundle.CA = string(ca)
	}
	if _, err := bundle.Encode(); err != nil {
		return bundle, errors.Join(errors.New("--global-addr, --global-ca, --token-file"), err)
	}
	return bundle, nil
}
