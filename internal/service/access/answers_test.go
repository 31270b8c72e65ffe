package access_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/authz/authztest"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/access"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// someRules are what drawn roles are made of.
var someRules = []string{
	"{access: [CREATE, UPDATE, DELETE, GENERATE_DATAPLANE_TOKEN, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN, GENERATE_ZONE_TOKEN]}",
	"{mesh: demo, access: [CREATE, UPDATE]}",
	"{mesh: '*', access: [DELETE]}",
	"{types: [AccessRole, AccessRoleBinding], access: [CREATE, UPDATE, DELETE]}",
	"{types: [GlobalSecret], names: [a], access: [UPDATE]}",
	"{types: [GlobalSecret], access: [CREATE, UPDATE]}",
	"{access: [GENERATE_DATAPLANE_TOKEN]}",
	"{types: [TrafficPermission], access: [CREATE, UPDATE, DELETE], when: [{destinations: {match: {kuma.io/service: backend}}}]}",
	"{types: [MeshUpstreamTimeout], mesh: default, access: [CREATE, UPDATE], when: [{targetRef: {kind: Service, name: web}}, {to: {targetRef: {kind: Service, name: backend}}}]}",
	"{names: [a, b], access: [CREATE, DELETE], when: [{selectors: {match: {version: '*'}}}]}",
}

// aKey makes a signing key, as a secret holds it.
func aKey() string {
	key, err := token.GenerateSigningKey(token.KeyID{Use: token.ForUser, Serial: 7})
	if err != nil {
		panic(err)
	}
	text, err := key.PEM()
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(text)
}

// drawDocument writes a resource of one of two names, so that it often meets
// another that is stored.
func drawDocument(t *rapid.T) string {
	pick := func(values ...string) string { return rapid.SampledFrom(values).Draw(t, "value") }
	head := func(kind string) string { return "type: " + kind + "\nname: " + pick("a", "b") + "\n" }
	mesh := func() string { return "mesh: " + pick("default", "demo") + "\n" }
	switch pick("key", "permission", "trace", "timeout", "secret", "role", "role", "binding", "binding", "admin role", "admin binding") {
	case "permission":
		return head("TrafficPermission") + mesh() + "sources: [{match: {kuma.io/service: '*'}}]\ndestinations: [{match: {kuma.io/service: " + pick("backend", "other") + "}}]\n"
	case "trace":
		return head("TrafficTrace") + mesh() + "selectors: [{match: {" + pick("version: v1", "team: a") + "}}]\n"
	case "timeout":
		return head("MeshUpstreamTimeout") + mesh() + "targetRef: {kind: Service, name: " + pick("web", "api") + "}\nto: [{targetRef: {kind: Service, name: " + pick("backend", "api") + "}, connectTimeout: 1s}]\n"
	case "key":
		return "type: GlobalSecret\nname: " + pick("user", "dataplane") + "-token-signing-key-7\ndata: " + aKey() + "\n"
	case "secret":
		return head("GlobalSecret") + "data: AA==\n"
	case "role":
		return head("AccessRole") + "rules: [" + pick(someRules...) + ", " + pick(someRules...) + "]\n"
	case "admin role":
		return "type: AccessRole\nname: admin\nrules: [" + pick(someRules...) + "]\n"
	case "admin binding":
		return "type: AccessRoleBinding\nname: default\nsubjects: [{type: Group, name: 'mesh-system:admin'}]\nroles: [" + pick("admin", "a") + "]\n"
	default:
		return head("AccessRoleBinding") + "subjects: [" + pick("{type: User, name: ann}", "{type: Group, name: team}", "{type: Group, name: 'mesh-system:unauthenticated'}") + "]\nroles: [" + pick("a", "b", "admin") + "]\n"
	}
}

