package bench

import (
	"fmt"

	meridianv1 "meridian/api/meridian/v1"
)

const (
	// many and few are the sizes that are compared: what does not depend on the
	// number of policies has a ratio of 1.
	many = 10_000
	few  = 1_000

	services   = 200
	dataplanes = 100
	outbounds  = 10
)

// kinds are those of the policies, all of them synced.
var kinds = []string{"Timeout", "Retry", "TrafficPermission"}

// policy returns the i-th policy. Every edition of it differs from every other.
func policy(i, edition int) *meridianv1.Resource {
	selectors := func(version int) string {
		return fmt.Sprintf(`"sources":[{"match":{"kuma.io/service":"service-%d","version":"v%d"}}],"destinations":[{"match":{"kuma.io/service":"service-%d"}}]`,
			i%services, version, (i/len(kinds))%services)
	}
	r := &meridianv1.Resource{Kind: kinds[i%len(kinds)], Mesh: "default", Name: fmt.Sprintf("policy-%05d", i)}
	switch r.Kind {
	case "Timeout":
		r.Spec = fmt.Appendf(nil, `{%s,"conf":{"connectTimeout":"%dms","tcp":{"idleTimeout":"1h"},"http":{"requestTimeout":"15s","idleTimeout":"30m"}}}`, selectors(1), edition+1)
	case "Retry":
		r.Spec = fmt.Appendf(nil, `{%s,"conf":{"http":{"numRetries":5,"perTryTimeout":"%dms","backOff":{"baseInterval":"20ms","maxInterval":"1s"},"retriableStatusCodes":[500,504]}}}`, selectors(1), edition+1)
	default:
		r.Spec = fmt.Appendf(nil, `{%s}`, selectors(edition))
	}
	return r
}

// policies are the first n, in their first edition.
func policies(n int) []*meridianv1.Resource {
	all := make([]*meridianv1.Resource, n)
	for i := range all {
		all[i] = policy(i, 0)
	}
	return all
}

// proxies are the dataplanes of a zone: each a service that calls ten others, so
// that the zone has something to match.
func proxies() []*meridianv1.Resource {
	all := make([]*meridianv1.Resource, dataplanes)
	for i := range all {
		spec := fmt.Appendf(nil, `{"networking":{"address":"10.0.0.%d","inbound":[{"port":9000,"servicePort":8080,"tags":{"kuma.io/service":"service-%d","version":"v1"}}],"outbound":[`, i+1, i)
		for j := range outbounds {
			if j > 0 {
				spec = append(spec, ',')
			}
			spec = fmt.Appendf(spec, `{"port":%d,"tags":{"kuma.io/service":"service-%d"}}`, 10_000+j, (i*outbounds+j)%services)
		}
		all[i] = &meridianv1.Resource{Kind: "Dataplane", Mesh: "default", Name: fmt.Sprintf("dataplane-%03d", i), Spec: append(spec, "]}}"...)}
	}
	return all
}
