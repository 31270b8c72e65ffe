package answer_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy/answer"
)

// How proxies stand to the zone is shown in the list, with its JSON, and on the
// page about one dataplane, without.
func TestProxyStates(t *testing.T) {
	states := []*answer.ProxyState{
		{State: answer.ProxyOnline, RegisteredBy: answer.ByProxy, Acked: 12},
		{State: answer.ProxyOnline, RegisteredBy: answer.ByOperator, Acked: 9, Lag: 2, LastError: "no such cluster"},
		{State: answer.ProxyOffline, RegisteredBy: answer.ByProxy, Acked: 9},
		{State: answer.ProxyManual, RegisteredBy: answer.ByOperator},
		nil,
	}
	list := &answer.DataplanesAnswer{}
	for i, state := range states {
		list.Items = append(list.Items, answer.DataplaneSummary{
			Policies: new(int),
			Mesh:     "default", Name: "web-" + string(rune('1'+i)), Zone: "east", Services: []string{"web"}, Outbounds: []string{}, ProxyState: state,
		})
	}
	encoded, err := answer.Marshal(list)
	require.NoError(t, err)
	var decoded answer.DataplanesAnswer
	require.NoError(t, answer.Unmarshal(encoded, &decoded))
	require.Equal(t, list, &decoded)

	var page strings.Builder
	require.NoError(t, answer.RenderDataplanes(&page, &decoded, answer.Form{}))
	require.Equal(t, `MESH     NAME   ZONE  SERVICES  POLICIES  STATE    ACKED  LAG
default  web-1  east  web       0         online   12     0
default  web-2  east  web       0         online   9      2
    refused: no such cluster
default  web-3  east  web       0         offline  9
default  web-4  east  web       0         manual
default  web-5  east  web       0
`, page.String())

	a, err := answer.Dataplane(scenario(t, "more-tags-win"), "default", "web-1", "east", 7)
	require.NoError(t, err)
	without, err := json.Marshal(a)
	require.NoError(t, err)
	a.Proxy = states[1]
	with, err := json.Marshal(a)
	require.NoError(t, err)
	require.Equal(t, string(without), string(with), "no part of the document")
	page.Reset()
	require.NoError(t, answer.RenderDataplane(&page, a, answer.Form{}))
	require.Contains(t, page.String(),
		"revision 7\nproxy online, has taken on revision 9, 2 changes behind, refused the last configuration: no such cluster\n\n")
	require.Equal(t, "proxy offline, has taken on revision 9", states[2].String())
	require.Equal(t, "no proxy connected", states[3].String())
	require.Equal(t, "proxy online, 1 change behind", (&answer.ProxyState{State: answer.ProxyOnline, Lag: 1}).String())
}
