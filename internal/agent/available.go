package agent

import (
	"errors"
	"sync"
	"time"
)

// errAgain ends a registration that says that the dataplane takes no requests, or that was
// made by another token: there is to be another one.
var errAgain = errors.New("there is something else to say to the zone")

// availability is whether others are to send requests to the dataplane: while its
// application, or its Envoy, takes them, and its certificate has not expired. The zero
// value: they are not.
type availability struct {
	mu sync.Mutex
	up bool
	// expires is when the certificate expires, zero where the mesh needs none; expired is
	// whether it has, or is needed and refused.
	expires time.Time
	expired bool
	changed chan struct{} // closed with the next change; nil while nothing waits for it
}

// set says whether the application, or Envoy, takes requests.
func (v *availability) set(up bool) { v.change(func() { v.up = up }) }

// certify says when the certificate expires; zero for never.
func (v *availability) certify(expires time.Time) {
	v.change(func() { v.expires, v.expired = expires, false })
}

// refuse says that the mesh needs a certificate, and the zone issues none: one that is there
// is used until it expires. It reports whether there is none.
func (v *availability) refuse() (none bool) {
	v.change(func() {
		none = v.expires.IsZero()
		v.expired = v.expired || none
	})
	return none
}

// lapse takes what time it is, and reports whether the certificate has expired since the
// last time.
func (v *availability) lapse(now time.Time) (expired bool) {
	v.change(func() {
		expired = !v.expired && !v.expires.IsZero() && !now.Before(v.expires)
		v.expired = v.expired || expired
	})
	return expired
}

func (v *availability) change(do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was := v.now()
	if do(); v.now() == was {
		return
	}
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

func (v *availability) now() bool { return v.up && !v.expired }

// get returns whether they are, and a channel that is closed when that changes.
func (v *availability) get() (up bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.now(), v.changed
}
