package access

import (
	"strings"

	"meridian/internal/auth"
	"meridian/internal/rpcerr"
)

// Doors returns who may call which service at all: users, known or anonymous,
// everything but the doors; the holder of any other token only the door that
// such tokens open, if there is one. What a user may then do is decided call by
// call.
//
// doors says by which token each service is opened that is not for users, by
// full names such as "meridian.sync.v1.SyncService".
func Doors(doors map[string]auth.Use) func(p auth.Principal, method string) error {
	return func(p auth.Principal, method string) error {
		service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		wanted, isDoor := doors[service]
		isUser := p.Token == nil || p.Token.Key.Use == auth.UserToken
		switch {
		case !isDoor && isUser:
			return nil
		case !isDoor:
			return shut(p.Token.Key.Use, service)
		case p.Token != nil && p.Token.Key.Use == wanted:
			return nil
		}
		reason, whom := auth.ReasonZoneOnly, "zones, which present a zone token"
		if wanted == auth.ServerToken {
			reason, whom = auth.ReasonServerOnly, "new servers, which present a server token"
		}
		if p.Source == auth.FromToken {
			return rpcerr.New(rpcerr.Denied, reason, "Access Denied: %s is for %s", service, whom)
		}
		return rpcerr.New(rpcerr.Unauthenticated, auth.ReasonNoCredentials, "not authenticated: %s is for %s", service, whom)
	}
}

// shut refuses the holder of a token that is not a user's what is for users.
func shut(use auth.Use, service string) error {
	reason := ReasonNotForUsers
	switch use {
	case auth.ZoneToken:
		reason = auth.ReasonNotForZones
	case auth.ServerToken:
		reason = auth.ReasonNotForServers
	}
	return rpcerr.New(rpcerr.Denied, reason, "Access Denied: a %s does not open %s: users present a user token", strings.ReplaceAll(string(use), "-", " "), service)
}
