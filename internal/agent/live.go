package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
)

const (
	// maxDump bounds what is read of each part of what Envoy says of its configuration,
	// and maxLive what the zone is sent of all, in bytes.
	maxDump, maxLive = 32 << 20, 512 << 10
	// maxLivePart is how many bytes of resources a message has; a message to a zone may have
	// 64 KiB.
	maxLivePart = 32 << 10
	// maxEndpoints bounds the endpoints of a cluster that the zone is sent.
	maxEndpoints = 100
	// maxLiveText bounds a name or reason of Envoy's, in bytes.
	maxLiveText = 1024
	// dumping bounds how long Envoy is asked.
	dumping = 4 * time.Second
)

// dumped is one entry of a part of what Envoy says of its configuration, in the JSON of
// envoy.admin.v3.
type dumped struct {
	Name        string `json:"name"`
	VersionInfo string `json:"version_info"`
	Cluster     struct {
		Name string `json:"name"`
	} `json:"cluster"`
	RouteConfig struct {
		Name string `json:"name"`
	} `json:"route_config"`
	ActiveState  dumpedState `json:"active_state"`
	WarmingState dumpedState `json:"warming_state"`
	ErrorState   struct {
		Details string `json:"details"`
	} `json:"error_state"`
	EndpointConfig struct {
		ClusterName string `json:"cluster_name"`
		Endpoints   []struct {
			LBEndpoints []struct {
				Endpoint struct {
					Address struct {
						SocketAddress struct {
							Address   string `json:"address"`
							PortValue uint32 `json:"port_value"`
						} `json:"socket_address"`
					} `json:"address"`
				} `json:"endpoint"`
			} `json:"lb_endpoints"`
		} `json:"endpoints"`
	} `json:"endpoint_config"`
}

type dumpedState struct {
	VersionInfo string `json:"version_info"`
}

// listenersQuery asks Envoy for its listeners.
const listenersQuery = "resource=dynamic_listeners&mask=name,active_state.version_info,warming_state.version_info,error_state.details"

// parts are what Envoy is asked for, and what each entry of it says.
var parts = []struct {
	query string
	read  func(d *dumped) *meridianv1.LiveResource
}{
	{"resource=dynamic_active_clusters&mask=version_info,cluster.name", func(d *dumped) *meridianv1.LiveResource {
		return &meridianv1.LiveResource{Type: "CDS", Name: d.Cluster.Name, Version: d.VersionInfo}
	}},
	{"resource=dynamic_warming_clusters&mask=version_info,cluster.name", func(d *dumped) *meridianv1.LiveResource {
		return &meridianv1.LiveResource{Type: "CDS", Name: d.Cluster.Name, Warming: d.VersionInfo}
	}},
	{"include_eds&resource=dynamic_endpoint_configs", endpointsOf},
	{listenersQuery, func(d *dumped) *meridianv1.LiveResource {
		return &meridianv1.LiveResource{Type: "LDS", Name: d.Name, Version: d.ActiveState.VersionInfo, Warming: d.WarmingState.VersionInfo, Failed: d.ErrorState.Details}
	}},
	{"resource=dynamic_route_configs&mask=version_info,route_config.name", func(d *dumped) *meridianv1.LiveResource {
		return &meridianv1.LiveResource{Type: "RDS", Name: d.RouteConfig.Name, Version: d.VersionInfo}
	}},
}

func endpointsOf(d *dumped) *meridianv1.LiveResource {
	r := &meridianv1.LiveResource{Type: "EDS", Name: d.EndpointConfig.ClusterName}
	for _, locality := range d.EndpointConfig.Endpoints {
		for _, e := range locality.LBEndpoints {
			at := e.Endpoint.Address.SocketAddress
			r.Endpoints = append(r.Endpoints, net.JoinHostPort(at.Address, strconv.FormatUint(uint64(at.PortValue), 10)))
		}
	}
	slices.Sort(r.Endpoints)
	r.Endpoints = slices.Compact(r.Endpoints)
	r.EndpointCount = uint32(len(r.Endpoints)) //nolint:gosec // they are in memory
	r.Endpoints = r.Endpoints[:min(len(r.Endpoints), maxEndpoints)]
	return r
}

// live asks Envoy what it runs.
func (s *supervisor) live(ctx context.Context) *meridianv1.DataplaneLive {
	ctx, cancel := context.WithTimeout(ctx, dumping)
	defer cancel()
	answer, size := &meridianv1.DataplaneLive{}, 0
	for _, part := range parts {
		entries, err := s.dump(ctx, part.query)
		if request := (*url.Error)(nil); errors.As(err, &request) {
			err = request.Err // it has no address that would say something
		}
		if err != nil && ctx.Err() != nil {
			err = errors.New("it does not answer in time")
		}
		if err != nil {
			return &meridianv1.DataplaneLive{Error: "Envoy does not say what it runs: " + clean(err.Error())}
		}
		for i := range entries {
			r := part.read(&entries[i])
			r.Name, r.Version, r.Warming, r.Failed = clean(r.GetName()), clean(r.GetVersion()), clean(r.GetWarming()), clean(r.GetFailed())
			if size += proto.Size(r); size > maxLive {
				answer.Left++
				continue
			}
			answer.Resources = append(answer.Resources, r)
		}
	}
	return answer
}

// answerLive answers the zone's request for what the proxy runs. The zone sends no other
// one meanwhile.
func (a *agent) answerLive(ctx context.Context, id uint64, send func(*meridianv1.ConnectRequest)) {
	answer := a.live(ctx)
	for _, part := range split(answer) {
		part.Id = id
		send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Live{Live: part}})
	}
}

// split returns an answer in parts of messages that the zone takes.
func split(answer *meridianv1.DataplaneLive) []*meridianv1.DataplaneLive {
	var all []*meridianv1.DataplaneLive
	part, size := &meridianv1.DataplaneLive{}, 0
	for _, r := range answer.GetResources() {
		if n := proto.Size(r); size > 0 && size+n > maxLivePart {
			part.More = true
			all, part, size = append(all, part), &meridianv1.DataplaneLive{}, 0
		}
		part.Resources, size = append(part.Resources, r), size+proto.Size(r)
	}
	part.Error, part.Left = answer.GetError(), answer.GetLeft()
	return append(all, part)
}

// dump asks for a part of Envoy's configuration. An Envoy that has had none of it, such as
// no routes where no listener speaks HTTP, does not find it.
func (s *supervisor) dump(ctx context.Context, query string) ([]dumped, error) {
	body, err := askFor(ctx, s.admin, http.MethodGet, "/config_dump?"+query, maxDump+1)
	if none := (notFound{}); errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(body) > maxDump {
		return nil, fmt.Errorf("%s: it has more than %d bytes", query, maxDump)
	}
	var answer struct {
		Configs []dumped `json:"configs"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	return answer.Configs, nil
}

// clean is a text of Envoy's as it is passed on.
func clean(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxLiveText)], "") }
