package limits

import "time"

// The limits on what a zone holds for xDS streams, in all and for those of one token.
const (
	LimitXDS      = "xds_bytes"
	LimitXDSToken = "xds_bytes_per_token"
)

const (
	// XDSStreamBytes is what an xDS stream is charged for beside what is counted of it.
	XDSStreamBytes = 32 << 10
	// XDSPatience is how long a client may take to answer what it was sent while others
	// need the memory.
	XDSPatience = 5 * time.Second
	// minXDSBytes is the least that the budget of xDS streams, and a token's share of it,
	// comes to.
	minXDSBytes = 64 << 20
)

// NewXDS returns the budget of xDS streams: for as many as there may be connections, in
// all and of one address, since proxies have a connection each.
func NewXDS(connections, ofAddress int, now func() time.Time) *Pool {
	all := max(minXDSBytes, XDSStreamBytes*int64(connections))
	return NewPatient(all, min(all, max(minXDSBytes, XDSStreamBytes*int64(ofAddress))), XDSPatience, now)
}
