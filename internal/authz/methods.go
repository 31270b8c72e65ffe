package authz

import (
	"strings"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/rpcerr"
)

// AuthorizeMethods returns the decision which principals may call which service at
// all. uses names the services that are not for users, by full names such as
// "meridian.sync.v1.SyncService", with the use of the tokens they take. Users,
// authenticated or anonymous, may call every other service; the holder of any other
// token only the services of its use. What a user may do there is decided per call.
func AuthorizeMethods(uses map[string]token.Use) func(p authn.Principal, method string) error {
	return func(p authn.Principal, method string) error {
		service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		wanted, special := uses[service]
		isUser := p.Token == nil || p.Token.Key.Use == token.ForUser
		switch {
		case !special && isUser:
			return nil
		case !special:
			return wrongUse(p.Token.Key.Use, service)
		case p.Token != nil && p.Token.Key.Use == wanted:
			return nil
		}
		reason, callers := authn.ReasonZoneOnly, "zones: present a zone token"
		if wanted == token.ForServer {
			reason, callers = authn.ReasonServerOnly, "joining servers: present a server token"
		}
		if p.Source == authn.FromToken {
			return rpcerr.New(rpcerr.Denied, reason, "Access Denied: %s is for %s", service, callers)
		}
		return rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: %s is for %s", service, callers)
	}
}

// wrongUse refuses a token that is not a user's at a service for users.
func wrongUse(use token.Use, service string) error {
	reason := ReasonNotForUsers
	switch use {
	case token.ForZone:
		reason = authn.ReasonNotForZones
	case token.ForServer:
		reason = authn.ReasonNotForServers
	}
	return rpcerr.New(rpcerr.Denied, reason, "Access Denied: %s takes a user token, not a %s", service, strings.ReplaceAll(string(use), "-", " "))
}
