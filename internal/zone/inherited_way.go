package zone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
	"meridian/internal/raftlog"
	"meridian/internal/server"
)

// wayFile keeps, below the data directory, how the server reaches the global that has it from
// another server of the zone: a zone bundle, with the token, encrypted as other secrets are.
const wayFile = "global.bundle"

// inherits reports whether the server takes from the other servers of the zone how it reaches
// the global: it is not told, and has it from them, or is about to join with a bundle of
// servers that follow a global.
func (c *Config) inherits() bool {
	if !c.several() || c.JoinBundle != "" || len(c.GlobalAddrs) > 0 {
		return false
	}
	if _, err := os.Stat(filepath.Join(c.DataDir, wayFile)); err == nil {
		return true
	}
	if c.Servers.JoinBundle == "" || raftlog.NodeIn(c.DataDir) != "" {
		return false
	}
	bundle, err := clientconfig.LoadServerBundle(c.Servers.JoinBundle) // what is wrong with it, joining says
	return err == nil && bundle.Federated
}

// readWay reads how the server reaches the global, again: a token may have been replaced.
func (z *zone) readWay() (clientconfig.ZoneBundle, error) {
	if !z.cfg.inherited {
		return z.cfg.readBundle()
	}
	path := filepath.Join(z.cfg.DataDir, wayFile)
	data, err := z.Encryption.ReadFile(path, pki.MaxSecretBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return clientconfig.ZoneBundle{}, fmt.Errorf("--data-dir: %s is missing, which says how this server reaches the global: say it with --join-bundle", path)
	}
	if err != nil {
		return clientconfig.ZoneBundle{}, fmt.Errorf("--data-dir: %w", err)
	}
	bundle, err := clientconfig.DecodeZoneBundle(data)
	if err == nil {
		err = bundle.CheckZone(z.cfg.Name)
	}
	if err != nil {
		return bundle, fmt.Errorf("--data-dir: %s, which says how this server reaches the global: %w; delete it, and say it with --join-bundle", path, err)
	}
	return bundle, nil
}

// newestWay is readWay, once the other servers have been asked where this one has it from
// them.
func (z *zone) newestWay(ctx context.Context) (clientconfig.ZoneBundle, error) {
	if z.cfg.inherited {
		z.followWay(ctx)
	}
	return z.readWay()
}

// openWay is readWay for the first time, after the server has joined.
func (z *zone) openWay() (err error) {
	if !z.cfg.inherited {
		return nil // Run has read it
	}
	if z.bundle, err = z.readWay(); err != nil {
		return &server.UsageError{Err: err}
	}
	return nil
}

// keepWay keeps how the server reaches the global.
func (z *zone) keepWay(way *meridianv1.GlobalAccess) error {
	data, err := clientconfig.ZoneBundle{
		Zone: z.cfg.Name, Addresses: way.GetAddresses(), CA: string(way.GetCa()), Token: way.GetToken(),
	}.Encode()
	if err != nil {
		return err
	}
	return z.Encryption.WriteFile(filepath.Join(z.cfg.DataDir, wayFile), data)
}

// wayToGlobal says how this server reaches the global, for another one: with the authorities
// that it verifies the global by now, and the token that it would connect with.
func (z *zone) wayToGlobal() (*meridianv1.GlobalAccess, error) {
	if !z.cfg.federated() {
		return nil, nil
	}
	bundle, err := z.readWay()
	if err != nil {
		return nil, err
	}
	way := &meridianv1.GlobalAccess{Addresses: bundle.Addresses, Token: bundle.Token}
	if bundle.CA != "" {
		way.Ca = z.authorities.tls().CAPEM
	}
	return way, nil
}

// WayToGlobal tells another server how this one reaches the global, unless this one has it
// from another, too.
func (o *otherServers) WayToGlobal(context.Context, *peerv1.WayToGlobalRequest) (*peerv1.WayToGlobalResponse, error) {
	if !o.assembled.Load() {
		return nil, errStarting
	}
	if o.zone.cfg.inherited {
		return &peerv1.WayToGlobalResponse{}, nil
	}
	way, err := o.zone.wayToGlobal()
	if err != nil {
		return nil, err
	}
	return &peerv1.WayToGlobalResponse{Global: way}, nil
}

// followWay keeps what a server says that was told how to reach the global, since an operator
// replaces the token there. Addresses and authorities hold from the next start on.
func (z *zone) followWay(ctx context.Context) {
	told, _ := askOthers(ctx, z.others, func(ctx context.Context, c peerv1.ProxyServiceClient) (*peerv1.WayToGlobalResponse, error) {
		return c.WayToGlobal(ctx, &peerv1.WayToGlobalRequest{})
	})
	i := slices.IndexFunc(told, func(r *peerv1.WayToGlobalResponse) bool { return len(r.GetGlobal().GetAddresses()) > 0 })
	if i < 0 {
		return // the last one stays in use
	}
	way := told[i].GetGlobal()
	have, err := z.readWay()
	if err == nil && have.Token == way.GetToken() && have.CA == string(way.GetCa()) && slices.Equal(have.Addresses, way.GetAddresses()) {
		return
	}
	if err := z.keepWay(way); err != nil {
		z.Log.Warn("cannot keep how the server reaches the global, as another server says: the last way stays in use", "error", err)
	}
}
