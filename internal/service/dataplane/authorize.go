package dataplane

import (
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Reasons of the refusals, for programs. Those about the token itself are
// internal/auth's.
const (
	ReasonNoHello         = "HELLO_MISSING"
	ReasonBadAnswer       = "ANSWER_OUT_OF_TURN"
	ReasonNotCovered      = "TOKEN_DOES_NOT_COVER"
	ReasonInvalid         = "INVALID_DATAPLANE"
	ReasonNoMesh          = "MESH_MISSING"
	ReasonOperatorApplied = "APPLIED_BY_OPERATOR"
	ReasonUnknown         = "DATAPLANE_UNKNOWN"
	ReasonReplaced        = "REPLACED"
	ReasonDeleted         = "DATAPLANE_DELETED"
	ReasonStopping        = "ZONE_STOPPING"
	ReasonDraining        = "ZONE_DRAINING"
	ReasonNotRegistered   = "NOT_REGISTERED"
	ReasonProxiesOnly     = "DATAPLANES_ONLY"
	ReasonInternal        = "ZONE_BROKEN"
	ReasonLimit           = "LIMIT_REACHED"
)

// The services for proxies: this one, and that of xDS.
var (
	connectPrefix   = "/" + meridianv1.DataplaneService_ServiceDesc.ServiceName + "/"
	discoveryPrefix = "/" + discoveryv3.AggregatedDiscoveryService_ServiceDesc.ServiceName + "/"
)

// Authorize returns the authorization rule of a zone's gRPC port: dataplane tokens, and
// nothing else, may call the services for proxies; next decides on other calls.
func Authorize(next func(p authn.Principal, method string) error) func(authn.Principal, string) error {
	return func(p authn.Principal, method string) error {
		switch {
		case !strings.HasPrefix(method, connectPrefix) && !strings.HasPrefix(method, discoveryPrefix):
			return next(p, method)
		case p.Token != nil && p.Token.Key.Use == token.ForDataplane:
			return nil
		case p.Token != nil:
			return rpcerr.New(rpcerr.Denied, ReasonProxiesOnly, "Access Denied: this is for proxies, which present a dataplane token, not a %s", p.Token.Key.Use)
		}
		return rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: this is for proxies, which present a dataplane token")
	}
}

// checkToken decides whether the holder of a token may register a dataplane
// (§6.8). The error is an *rpcerr.Error of code Denied.
func checkToken(token token.Token, r *resource.Resource) error {
	sets := r.Spec().(*resource.Dataplane).TagSets()
	tags := make([]map[string]string, len(sets))
	for i, set := range sets {
		tags[i] = set
	}
	return notCovered(token.CheckDataplane(string(r.Key().Mesh), r.Key().Name, tags...))
}

// checkTokenForKey is the part of the rule that does not look at the dataplane.
func checkTokenForKey(token token.Token, key resource.Key) error {
	token.Tags = nil
	return notCovered(token.CheckDataplane(string(key.Mesh), key.Name))
}

func notCovered(err error) error {
	if err == nil {
		return nil
	}
	return rpcerr.New(rpcerr.Denied, ReasonNotCovered, "Access Denied: %w", err)
}
