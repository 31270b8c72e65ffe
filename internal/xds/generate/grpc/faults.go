package grpc

import (
	"maps"
	"slices"
	"strconv"

	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
)

// maxFaults bounds the entries of a list of faults: each has a filter.
const maxFaults = xds.FaultFilters

// faultFilters are the filters of a client's listener that routes fill in.
func faultFilters() ([]*httpv3.HttpFilter, error) {
	packed, err := xds.Pack(&faultv3.HTTPFault{})
	if err != nil {
		return nil, err
	}
	var filters []*httpv3.HttpFilter
	for i := range maxFaults {
		filters = append(filters, &httpv3.HttpFilter{Name: xds.FaultFilter(i), ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: packed}})
	}
	return filters, nil
}

// faults is the configuration of these filters for an outbound, or for a route with an
// entry of its own: as many as there are faults, and for a route all of them. The paths of
// origins begin inside of it.
func (b *builder) faults(a *policy.Attachment, rules generate.Rules, route string) (map[string]*anypb.Any, []xds.Origin, error) {
	if route != "" && !rules.Named(route, resource.KindMeshHTTPFault) {
		return nil, nil, nil
	}
	return b.configured(a, route != "", rules.On(route, resource.KindMeshHTTPFault, resource.KindMeshHTTPFault))
}

// configured is the configuration of the filters by faults of configurations, one after the
// other: where all is set, of all filters, so that it takes away what holds around it.
func (b *builder) configured(a *policy.Attachment, all bool, confs ...*generate.Conf) (map[string]*anypb.Any, []xds.Origin, error) {
	config := map[string]*anypb.Any{}
	var origins []xds.Origin
	for _, c := range confs {
		var list []resource.FaultInjectionConf
		at := func(i int) policy.Pointer { return policy.Pointer("/http/" + strconv.Itoa(i)) }
		var err error
		if c != nil && c.Kind == resource.KindFaultInjection {
			list, at = make([]resource.FaultInjectionConf, 1), func(int) policy.Pointer { return "" }
			_, err = c.Decode("", &list[0])
		} else {
			_, err = c.Decode("/http", &list)
		}
		if err != nil {
			return nil, nil, err
		}
		for i := range list {
			entry := list[i]
			entry.ResponseBandwidth = nil // gRPC slows nothing down
			f, parts := generate.Fault(&entry)
			if len(parts) == 0 {
				continue
			}
			if len(config) == maxFaults {
				for _, part := range parts {
					b.unmade(a, tooMany, c.Origin("", at(i).Field(part)))
				}
				continue
			}
			name := xds.FaultFilter(len(config))
			packed, err := xds.Pack(f)
			if err != nil {
				return nil, nil, err
			}
			config[name] = packed
			for _, part := range parts {
				origins = append(origins, c.Origin("/"+name, at(i).Field(part))...)
			}
		}
	}
	for i := len(config); all && i < maxFaults; i++ {
		packed, err := xds.Pack(&faultv3.HTTPFault{})
		if err != nil {
			return nil, nil, err
		}
		config[xds.FaultFilter(i)] = packed
	}
	return config, origins, nil
}

// Why a client does not make faults.
const (
	tooMany = "a gRPC client makes the first four faults of a call, its own before those of the inbounds that it calls: this one comes after them"
	differ  = "the inbounds that the calls can go to do not all do the same with this caller, and a gRPC client cannot tell them apart: it makes none of their faults; `meridian inspect connection` shows what each of them does"
	mixed   = "an Envoy serves some of the inbounds that the calls can go to, or their faults are not known here: a gRPC client makes none of the faults of the others"
)

// unmade notes faults that the client does not make of calls of an outbound.
func (b *builder) unmade(a *policy.Attachment, why string, of []xds.Origin) {
	at := a.String()
	i := slices.IndexFunc(b.Unmade, func(o xds.Omission) bool { return o.Attachment == at && o.Why == why })
	if i < 0 {
		i, b.Unmade = len(b.Unmade), append(b.Unmade, xds.Omission{Attachment: at, Why: why})
	}
	o := &b.Unmade[i]
	for _, origin := range of {
		if !slices.Contains(o.Sources, origin.Source) {
			o.Sources = append(o.Sources, origin.Source)
		}
	}
	slices.SortFunc(o.Sources, resource.Key.Compare)
}

// received is what the inbounds behind a selector do with the calls of this dataplane: nil
// where they do nothing, and where they do not all do the same.
func (b *builder) received(a *policy.Attachment, s resource.TagSelector) (*generate.Conf, error) {
	if b.callees == nil || s == nil {
		return nil, nil
	}
	called, err := b.callees(s)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(b.Callees, func(k generate.SelectorCalled) bool { return maps.Equal(k.Selector, s) }) {
		b.Callees = append(b.Callees, generate.SelectorCalled{Selector: s, Called: called})
	}
	var first *generate.Conf
	var from []xds.Origin
	same := true
	for i, r := range called.Rules {
		var c *generate.Conf
		if r != nil {
			if mine := r.ForCaller(b.caller); len(mine.Steps) > 0 {
				c = generate.NewConf(mine)
				from = append(from, c.Origins()...)
			}
		}
		if i == 0 {
			first = c
		}
		same = same && c.Equal(first)
	}
	switch {
	case len(from) == 0:
		return nil, nil
	case called.Mixed:
		b.unmade(a, mixed, from)
		return nil, nil
	case !same:
		b.unmade(a, differ, from)
		return nil, nil
	}
	return first, nil
}

// calleeFaults are the configurations of the filters for the clusters of a route's shares, in
// their order; nil where nothing is done by those who are called.
func (b *builder) calleeFaults(a *policy.Attachment, rules generate.Rules, e *generate.Entry, shares []generate.Share) ([]map[string]*anypb.Any, [][]xds.Origin, error) {
	by := map[string]*generate.Conf{}
	for _, d := range e.Destinations {
		if d.Weight == 0 {
			continue
		}
		c, err := b.received(a, d.Selector)
		if err != nil {
			return nil, nil, err
		}
		if c == nil {
			continue
		}
		name, err := b.Cluster(a, rules, e, d.Selector)
		if err != nil {
			return nil, nil, err
		}
		by[name] = c
	}
	if len(by) == 0 {
		return nil, nil, nil
	}
	configs, origins := make([]map[string]*anypb.Any, len(shares)), make([][]xds.Origin, len(shares))
	for i, s := range shares {
		if by[s.Cluster] == nil {
			continue
		}
		var err error
		if configs[i], origins[i], err = b.configured(a, true, rules.On(e.Route, resource.KindMeshHTTPFault, resource.KindMeshHTTPFault), by[s.Cluster]); err != nil {
			return nil, nil, err
		}
	}
	return configs, origins, nil
}
