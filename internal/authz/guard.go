package authz

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/pki"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// guard refuses changes of access rules or signing keys by which any subject would
// gain rights that the caller does not have, or by which the role admin would lose
// its last subject. A member of mesh-system:admin can override it with force.
func guard(who authn.Principal, rules *rbac.Set, view *store.View, ops []store.Op, force bool) error {
	over := rules.Guard(SubjectOf(who), view, changes(ops)...)
	switch {
	case over == nil:
		return nil
	case over.TooMany > 0:
		return rpcerr.New(rpcerr.Invalid, "TOO_MANY_GRANTS", "%s", over.Reasons()[0])
	case force && who.In(authn.AdminGroup):
		return nil
	}
	reason := ReasonEscalation
	if over.Excess == nil {
		reason = ReasonLastAdmin
	}
	return refusal(reason, who, over.Reasons()...)
}

// checkOpen refuses changes that would make every caller an administrator, on a
// server that would not start any more after them (§6.5). Force does not skip it:
// a flag of the server does.
func (a *Authorizer) checkOpen(who authn.Principal, rules *rbac.Set, view *store.View, ops []store.Op) error {
	if a.refuseOpen == "" || isOpen(rules) || !isOpen(rbac.Compile(rbac.After(view, changes(ops)...))) {
		return nil
	}
	return refusal(ReasonOpen, who, "it would make every caller an administrator, without credentials, and "+a.refuseOpen,
		"name groups of your users as subjects, or start the server with --default-access=open")
}

// guardToken does the same for a token: its user has no right that the issuer
// lacks, membership of mesh-system:admin included.
func guardToken(who authn.Principal, excess *rbac.Rule, user authn.Principal, force bool) error {
	admin := who.In(authn.AdminGroup)
	switch {
	case force && admin:
		return nil
	case user.In(authn.AdminGroup) && !admin:
		return refusal(ReasonEscalation, who,
			fmt.Sprintf("missing: membership of group %s, which the token would give", authn.AdminGroup))
	case excess != nil:
		lines := []string{fmt.Sprintf("user %q would hold %s", user, excess.Grants())}
		return refusal(ReasonEscalation, who, append(lines, rbac.NotHeld(SubjectOf(who))...)...)
	}
	return nil
}

// carriesTrust reports whether a resource says by which tokens callers are known:
// keys, records of tokens, revocations, and the admin token. A control plane makes
// all of these itself.
func carriesTrust(key resource.Key) bool {
	switch key.Kind {
	case resource.KindSigningKey, resource.KindIssuedToken, resource.KindTokenRevocation:
		return true
	}
	return token.IsSigningKey(key) || key == token.AdminTokenKey
}

