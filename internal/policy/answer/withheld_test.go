package answer

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// The page names what a proxy is not sent for its size, with its policies; a reader sees
// only policies that it may read.
func TestWhatAProxyIsNotSentIsNamed(t *testing.T) {
	open := resource.Key{Kind: resource.KindTimeout, Mesh: "m", Name: "open"}
	hidden := resource.Key{Kind: resource.KindTimeout, Mesh: "m", Name: "hidden"}
	a := &ProxiesAnswer{Items: []ProxyStatus{{Mesh: "m", Name: "web-1", Streams: []ProxyStream{{Types: []ProxyType{{
		Type: "CDS", State: "NOT SENT", Withheld: []ProxyRejection{{Name: "backend", Error: "too large", Policies: []resource.Key{hidden, open}}},
	}}}}}}}
	page := func() string {
		var b bytes.Buffer
		require.NoError(t, RenderProxies(&b, a, Form{}))
		return b.String()
	}
	require.Contains(t, page(), "not sent: CDS backend, from "+hidden.String()+", "+open.String()+": too large")
	a.Restrict(func(key resource.Key) (bool, bool) { return key != hidden, true })
	require.Contains(t, page(), "not sent: CDS backend, from "+open.String()+": too large")
	require.NotContains(t, page(), "hidden")
}
