package authz

import (
	"fmt"
	"strings"

	"meridian/internal/authn"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Reasons of the refusals, for programs.
const (
	ReasonDenied      = "ACCESS_DENIED"
	ReasonNotForUsers = "USERS_ONLY"
	ReasonEscalation  = "RIGHTS_NOT_HELD"
	ReasonOpen        = "OPEN_ACCESS"
	ReasonKeepTimes   = "KEEP_TIMES_DENIED"
	ReasonLastAdmin   = "LAST_ADMIN_BINDING"
	// ReasonForeignTrust: keys, tokens' records or revocations that this control
	// plane did not make.
	ReasonForeignTrust = "FOREIGN_TRUST"
	// ReasonRotation: the state of a rotation that has not finished.
	ReasonRotation = "ROTATION_UNDERWAY"
	// ReasonServers: what the servers of the global must know about each other.
	ReasonServers = "SERVERS_NEED_IT"
)

// maxDenials bounds how many resources of a batch a denial spells out.
const maxDenials = 5

// headline is the first line of every denial, fixed by §6.7.
func headline(who authn.Principal) string {
	return fmt.Sprintf("Access Denied (user %q cannot access the resource)", who)
}

func deniedBecause(who authn.Principal, lines ...string) *rpcerr.Error {
	return refusal(ReasonDenied, who, lines...)
}

func refusal(reason string, who authn.Principal, lines ...string) *rpcerr.Error {
	return rpcerr.New(rpcerr.Denied, reason, "%s", strings.Join(append([]string{headline(who)}, lines...), "\n  "))
}

// denied says which accesses on which resources are missing, and which rules
// came nearest.
func denied(who authn.Principal, denials ...*rbac.Denial) error {
	var lines []string
	for _, d := range denials[:min(maxDenials, len(denials))] {
		lines = append(lines, missingLines(d)...)
	}
	if more := len(denials) - maxDenials; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more resources of the batch", more))
	}
	return deniedBecause(who, lines...)
}

func missingLines(d *rbac.Denial) []string {
	return []string{"missing: " + d.Missing(), "nearest rule: " + d.Rule()}
}

func notThere(key resource.Key) error {
	return rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s does not exist", key)
}
