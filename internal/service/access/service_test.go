package access_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/authz/authztest"
	"meridian/internal/rpcerr"
	"meridian/internal/service/access"
	"meridian/internal/turns"
)

func TestService(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(authztest.BackendOwner)
	p.Seed(authztest.Permission("other"))
	p.Seed("type: AccessRole\nname: tokens\nrules: [{access: [GENERATE_USER_TOKEN]}]\n---\n" +
		"type: AccessRoleBinding\nname: unauthenticated\nsubjects: [{type: Group, name: 'mesh-system:unauthenticated'}]\nroles: [tokens]\n")
	s := access.New(p.Authorizer, p.Log.Read, turns.NewServer())

	me, err := s.WhoAmI(authztest.As("backend-owner", "team"), &meridianv1.WhoAmIRequest{})
	require.NoError(t, err)
	require.Equal(t, "backend-owner", me.GetName())
	require.Equal(t, []string{"team", "mesh-system:authenticated"}, me.GetGroups())
	require.Equal(t, "token", me.GetSource())
	require.Equal(t, "backend-owners", me.GetRoles()[0].GetBinding())
	require.False(t, me.GetOpen())
	open, err := access.New(authztest.New(t, &authz.Defaults{}).Authorizer, p.Log.Read, turns.NewServer()).WhoAmI(authztest.As("bob"), &meridianv1.WhoAmIRequest{})
	require.NoError(t, err)
	require.True(t, open.GetOpen())

	stored, _ := p.View().Get(authztest.Ops(t, authztest.Permission("x"))[0].Resource.Key())
	message := func(text string) *meridianv1.Resource {
		r := authztest.Ops(t, text)[0].Resource
		return &meridianv1.Resource{Kind: string(r.Key().Kind), Mesh: string(r.Key().Mesh), Name: r.Key().Name, Spec: r.Canonical()}
	}
	require.NotNil(t, stored)
	for name, tt := range map[string]struct {
		req  *meridianv1.CanIRequest
		want bool
	}{
		"create":          {&meridianv1.CanIRequest{Access: "CREATE", Resource: message(authztest.Permission("backend"))}, true},
		"what is stored":  {&meridianv1.CanIRequest{Access: "UPDATE", Resource: message(authztest.Permission("backend"))}, false},
		"old given":       {&meridianv1.CanIRequest{Access: "UPDATE", Resource: message(authztest.Permission("backend")), Old: message(authztest.Permission("backend"))}, true},
		"by identity":     {&meridianv1.CanIRequest{Access: "DELETE", Key: &meridianv1.ResourceKey{Kind: "traffic-permission", Mesh: "default", Name: "web-to-backend"}}, false},
		"another":         {&meridianv1.CanIRequest{Access: "GENERATE_USER_TOKEN", AsUser: "admin", AsGroups: []string{"mesh-system:admin"}}, true},
		"unauthenticated": {&meridianv1.CanIRequest{Access: "GENERATE_USER_TOKEN", AsUser: "mesh-system:anonymous"}, true},
		"another without": {&meridianv1.CanIRequest{Access: "CREATE", Resource: message(authztest.Permission("backend")), AsUser: "eve"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := s.Decide(authztest.As("backend-owner"), tt.req)
			require.NoError(t, err)
			require.Equal(t, tt.want, answer.GetAllowed(), answer.GetReasons())
			require.NotEmpty(t, answer.GetReasons())
		})
	}
	for name, req := range map[string]*meridianv1.CanIRequest{
		"access":   {Access: "SEE"},
		"user":     {Access: "GENERATE_USER_TOKEN", AsGroups: []string{"g"}},
		"resource": {Access: "CREATE"},
		"kind":     {Access: "CREATE", Key: &meridianv1.ResourceKey{Kind: "Nothing"}},
		"content":  {Access: "CREATE", Resource: &meridianv1.Resource{Kind: "Mesh", Name: "x", Spec: []byte("[]")}},
	} {
		_, err := s.Decide(authztest.Admin(), req)
		require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), name)
	}
	// What no rule could grant, whatever the content, is answered without decoding it.
	no, err := s.Decide(authztest.As("bob"), &meridianv1.CanIRequest{
		Access: "CREATE", Resource: &meridianv1.Resource{Kind: "Mesh", Name: "x", Spec: []byte("[]")},
	})
	require.NoError(t, err)
	require.False(t, no.GetAllowed())
	who, err := s.WhoCan(authztest.As("bob"), &meridianv1.WhoCanRequest{Access: "UPDATE", Key: &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: "x"}})
	require.NoError(t, err)
	require.Len(t, who.GetHolders(), 2)
	require.Equal(t, "mesh-system:admin", who.GetHolders()[0].GetSubject().GetName())
	require.True(t, who.GetHolders()[1].GetConditional())
	_, err = s.WhoCan(authztest.As("bob"), &meridianv1.WhoCanRequest{Access: "UPDATE"})
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
}

// §6.1: what can-i says of a resource that the caller may not read is the same whether
// or not there is one.
func TestCanITellsNothingOfWhatMayNotBeRead(t *testing.T) {
	const rule = "rules: [{types: [TrafficPermission], access: [%s], when: [{destinations: {match: {kuma.io/service: backend}}}]}]\n"
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Authorizer.ReadGranted()
	p.Seed("type: AccessRole\nname: writer\n" + fmt.Sprintf(rule, "CREATE, UPDATE, DELETE"))
	p.Seed("type: AccessRole\nname: updater\n" + fmt.Sprintf(rule, "UPDATE, DELETE"))
	for _, user := range []string{"writer", "updater"} {
		p.Seed("type: AccessRoleBinding\nname: " + user + "\nsubjects: [{type: User, name: " + user + "}]\nroles: [" + user + "]\n")
	}
	permission := func(name, destination string) string {
		return strings.ReplaceAll(authztest.Permission(destination), "web-to-backend", name)
	}
	p.Seed(permission("hidden", "other"))
	p.Seed(permission("open", "backend"))
	s := access.New(p.Authorizer, p.Log.Read, turns.NewServer())
	ask := func(user, access, name, destination string) (bool, string) {
		req := &meridianv1.CanIRequest{Access: access, Key: &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: name}}
		if destination != "" {
			r := authztest.Ops(t, permission(name, destination))[0].Resource
			req.Resource = &meridianv1.Resource{Kind: "TrafficPermission", Mesh: "default", Name: name, Spec: r.Canonical()}
		}
		answer, err := s.Decide(authztest.As(user), req)
		require.NoError(t, err)
		return answer.GetAllowed(), strings.ReplaceAll(strings.Join(answer.GetReasons(), "\n"), name, "NAME")
	}
	for _, user := range []string{"writer", "updater", "eve"} {
		for _, access := range []string{"CREATE", "UPDATE", "DELETE", "READ"} {
			for _, destination := range []string{"", "backend", "other"} {
				there, why := ask(user, access, "hidden", destination)
				absent, whyAbsent := ask(user, access, "absent", destination)
				require.Equal(t, absent, there, "%s, %s, %q", user, access, destination)
				require.Equal(t, whyAbsent, why, "%s, %s, %q", user, access, destination)
			}
		}
	}
	allowed, why := ask("updater", "UPDATE", "open", "backend")
	require.True(t, allowed, "what may be read is judged by its content: %s", why)
}
