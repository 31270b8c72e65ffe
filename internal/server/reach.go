package server

import (
	"net"
	"strings"
)

// The values of --default-access (§6.5).
const (
	// DefaultAccessAuto gives every caller the role admin on a first start where
	// every listener is on loopback, and refuses such a binding everywhere else.
	DefaultAccessAuto = "auto"
	// DefaultAccessOpen gives every caller the role admin on a first start, and
	// accepts such a binding on every address.
	DefaultAccessOpen = "open"
	// DefaultAccessRestricted gives administrators alone the role admin on a first
	// start, and accepts no binding that gives it to every caller.
	DefaultAccessRestricted = "restricted"
)

// Reach is an address by which others reach a server, and the flag that says so.
type Reach struct {
	Flag, Addr string
}

// String prints the flag as it would be written.
func (r Reach) String() string { return "--" + r.Flag + " " + r.Addr }

// loopback reports whether no other host reaches the address. A name is
// another host's unless it is localhost: what it resolves to here says nothing
// about where it is used.
func (r Reach) loopback() bool {
	host, _, err := net.SplitHostPort(r.Addr)
	if err != nil {
		host = r.Addr
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Reaches returns the addresses that both servers are reached by: those that are
// bound, and the one that is advertised.
func (o *Options) Reaches(bound Addresses) []Reach {
	all := []Reach{{"grpc-addr", bound.GRPC}, {"http-addr", bound.HTTP}}
	if bound.Webhook != "" {
		all = append(all, Reach{"webhook-addr", bound.Webhook})
	}
	if o.AdvertiseAddr != "" {
		all = append(all, Reach{"advertise-addr", o.AdvertiseAddr})
	}
	return all
}

// BeyondLoopback returns the first address that other hosts reach, or false.
func BeyondLoopback(all []Reach) (Reach, bool) {
	for _, r := range all {
		if !r.loopback() {
			return r, true
		}
	}
	return Reach{}, false
}