// What can-i says, of a control plane or from files, is what happens: to the
// letter, for every caller and every write.
func TestAnswersAreWhatHappens(t *testing.T) {
	tally := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		p := authztest.New(t, &authz.Defaults{Restricted: true})
		p.Seed(authztest.Delegates)
		for range rapid.IntRange(0, 8).Draw(rt, "stored") {
			p.Seed(drawDocument(rt))
		}
		if rapid.IntRange(0, 3).Draw(rt, "without the role admin") == 0 {
			if _, ok := p.View().Get(authztest.RoleAdmin); ok {
				p.Remove(authztest.RoleAdmin)
			}
		}
		service := access.New(p.Authorizer, p.Log.Read, turns.NewServer())
		for range 8 {
			document := authztest.Ops(t, drawDocument(rt))[0].Resource
			for _, who := range []authn.Principal{
				authn.UserPrincipal("ann", nil), authn.UserPrincipal("bob", []string{"team"}), authn.LoopbackAdmin(), authn.Anonymous(),
			} {
				happened := requireAnswers(t, p, service, who, document)
				tally[happened]++
			}
		}
	})
	for _, happened := range []string{"CREATE", "UPDATE", "DELETE", authz.ReasonDenied, authz.ReasonEscalation, authz.ReasonLastAdmin} {
		require.Positive(t, tally[happened], "%s in %v", happened, tally)
	}
}

// requireAnswers asks about writing, and about deleting what is stored, and
// compares what is said with what happens. It returns what happened at last.
func requireAnswers(t *testing.T, p *authztest.Plane, service *access.Service, who authn.Principal, document *resource.Resource) string {
	t.Helper()
	key, ctx := document.Key(), authn.WithPrincipal(t.Context(), who)
	stored, exists := p.View().Get(key)
	ops := map[resource.Access]store.Op{resource.AccessCreate: store.Put(document)}
	if exists {
		ops = map[resource.Access]store.Op{resource.AccessUpdate: store.Put(document), resource.AccessDelete: store.Delete(key)}
	}
	happened := ""
	for access, op := range ops {
		_, err := p.Write(ctx, []store.Op{op}, false)
		if rpcerr.HasReason(err, authz.ReasonForeignTrust) {
			err = nil // is about the content, and no access changes it
		}
		happened = string(access)
		if err != nil {
			happened = reasonOf(t, err)
		}

		request := &meridianv1.CanIRequest{Access: string(access), Key: &meridianv1.ResourceKey{Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name}}
		question := rbac.Question{Access: access, Key: key, Stored: p.View().Get, Rules: p.View()}
		hiddenFrom := func(asker context.Context) bool {
			return stored != nil && p.Read(asker, stored) != nil || stored == nil && p.ReadKey(asker, key) != nil
		}
		hidden := hiddenFrom(ctx)
		question.Hidden = func(resource.Key, *resource.Resource) bool { return hidden }
		if op.Resource != nil {
			request.Resource = &meridianv1.Resource{Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name, Spec: document.Canonical()}
			question.New = document
		}
		online, failed := service.Decide(ctx, request)
		require.NoError(t, failed)
		offline := rbac.Compile(p.View()).Ask(authz.SubjectOf(who), question)
		require.Equal(t, online.GetAllowed(), offline.Allowed)
		require.Equal(t, online.GetReasons(), offline.Reasons)
		require.Equal(t, online.GetAllowed(), err == nil, "%s of %s: %v", access, key, err)
		if err != nil {
			headline := fmt.Sprintf("Access Denied (user %q cannot access the resource)", who)
			said, asked := err.Error(), strings.Join(append([]string{headline}, online.GetReasons()...), "\n  ")
			switch unseen := hidden || !exists && p.ReadKey(ctx, key) != nil; {
			case op.Resource == nil || !unseen:
				require.Equal(t, asked, said)
			case exists:
				require.Contains(t, said, headline)
			default: // a refused write does not tell whether there is a resource
				require.Equal(t, asked, strings.ReplaceAll(said, "missing: CREATE or UPDATE on", "missing: CREATE on"))
			}
		}

		// The same about another user.
		if who.Source != authn.FromLoopback {
			request.AsUser, request.AsGroups = who.Name, who.Groups
			named, failed := service.Decide(authztest.Admin(), request)
			require.NoError(t, failed)
			require.Equal(t, online.GetAllowed(), named.GetAllowed())
			if !hidden && !hiddenFrom(authztest.Admin()) { // the role of administrators may be a narrower one by now
				require.Equal(t, online.GetReasons(), named.GetReasons())
			}
			require.Equal(t, who.String(), named.GetSubject())
		}
	}
	return happened
}

func reasonOf(t *testing.T, err error) string {
	t.Helper()
	var e *rpcerr.Error
	require.ErrorAs(t, err, &e)
	return e.Reason
}
