package authz

import (
	"strings"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/rpcerr"
)

// Doors returns who may call which service at all: users, known or anonymous,
// everything but the doors; the holder of any other token only the door that
// such tokens open, if there is one. What a user may then do is decided call by
// call.
//
// doors says by which token each service is opened that is not for users, by
// full names such as "meridian.sync.v1.SyncService".
func Doors(doors map[string]token.Use) func(p authn.Principal, method string) error {
	return func(p authn.Principal, method string) error {
		service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		wanted, isDoor := doors[service]
		isUser := p.Token == nil || p.Token.Key.Use == token.ForUser
		switch {
		case !isDoor && isUser:
			return nil
		case !isDoor:
			return shut(p.Token.Key.Use, service)
		case p.Token != nil && p.Token.Key.Use == wanted:
			return nil
		}
		reason, whom := authn.ReasonZoneOnly, "zones, which present a zone token"
		if wanted == token.ForServer {
			reason, whom = authn.ReasonServerOnly, "new servers, which present a server token"
		}
		if p.Source == authn.FromToken {
			return rpcerr.New(rpcerr.Denied, reason, "Access Denied: %s is for %s", service, whom)
		}
		return rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: %s is for %s", service, whom)
	}
}

// shut refuses the holder of a token that is not a user's what is for users.
func shut(use token.Use, service string) error {
	reason := ReasonNotForUsers
	switch use {
	case token.ForZone:
		reason = authn.ReasonNotForZones
	case token.ForServer:
		reason = authn.ReasonNotForServers
	}
	return rpcerr.New(rpcerr.Denied, reason, "Access Denied: a %s does not open %s: users present a user token", strings.ReplaceAll(string(use), "-", " "), service)
}