// guardTrust refuses trust that this control plane did not make, such as
// an export of another cluster: with its keys, that cluster's tokens would be
// valid here. What is stored already may be applied again, and so may revocations
// of tokens that were issued here. A member of mesh-system:admin can override it
// with force.
func guardTrust(who authn.Principal, view *store.View, ops []store.Op, force bool) error {
	if force && who.In(authn.AdminGroup) {
		return nil
	}
	var foreign []string
	for _, op := range ops {
		if op.Resource != nil && carriesTrust(op.Resource.Key()) && !madeHere(view, op.Resource) {
			foreign = append(foreign, op.Resource.Key().String())
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	names := strings.Join(foreign[:min(maxDenials, len(foreign))], ", ")
	if more := len(foreign) - maxDenials; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return rpcerr.New(rpcerr.Invalid, ReasonForeignTrust,
		"this control plane did not make %s: keys, records of tokens and revocations of another cluster would decide here who is trusted; leave them out "+
			"(`meridian tokens rotate` makes keys, `meridian tokens revoke` revocations, and `meridian cluster snapshot restore` brings back this cluster's own from a backup), "+
			"or store them with --force as a member of %s", names, authn.AdminGroup)
}

// guardServers refuses the deletion of what the servers of a global keep about
// themselves: what they must know about each other, and the rotation of the certificate
// authority before it has finished, since those that have begun it learn the next phase
// from it. A member of mesh-system:admin can override it with force.
func guardServers(who authn.Principal, view *store.View, ops []store.Op, force bool) error {
	if force && who.In(authn.AdminGroup) {
		return nil
	}
	for _, op := range ops {
		if op.Resource != nil || !token.OfServers(op.Key) {
			continue
		}
		stored, ok := view.Get(op.Key)
		switch {
		case !ok:
		case op.Key == token.ServersKey:
			return rpcerr.New(rpcerr.Conflict, ReasonServers,
				"%s says which servers of this global were removed, by which certificates they are known, and which gossip key is in use: without it, a removed server and its certificate may be accepted again, "+
					"and a server that was away does not learn the key; keep it, or delete it with --force as a member of %s", token.ServersKey, authn.AdminGroup)
		case rotates(stored):
			return rpcerr.New(rpcerr.Conflict, ReasonRotation,
				"%s is the rotation of the certificate authority, which has not finished: continue it (`meridian cluster rotate-ca status` says what is next), and delete it after `meridian cluster rotate-ca finish`, "+
					"or with --force as a member of %s", token.AuthorityKey, authn.AdminGroup)
		}
	}
	return nil
}

// rotates reports whether a stored rotation of the certificate authority is followed by
// the servers, and needed by one.
func rotates(stored *resource.Resource) bool {
	secret, ok := stored.Spec().(*resource.Secret)
	if !ok {
		return false
	}
	r, err := pki.DecodeRotation(secret.Bytes())
	return err == nil && r.Phase != pki.PhaseFinish
}

// madeHere reports whether a resource that carries trust is this control plane's.
func madeHere(view *store.View, r *resource.Resource) bool {
	if stored, ok := view.Get(r.Key()); ok && bytes.Equal(stored.Canonical(), r.Canonical()) {
		return true
	}
	revocation, ok := r.Spec().(*resource.TokenRevocation)
	return ok && token.RecordedIn(view, token.Use(revocation.Use), revocation.ID)
}

// checkKeys refuses a secret with the name of a signing key that cannot be parsed
// as one.
func checkKeys(ops []store.Op) error {
	for _, op := range ops {
		if op.Resource == nil {
			continue
		}
		secret, ok := op.Resource.Spec().(*resource.Secret)
		if !ok || op.Resource.Key().Kind != resource.KindGlobalSecret {
			continue
		}
		id, err := token.ParseKeyID(op.Resource.Key().Name)
		if err != nil {
			continue // a secret that is not a key
		}
		if _, err := token.ParseSigningKey(id, secret.Bytes()); err != nil {
			return rpcerr.New(rpcerr.Invalid, "NOT_A_KEY", "%s is the name of a signing key: %w", op.Resource.Key(), err)
		}
	}
	return nil
}

// maxBindings is how many bindings a warning names.
const maxBindings = 5

// danglingRoles warns about bindings to roles that do not exist, and about new roles
// that are bound already (§6.2).
func danglingRoles(view *store.View, ops []store.Op) []string {
	if !slices.ContainsFunc(ops, func(op store.Op) bool { return op.Resource != nil && rbac.OfRules(op.Resource.Key()) }) {
		return nil
	}
	var warnings []string
	next := rbac.Compile(rbac.After(view, changes(ops)...))
	for _, op := range ops {
		if op.Resource == nil {
			continue
		}
		switch spec := op.Resource.Spec().(type) {
		case *resource.AccessRoleBinding:
			for _, role := range spec.Roles {
				if _, exists := next.Rules(role); !exists {
					warnings = append(warnings, fmt.Sprintf("%s: there is no AccessRole %q: until there is, it grants nothing", op.Resource.Key(), role))
				}
			}
		case *resource.AccessRole:
			if _, exists := view.Get(op.Resource.Key()); exists {
				continue
			}
			if bound := bindingsOf(view, op.Resource.Key().Name); len(bound) > 0 {
				warnings = append(warnings, fmt.Sprintf("%s: it takes effect at once for the subjects of %s", op.Resource.Key(), strings.Join(bound, ", ")))
			}
		}
	}
	return warnings
}

// bindingsOf names the stored bindings to a role.
func bindingsOf(view *store.View, role string) []string {
	var names []string
	for b := range view.List(resource.KindAccessRoleBinding, "") {
		if slices.Contains(b.Spec().(*resource.AccessRoleBinding).Roles, role) {
			names = append(names, b.Key().String())
		}
	}
	if more := len(names) - maxBindings; more > 0 {
		names = append(names[:maxBindings], fmt.Sprintf("%d more", more))
	}
	return names
}

// changes are the operations of a batch as access control sees them.
func changes(ops []store.Op) []rbac.Change {
	changes := make([]rbac.Change, len(ops))
	for i, op := range ops {
		changes[i] = rbac.Change{Key: op.Key, Resource: op.Resource}
		if op.Resource != nil {
			changes[i].Key = op.Resource.Key()
		}
	}
	return changes
}

// guardTimes refuses times that the caller may not choose (§1.1).
func guardTimes(who authn.Principal, rules *rbac.Set, ops []store.Op) error {
	if !slices.ContainsFunc(ops, func(op store.Op) bool { return op.KeepTimes }) || rules.WritesRoles(SubjectOf(who)) {
		return nil
	}
	return refusal(ReasonKeepTimes, who, "missing: CREATE and UPDATE of every AccessRole, which keeping the times of documents takes")
}
