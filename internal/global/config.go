package global

import (
	"github.com/spf13/pflag"

	"meridian/internal/controlplane/cluster"
)

// EnvPrefix begins the name of every environment variable of the global.
const EnvPrefix = "MERIDIAN_GLOBAL_"

// Config is how a server of the global runs.
type Config struct {
	cluster.Config
	// SkipDefaultMesh leaves out the mesh `default` on first start.
	SkipDefaultMesh bool
}

// Bind defines the flags of the configuration.
func (c *Config) Bind(flags *pflag.FlagSet) {
	c.Options.Bind(flags, "127.0.0.1:5685", "127.0.0.1:5680")
	c.Config.Bind(flags, cluster.Global)
	flags.BoolVar(&c.SkipDefaultMesh, "skip-default-mesh", false, "do not create the mesh \"default\" on first start")
}
