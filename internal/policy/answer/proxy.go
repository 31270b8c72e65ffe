package answer

import (
	"strconv"
	"strings"

	"meridian/internal/resource"
)

// What State and RegisteredBy of a ProxyState say.
const (
	// ProxyOnline: the proxy is connected.
	ProxyOnline = "online"
	// ProxyOffline: the proxy registered the dataplane and has gone.
	ProxyOffline = "offline"
	// ProxyManual: an operator applied the dataplane, and no proxy is connected.
	ProxyManual = "manual"

	ByProxy    = "proxy"
	ByOperator = "operator"
)

// ProxyState is how a dataplane's proxy stands to its zone. It is no part of
// what is effective: it says how much of that has arrived.
type ProxyState struct {
	State        string `json:"state"`
	RegisteredBy string `json:"registeredBy"`
	// Acked is the revision of the last configuration that the proxy took on; 0
	// if none.
	Acked resource.Revision `json:"ackedRevision"`
	// Lag is how many changes of its configuration the proxy has yet to take on.
	Lag uint64 `json:"lag"`
	// LastError is why the proxy refused the last configuration.
	LastError string `json:"lastError,omitempty"`
	// Draining: others are to send it no requests, since it or its zone drains.
	Draining bool `json:"draining,omitempty"`
}

// cells are the columns STATE, ACKED and LAG; they are empty for a
// dataplane without a known proxy.
func (s *ProxyState) cells() []string {
	if s == nil {
		return []string{"", "", ""}
	}
	acked, lag := "", ""
	if s.Acked != 0 {
		acked = strconv.FormatUint(uint64(s.Acked), 10)
	}
	if s.State == ProxyOnline || s.Lag > 0 {
		lag = strconv.FormatUint(s.Lag, 10)
	}
	state := s.State
	if s.Draining {
		state += " (draining)"
	}
	return []string{state, acked, lag}
}

// String says the same in a sentence for the head of a page.
func (s *ProxyState) String() string {
	parts := []string{map[string]string{
		ProxyOnline: "proxy online", ProxyOffline: "proxy offline", ProxyManual: "no proxy connected",
	}[s.State]}
	if s.Draining {
		parts = append(parts, "draining")
	}
	if s.Acked != 0 {
		parts = append(parts, "has taken on revision "+strconv.FormatUint(uint64(s.Acked), 10))
	}
	switch {
	case s.Lag == 1:
		parts = append(parts, "1 change behind")
	case s.Lag > 1:
		parts = append(parts, strconv.FormatUint(s.Lag, 10)+" changes behind")
	}
	if s.LastError != "" {
		parts = append(parts, "refused the last configuration: "+s.LastError)
	}
	return strings.Join(parts, ", ")
}
