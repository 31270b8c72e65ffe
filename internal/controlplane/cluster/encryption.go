package cluster

import (
	"context"
	"slices"
	"strings"
	"time"

	"meridian/internal/consensus"
	"meridian/internal/server"
)

// encryptionInterval is how often the other servers are asked whether they encrypt what
// they keep on disk. That changes with a restart only.
const encryptionInterval = 15 * time.Second

// unencrypted are the members that do not encrypt what they keep on disk, where
// another one does. Those that do not say are left out.
func unencrypted(members []consensus.Member) (names []string) {
	encrypts := false
	for _, m := range members {
		switch m.Encryption {
		case "":
		case consensus.NotEncrypted:
			names = append(names, m.Name)
		default:
			encrypts = true
		}
	}
	if !encrypts {
		return nil
	}
	return names
}

// watchEncryption finds out, until ctx ends, which servers do not encrypt what they
// keep on disk although another one does: the secrets are the same on all.
func (c *Server) watchEncryption(ctx context.Context) error {
	tick := time.NewTicker(encryptionInterval)
	defer tick.Stop()
	for {
		plain := unencrypted(c.Node.Members(ctx))
		if ctx.Err() != nil {
			return nil
		}
		before := c.unencrypted.Swap(&plain)
		if len(plain) > 0 && (before == nil || !slices.Equal(*before, plain)) {
			c.Log.Warn("some servers keep the secrets of all on their disks without encryption, and others encrypt them: start these with --encryption-key-file", "servers", plain)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// encryptionCheck tells who asks for the readiness of this server which servers do not
// encrypt.
func (c *Server) encryptionCheck() server.Check {
	return server.Check{
		Name: "encryption", Ready: func() error { return nil },
		Note: func() string {
			plain := c.unencrypted.Load()
			if plain == nil || len(*plain) == 0 {
				return ""
			}
			return "not encrypted at rest, while other servers encrypt: " + strings.Join(*plain, ", ") + "; start with --encryption-key-file"
		},
	}
}
