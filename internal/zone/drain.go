package zone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"meridian/internal/atomicfile"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/dataplane"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
)

// drainFile says, below the data directory, whether the global had the zone drain when
// it last told it another state: a zone that starts without its global continues as it was
// told. A zone that has never drained has none.
const drainFile = "drain.json"

type drainOrder struct {
	FormatVersion int  `json:"formatVersion"`
	Draining      bool `json:"draining"`
}

// loadDrain reports whether the zone was draining when it stopped.
func loadDrain(dir string) (bool, error) {
	path := filepath.Join(dir, drainFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var order drainOrder
	if err == nil {
		err = json.Unmarshal(data, &order)
	}
	if err == nil && order.FormatVersion != 1 {
		err = fmt.Errorf("its format is %d, and 1 is known", order.FormatVersion)
	}
	if err != nil {
		return false, fmt.Errorf("whether the zone drains cannot be read from %s: %w; the global says it again: delete the file", path, err)
	}
	return order.Draining, nil
}

// saveDrain keeps what loadDrain returns.
func saveDrain(dir string, draining bool) error {
	data, err := json.Marshal(drainOrder{FormatVersion: 1, Draining: draining})
	if err != nil {
		return fmt.Errorf("encode %s: %w", drainFile, err)
	}
	return atomicfile.Write(filepath.Join(dir, drainFile), append(data, '\n'), 0o644)
}

// retryDrain is how often it is tried to keep whether the zone drains.
const retryDrain = 10 * time.Second

// drainKeeper keeps whether the zone drains, sooner or later: what the global says holds
// also while the disk is full.
type drainKeeper struct {
	dir      string
	draining func() bool
	log      *slog.Logger
	unsaved  chan struct{} // capacity 1

	mu sync.Mutex // held while it is saved
}

func newDrainKeeper(dir string, draining func() bool, log *slog.Logger) *drainKeeper {
	return &drainKeeper{dir: dir, draining: draining, log: log, unsaved: make(chan struct{}, 1)}
}

// save saves it, or has run save it.
func (k *drainKeeper) save() {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := saveDrain(k.dir, k.draining())
	if err == nil {
		return
	}
	k.log.Error("cannot keep whether the zone drains: trying again", "error", err)
	select {
	case k.unsaved <- struct{}{}:
	default:
	}
}

// run saves what could not be saved, until ctx ends.
func (k *drainKeeper) run(ctx context.Context) error {
	for {
		select {
		case <-k.unsaved:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(retryDrain):
			k.save()
		case <-ctx.Done():
			return nil
		}
	}
}

// drain has the zone drain, or take dataplanes again, and keeps that.
func (z *zone) drain(draining bool) error {
	if z.dataplanes.Draining() == draining {
		return nil
	}
	z.dataplanes.Drain(draining)
	z.drainKeeper.save()
	if draining {
		z.Log.Info("draining: no dataplanes are taken, and those that are here are told to leave", "dataplanes", z.Store.View().Count(resource.KindDataplane))
	} else {
		z.Log.Info("no longer draining: dataplanes are taken again")
	}
	return nil
}

// drained is how far the zone has drained.
func (z *zone) drained() zonesync.Draining {
	if !z.dataplanes.Draining() {
		return zonesync.Draining{}
	}
	all, applied := z.dataplanes.Left()
	return zonesync.Draining{Begun: true, Dataplanes: uint64(all), Applied: uint64(applied), OfZone: z.cluster != nil} //nolint:gosec // counts
}

// prepareApplied is prepare for what operators apply: a zone that drains takes no
// dataplanes that it does not have.
func (z *zone) prepareApplied(view store.Reader, r *resource.Resource) (*resource.Resource, error) {
	if r.Key().Kind == resource.KindDataplane && z.dataplanes.Draining() {
		if _, have := view.Get(r.Key()); !have {
			return nil, rpcerr.New(rpcerr.Invalid, dataplane.ReasonDraining, "zone %q is draining: apply the dataplane in another zone, or end the draining with `meridian zones enable %s` on the global", z.cfg.Name, z.cfg.Name)
		}
	}
	return z.prepare(view, r)
}
