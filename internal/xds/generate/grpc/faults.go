package grpc

import (
	"strconv"

	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
)

// maxFaults bounds the entries of a list of faults: each has a filter, which is on the
// listener of every client, so that no change of a policy changes a listener.
const maxFaults = 4

func faultFilter(i int) string { return "faults-" + strconv.Itoa(i+1) }

// faultFilters are the filters of a client's listener that routes fill in.
func faultFilters() ([]*httpv3.HttpFilter, error) {
	packed, err := xds.Pack(&faultv3.HTTPFault{})
	if err != nil {
		return nil, err
	}
	var filters []*httpv3.HttpFilter
	for i := range maxFaults {
		filters = append(filters, &httpv3.HttpFilter{Name: faultFilter(i), ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: packed}})
	}
	return filters, nil
}

// faults is the configuration of these filters for an outbound, or for a route with an
// entry of its own: as many as there are faults, and for a route all of them. The paths of
// origins begin inside of it.
func faults(rules generate.Rules, route string) (map[string]*anypb.Any, []xds.Origin, error) {
	if route != "" && !rules.Named(route, resource.KindMeshHTTPFault) {
		return nil, nil, nil
	}
	c := rules.On(route, resource.KindMeshHTTPFault, resource.KindMeshHTTPFault)
	var list []resource.FaultInjectionConf
	if _, err := c.Decode("/http", &list); err != nil {
		return nil, nil, err
	}
	config := map[string]*anypb.Any{}
	var origins []xds.Origin
	for i := range list {
		entry := list[i]
		entry.ResponseBandwidth = nil // gRPC slows nothing down
		f, parts := generate.Fault(&entry)
		if len(parts) == 0 || len(config) == maxFaults {
			continue
		}
		name := faultFilter(len(config))
		packed, err := xds.Pack(f)
		if err != nil {
			return nil, nil, err
		}
		config[name] = packed
		for _, part := range parts {
			origins = append(origins, c.Origin("/"+name, policy.Pointer("/http/"+strconv.Itoa(i)).Field(part))...)
		}
	}
	for i := len(config); route != "" && i < maxFaults; i++ {
		// The route's entry takes away what holds for the outbound.
		packed, err := xds.Pack(&faultv3.HTTPFault{})
		if err != nil {
			return nil, nil, err
		}
		config[faultFilter(i)] = packed
	}
	return config, origins, nil
}
