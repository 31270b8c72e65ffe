package zone

import (
	"cmp"
	"context"

	"meridian/internal/policy"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/xds"
	"meridian/internal/xds/wire"
)

// running asks the proxy that a question is about what it runs; nil unless the question
// is about that. It is asked before the resources are read that it is compared with.
func (s *inspectService) running(ctx context.Context, mesh resource.MeshName, asked question.Question) (*wire.Running, error) {
	about, ok := asked.(question.Proxy)
	if !ok || !about.Live {
		return nil, nil
	}
	if cmp.Or(about.Dialect, xds.GRPC) != xds.Envoy {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "only an Envoy can be asked what it runs: `meridian proxy status` says what a gRPC client has accepted")
	}
	key := policy.DataplaneKey(mesh, about.Name)
	if _, ok := s.world.Dataplane(key); !ok {
		return &wire.Running{}, nil // the answer is that there is none
	}
	live, err := s.proxies.Live(ctx, key)
	if err != nil {
		return nil, err
	}
	running := &wire.Running{Left: int(live.GetLeft())}
	for _, r := range live.GetResources() {
		running.Resources = append(running.Resources, wire.RunningResource{
			Type: r.GetType(), Name: r.GetName(), Version: r.GetVersion(), Warming: r.GetWarming(), Failed: r.GetFailed(),
			Endpoints: r.GetEndpoints(), EndpointCount: int(r.GetEndpointCount()),
		})
	}
	return running, nil
}
