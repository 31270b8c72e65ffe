package grpc

import (
	"fmt"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"meridian/internal/policy/permission"
	"meridian/internal/resource"
	"meridian/internal/xds/generate"
)

// listOf is a list of n entries that allow and deny, turning after every `run` of them.
func listOf(n, run int, tags func(int) resource.TagSelector) permission.List {
	var l permission.List
	for i := range n {
		l.Entries = append(l.Entries, permission.Entry{
			Match: tags(i), Except: []resource.TagSelector{{"e": "1"}, {"e": "2"}, {"e": "3"}},
			Allow: i/run%2 == 0, Policy: resource.Key{Kind: resource.KindMeshTrafficPermission, Mesh: "m", Name: fmt.Sprintf("p%d", i)},
		})
	}
	return l
}

// sentFor is what a server is sent for lists, as deep as others decode.
func sentFor(t *testing.T, lists ...permission.List) (deny, allow map[string]*rbacv3.Policy) {
	filters, _, err := permissions("m", nil, lists, false)
	require.NoError(t, err)
	decode := func(name string) map[string]*rbacv3.Policy {
		var m httprbacv3.RBACPerRoute
		// An entry of a map is a message of its own to some implementations.
		require.NoError(t, proto.UnmarshalOptions{RecursionLimit: 99}.Unmarshal(filters[name].GetValue(), &m), "a client would keep the permissions of before")
		return m.GetRbac().GetRules().GetPolicies()
	}
	return decode(denyFilter), decode(allowFilter)
}

// The permissions of a port can be decoded by a client that limits the nesting of messages
// to 100, with as many turns as there may be, and beyond that no call is served.
func TestPermissionsNestAsDeepAsClientsDecode(t *testing.T) {
	of := func(turns, run int) permission.List {
		return listOf((turns+1)*run, run, func(i int) resource.TagSelector { return resource.TagSelector{"t": fmt.Sprint(i)} })
	}
	for _, run := range []int{1, 3} {
		deny, allow := sentFor(t, of(maxTurns, run), of(maxTurns, run))
		require.NotContains(t, deny, generate.TooMany)
		require.NotEmpty(t, allow)
		reversed := of(maxTurns, run)
		for i := range reversed.Entries {
			reversed.Entries[i].Allow = !reversed.Entries[i].Allow
		}
		reversed.Allow = true
		deny, allow = sentFor(t, reversed, of(maxTurns, run))
		require.NotContains(t, deny, generate.TooMany)
		require.NotEmpty(t, allow)
		deny, allow = sentFor(t, of(maxTurns+1, run))
		require.Contains(t, deny, generate.TooMany)
		require.Empty(t, allow)
	}
}
