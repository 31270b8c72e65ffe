package agent

import (
	"errors"
	"sync"
)

// errAgain ends a registration that says that the dataplane takes no requests, or that was
// made by another token: there is to be another one.
var errAgain = errors.New("there is something else to say to the zone")

// availability is whether others are to send requests to the dataplane. The zero value:
// they are not.
type availability struct {
	mu      sync.Mutex
	up      bool
	changed chan struct{} // closed with the next change; nil while nothing waits for it
}

func (v *availability) set(up bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.up == up {
		return
	}
	v.up = up
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// get returns whether they are, and a channel that is closed when that changes.
func (v *availability) get() (up bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.up, v.changed
}
