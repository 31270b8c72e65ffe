package access

import (
	"slices"
	"strings"

	"meridian/internal/auth"
	"meridian/internal/rpcerr"
)

// Doors returns who may call which service at all: users, known or anonymous,
// everything but what belongs to zones; zones, by their token, only that; other
// holders of tokens nothing. What a user may then do is decided call by call.
//
// zoneServices are full service names such as "meridian.sync.v1.SyncService".
func Doors(zoneServices ...string) func(p auth.Principal, method string) error {
	return func(p auth.Principal, method string) error {
		service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		forZones := slices.Contains(zoneServices, service)
		_, isZone := p.Zone()
		isUser := p.Token == nil || p.Token.Key.Use == auth.UserToken
		switch {
		case forZones && isZone, !forZones && isUser:
			return nil
		case forZones && p.Source == auth.FromToken:
			return rpcerr.New(rpcerr.Denied, auth.ReasonZoneOnly, "Access Denied: %s is for zones, which present a zone token", service)
		case forZones:
			return rpcerr.New(rpcerr.Unauthenticated, auth.ReasonNoCredentials, "not authenticated: %s is for zones, which present a zone token", service)
		case isZone:
			return rpcerr.New(rpcerr.Denied, auth.ReasonNotForZones, "Access Denied: a zone token does not open %s", service)
		}
		return rpcerr.New(rpcerr.Denied, ReasonNotForUsers, "Access Denied: a %s does not open %s", p.Token.Key.Use, service)
	}
}
